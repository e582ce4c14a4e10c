"""Every operator, loss and module in every mode of torch: one table (``samples``), one test a mode.

Answers in a mode are compared with those of an ordinary call, bit for bit where the same code runs.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import logging
import math
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import sinksort
from sinksort.core import modes
from sinksort.core.option_values import Options
from sinksort.kernels import backends, memo
from sinksort.kernels.contract import Request
from tests.devices import refusal
from tests.samples import LOSSES, MODULES, OPERATORS, RELAXATIONS, STREAMED, draw, parts

TABLE = {**OPERATORS, **LOSSES, **RELAXATIONS, **{name: make() for name, make in MODULES.items()}}
every = pytest.mark.parametrize("name", TABLE)
every_operator = pytest.mark.parametrize("name", OPERATORS)
both = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])

#: Of what fused kernels answer in single precision, one of each kind; the rest are made of the same parts.
FUSED = (
    "soft_rank",
    "soft_rank, weights",
    "soft_sort",
    "soft_permutation",
    "soft_quantile",
    "soft_topk",
    "soft_topk_mask",
    "soft_topk_mask, mask",
)
DENSE = "soft_sort", "soft_permutation"  #: every value to every target: for short rows only
#: Of what the reference answers.
OTHERS = ("soft_rank, eps of each row", "quantile_normalize", "Sinkhorn", "kantorovich_rank")


def same(ours: Any, theirs: Any, tolerance: float = 0.0) -> None:
    for one, other in zip(parts(ours), parts(theirs), strict=True):
        assert (one.dtype, one.device, one.shape) == (other.dtype, other.device, other.shape)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def gradient(read: Callable[[Tensor], Any], x: Tensor) -> Tensor | None:
    """Of the sum of all finite answers."""
    x = x.detach().requires_grad_()
    total = sum(part[part.isfinite()].double().sum() for part in parts(read(x)))
    return torch.autograd.grad(total, x)[0] if total.requires_grad else None


# ---- defaults of torch that do not concern us


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


DEFAULTS = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "meta": lambda: torch.device("meta"),  # as torch.set_default_device
}


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, torch.float32) for name in TABLE] + [(name, torch.float64) for name in OPERATORS]
)
@pytest.mark.parametrize("default", DEFAULTS)
def test_defaults_of_torch_change_nothing(name: str, dtype: torch.dtype, default: str) -> None:
    read, x = TABLE[name], draw(dtype=dtype)
    expected, slopes = read(x), gradient(read, x)
    with DEFAULTS[default]():
        ours, theirs = read(x), gradient(read, x)
    same(ours, expected)
    if slopes is not None:
        same(theirs, slopes)


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("default", DEFAULTS)
def test_defaults_of_torch_change_nothing_for_what_looks_at_values(name: str, default: str) -> None:
    read, x = STREAMED[name], draw()
    expected = read(x)
    with DEFAULTS[default]():
        ours = read(x)
    same(ours, expected)


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize(
    ("dtype", "n", "options"),
    [(torch.float64, 3000, {}), (torch.float32, 3000, {}), (torch.float64, 2100, {"eps": 1e-5})],
    ids=["refined", "long rows by kernels", "band"],
)
def test_defaults_of_torch_change_nothing_for_long_rows(
    dtype: torch.dtype, n: int, options: dict[str, Any], default: str
) -> None:
    x = draw(rows=1, n=n, dtype=dtype)

    def read(x: Tensor) -> tuple[Tensor, ...]:
        return sinksort.soft_rank(x, **options), sinksort.soft_quantile(x, [0.1, 0.5], **options)

    expected = read(x)
    with DEFAULTS[default]():
        ours = read(x)
    same(ours, expected)


@pytest.mark.parametrize("default", DEFAULTS)
def test_defaults_of_torch_change_nothing_for_estimators(default: str) -> None:
    from sinksort.sklearn import LeastQuantileRegressor, LeastTrimmedRegressor, SoftTopKClassifier

    X, labels = draw(1, torch.float64, 40, 2).numpy(), draw(2, torch.float64, 40, 1)[:, 0].numpy()
    models = [
        (LeastQuantileRegressor(max_iter=5, random_state=0, device="cpu"), labels),
        (LeastTrimmedRegressor(max_iter=5, random_state=0, device="cpu"), labels),
        (SoftTopKClassifier(max_iter=5, random_state=0, device="cpu"), labels > 0),
    ]
    for model, y in models:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # five steps are too few
            expected = model.fit(X, y).predict(X)
            with DEFAULTS[default]():
                ours = model.fit(X, y).predict(X)
        assert (ours == expected).all()


#: Functions of torch that make a tensor of numbers, and so follow the defaults unless dtype and device are named.
#: ``from_numpy`` does not: it is always on the CPU, in the dtype of the array.
MAKERS = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones",
    "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip


def unnamed(source: str) -> list[tuple[int, str]]:
    """Calls in ``source`` that make a tensor without naming its dtype and its device."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch.")):
            continue
        name, given = ast.unparse(node.func).removeprefix("torch."), {keyword.arg for keyword in node.keywords}
        numbers = name == "where" and all(isinstance(arg, ast.Constant) for arg in node.args[1:])
        if numbers or (name in MAKERS and not {"dtype", "device"} <= given):
            found.append((node.lineno, ast.unparse(node)))
    return found


def test_every_tensor_of_the_package_has_a_dtype_and_a_device() -> None:
    assert unnamed("torch.zeros(3)") == [(1, "torch.zeros(3)")]
    assert unnamed("torch.where(kept, 1.0, 0.0)") == [(1, "torch.where(kept, 1.0, 0.0)")]
    assert unnamed("torch.tensor([1.0], dtype=x.dtype, device=x.device); torch.where(kept, x, 0.0)") == []
    root = Path(sinksort.__file__).parent
    found = [(f"{file.relative_to(root)}:{line}", call)
             for file in sorted(root.rglob("*.py")) for line, call in unnamed(file.read_text())]  # fmt: skip
    assert found == []


# ---- modes in which values are there


@every
def test_inference_mode(name: str) -> None:
    read, x = TABLE[name], draw()
    with torch.inference_mode():
        inside = read(x), read(x.clone())
    for ours in inside:
        same(ours, read(x))


@every_operator
def test_a_mode_that_watches_sees_operators_and_changes_nothing(name: str) -> None:
    read, x = OPERATORS[name], draw()
    with FlopCounterMode(display=False):
        watched, slopes = read(x), gradient(read, x)
    # A program that is watched reads the plan of double precision, where another goes from values to averages at once.
    tolerance = 1e-9 if name == "sort_with" else 0.0
    same(watched, read(x), tolerance)
    if slopes is not None:
        same(slopes, gradient(read, x), tolerance)


class Seen(TorchDispatchMode):
    """Which operators were called, by name; ``refused``: dtype of no answer."""

    def __init__(self, refused: torch.dtype | None = None) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.refused = refused

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(function))
        out = function(*args, **(kwargs or {}))
        if "lift_fresh" in str(function):  # an array of NumPy, still on the host
            return out
        for part in out if isinstance(out, (tuple, list)) else (out,):
            assert not isinstance(part, Tensor) or part.dtype != self.refused, f"{function} gives {part.dtype}"
        return out


def test_a_watching_mode_is_shown_the_operator_instead_of_its_parts() -> None:
    with Seen() as seen:
        sinksort.soft_rank(draw())
    assert "sinksort.read.default" in seen.names


@every_operator
@both
def test_deterministic_algorithms(name: str, dtype: torch.dtype) -> None:
    read, x = OPERATORS[name], draw(dtype=dtype)
    expected = read(x)
    torch.use_deterministic_algorithms(True)
    try:
        same(read(x), expected)
        gradient(read, x)
    finally:
        torch.use_deterministic_algorithms(False)


def negative_view(x: Tensor) -> Tensor:
    """The same numbers, of which memory holds the negative."""
    view = torch._neg_view(-x)
    assert view.is_neg()
    return view


@every
def test_negative_views(name: str) -> None:
    read, x = TABLE[name], draw()
    same(read(negative_view(x)), read(x))


@every_operator
def test_imaginary_parts_of_conjugates(name: str) -> None:
    read, x = OPERATORS[name], draw()
    view = torch.complex(x, -x).conj().imag
    assert view.is_neg()
    same(read(view), read(x))


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("n", [12, 3000])
def test_cotangents_that_are_negative_views(name: str, n: int) -> None:
    x = draw(n=min(n, 40) if name in DENSE else n, rows=2).requires_grad_()
    (out, *_) = parts(OPERATORS[name](x))
    along = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
    (expected,) = torch.autograd.grad(out, x, along, retain_graph=True)
    (ours,) = torch.autograd.grad(out, x, negative_view(along))
    same(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_negative_views_of_long_rows(dtype: torch.dtype) -> None:
    x = draw(n=3000, rows=1, dtype=dtype)
    same(sinksort.soft_rank(negative_view(x)), sinksort.soft_rank(x))
    same(sinksort.soft_topk_mask(negative_view(x), 30), sinksort.soft_topk_mask(x, 30))


def with_infinities(x: Tensor) -> Tensor:
    """A finite row, one with the largest value infinite, one with both ends, and a finite one."""
    x = x.clone()
    x[1, 3], x[2, 0], x[2, 5] = math.inf, -math.inf, math.inf
    return x


@every_operator
@both
@pytest.mark.parametrize("n", [12, 3000])
def test_anomaly_mode_finds_nothing_in_rows_with_infinities(name: str, dtype: torch.dtype, n: int) -> None:
    if name in DENSE or name not in FUSED or dtype == torch.float64:
        n = min(n, 40)
    x = with_infinities(draw(dtype=dtype, n=n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that anomaly mode is slow
        with torch.autograd.detect_anomaly():
            slopes = gradient(OPERATORS[name], x)
    if slopes is None:
        return
    assert slopes.isfinite().all()
    assert (slopes[x.isinf()] == 0).all()
    same(slopes[0], gradient(OPERATORS[name], x[:1])[0], 1e-4)  # type: ignore[index]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("targets", [2, 3, 6, 12])
@pytest.mark.parametrize("n", [12, 40, 3000])
def test_infinite_averages_have_no_gradient(dtype: torch.dtype, targets: int, n: int) -> None:
    """+inf stays +inf, whatever happens to the others."""
    x = draw(dtype=dtype, n=n)
    x[1, 3] = math.inf
    x.requires_grad_()
    values = sinksort.soft_sort(x, num_targets=targets)
    assert (values[1] == math.inf).all()
    (slopes,) = torch.autograd.grad(values.sum(), x)
    assert (slopes[1] == 0).all()
    assert (slopes[[0, 2, 3]].sum(-1) - targets).abs().max() < 1e-3  # a shifted row is a shifted sort


# ---- tracers: values are not there


@pytest.mark.parametrize("name", [*FUSED, *OTHERS])
@both
def test_a_fake_call_spoils_no_real_one(name: str, dtype: torch.dtype) -> None:
    read, x = OPERATORS[name], draw(dtype=dtype, rows=5, n=19)  # a size that no other test has asked for
    with FakeTensorMode() as mode:
        fake = read(mode.from_tensor(x))
    real = read(x)
    for ours, theirs in zip(parts(fake), parts(real), strict=True):
        assert (ours.dtype, ours.device, ours.shape) == (theirs.dtype, theirs.device, theirs.shape)
    same(real, read(x.clone()))


@every
def test_fake_tensors_have_the_shapes_of_answers(name: str) -> None:
    read, x = TABLE[name], draw()
    with FakeTensorMode() as mode:
        fake = read(mode.from_tensor(x))
    for ours, theirs in zip(parts(fake), parts(read(x)), strict=True):
        assert (ours.dtype, ours.device, ours.shape) == (theirs.dtype, theirs.device, theirs.shape)


def other_numbers(x: Tensor) -> Tensor:
    return 1.5 * x.flip(-1) + 0.3


def sees_operators(graph: torch.fx.Graph) -> bool:
    return any("sinksort" in str(node.target) for node in graph.nodes)


@pytest.mark.parametrize("name", [*FUSED, *OTHERS])
@pytest.mark.parametrize("how", ["real", "pre_dispatch"])
def test_make_fx(name: str, how: str) -> None:
    read, x = OPERATORS[name], draw()
    traced = make_fx(read, tracing_mode="real", pre_dispatch=how == "pre_dispatch")(x)
    assert sees_operators(traced.graph) or name in OTHERS
    same(traced(other_numbers(x)), read(other_numbers(x)), 1e-6)


@pytest.mark.parametrize("name", ["soft_rank", "soft_topk"])
def test_make_fx_of_gradients(name: str) -> None:
    read, x = OPERATORS[name], draw()

    def slopes(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        total = sum(part.square().sum() for part in parts(read(x)))
        return torch.autograd.grad(total, x)[0]  # type: ignore[arg-type]

    traced = make_fx(slopes)(x)
    assert any("read_backward" in str(node.target) for node in traced.graph.nodes)
    same(traced(other_numbers(x)), slopes(other_numbers(x)), 1e-5)


def test_make_fx_with_sizes_as_symbols() -> None:
    read = OPERATORS["soft_rank"]
    traced = make_fx(read, tracing_mode="symbolic")(draw())
    for rows in (2, 9):
        same(traced(draw(rows=rows)), read(draw(rows=rows)), 1e-6)


@every
@pytest.mark.filterwarnings("ignore")
def test_jit_trace(name: str) -> None:
    """torch warns of what a trace holds fixed: the length of rows. Their number may be another."""
    read, x = TABLE[name], draw()
    traced = torch.jit.trace(lambda x: read(x), x, check_trace=False)
    for y in (other_numbers(x), draw(3, rows=7)):
        same(traced(y), read(y), 1e-5)


@pytest.mark.parametrize("n", [300, 3000])
@pytest.mark.filterwarnings("ignore")
def test_jit_trace_of_long_rows(n: int) -> None:
    x = draw(n=n)
    traced = torch.jit.trace(lambda x: sinksort.soft_rank(x), x, check_trace=False)
    same(traced(other_numbers(x)), sinksort.soft_rank(other_numbers(x)), 1e-5)


class Reading(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return parts(OPERATORS[self.name](x))


@pytest.mark.parametrize("name", ["soft_rank", "soft_topk", "soft_quantile", "soft_permutation", "Sinkhorn"])
@pytest.mark.parametrize("strict", [False, True])
def test_export(name: str, strict: bool) -> None:
    program = torch.export.export(Reading(name), (draw(),), strict=strict)
    assert sees_operators(program.graph)
    y = other_numbers(draw())
    same(program.module()(y), OPERATORS[name](y), 1e-6)


FIRST_USE = """
import builtins, math, sys
import torch, sinksort

before = builtins.max, builtins.min, math.pow
strict = {strict}

class Ranks(torch.nn.Module):
    def forward(self, x):
        return sinksort.soft_rank(x), sinksort.soft_quantile(x, 0.3)

x = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
assert "numba" not in sys.modules
program = torch.export.export(Ranks(), (x,), strict=strict)
for ours, theirs in zip(program.module()(x), Ranks()(x), strict=True):
    torch.testing.assert_close(ours, theirs)
torch.testing.assert_close(sinksort.soft_rank(x), sinksort.soft_rank(x, backend="torch"), rtol=0, atol=1e-4)
assert sinksort.last_backend() == "torch"
sinksort.soft_rank(x)
assert sinksort.last_backend() == "numba"
assert (builtins.max, builtins.min, math.pow) == before

import numba  # knows Python's own functions, not those that export had put in their place
assert numba.njit(lambda a, b: max(a, b) + min(a, b) + math.pow(a, b))(2.0, 3.0) == 13.0
"""


@pytest.mark.parametrize("strict", [False, True])
def test_export_as_the_first_use_in_a_process(strict: bool) -> None:
    script = FIRST_USE.format(strict=strict)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("options", [{"cost": sinksort.Huber(0.1)}, {"solver": sinksort.Sinkhorn(), "eps": 0.5}])
def test_compile_of_what_kernels_do_not_answer(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: sinksort.soft_rank(x, **options), fullgraph=True, backend="eager")
    same(compiled(draw()), sinksort.soft_rank(draw(), **options), 1e-6)


def test_compile_of_kernels_with_dynamic_shapes() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(OPERATORS["soft_topk_mask"], fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 8):
        x, y = draw(rows=rows).requires_grad_(), draw(rows=rows).requires_grad_()
        ours, theirs = compiled(x), sinksort.soft_topk_mask(y, 3)
        same(ours, theirs, 1e-6)
        ours.square().sum().backward()
        theirs.square().sum().backward()
        same(x.grad, y.grad, 1e-5)


# ---- what is remembered


def test_memos_hold_nothing_that_a_mode_made() -> None:
    made = []

    @modes.remembered(4)
    def three() -> Tensor:
        made.append(torch.zeros(3, dtype=torch.float32, device="cpu"))
        return made[-1]

    with FakeTensorMode(), torch.inference_mode():
        assert isinstance(three(), torch._subclasses.FakeTensor)
    with FlopCounterMode(display=False):
        three()
    torch.func.grad(lambda x: (x * three()).sum())(torch.ones(3, dtype=torch.float32))
    torch.jit.trace(lambda x: x + three(), torch.ones(3, dtype=torch.float32), check_trace=False)
    assert len(made) == 4
    with torch.inference_mode():
        kept = three()
    assert three() is kept
    assert type(kept) is Tensor
    assert not kept.is_inference()
    assert len(made) == 5


CALLS = {
    "make_fx": lambda see: make_fx(lambda x: see(x))(torch.ones(2)),
    "make_fx before dispatch": lambda see: make_fx(lambda x: see(x), pre_dispatch=True)(torch.ones(2)),
    "jit.trace": lambda see: torch.jit.trace(see, torch.ones(2), check_trace=False),
    "vmap": lambda see: torch.func.vmap(see)(torch.ones(2)),
    "func.grad": lambda see: torch.func.grad(lambda x: see(x).sum())(torch.ones(2)),
    "functionalize": lambda see: torch.func.functionalize(see)(torch.ones(2)),
    "jvp": lambda see: torch.func.jvp(see, (torch.ones(2),), (torch.ones(2),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_tracers_are_recognised(name: str) -> None:
    seen: list[tuple[bool, bool]] = []

    def see(x: Tensor) -> Tensor:
        seen.append((modes.ordinary(), modes.tracing()))
        return 2 * x

    assert (modes.ordinary(), modes.tracing()) == (True, False)
    CALLS[name](see)
    assert set(seen) == {(False, True)}
    assert (modes.ordinary(), modes.tracing()) == (True, False)


def test_what_only_watches_is_no_tracer() -> None:
    with FlopCounterMode(display=False):
        assert (modes.ordinary(), modes.tracing()) == (False, False)
    with torch.autograd.forward_ad.dual_level():
        assert (modes.ordinary(), modes.tracing()) == (False, False)
    for quiet in (torch.inference_mode(), torch.no_grad(), torch.autocast("cpu"), torch.device("meta")):
        with quiet:
            assert (modes.ordinary(), modes.tracing()) == (True, False)


def test_what_a_tracer_replaces_is_put_back_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    own, ours = builtins.max, functools.partial(builtins.max)
    monkeypatch.setattr(builtins, "max", ours)
    with modes.unpatched():
        inside = builtins.max
    assert inside is own
    assert builtins.max is ours


def test_a_warm_call_makes_no_more_calls_in_python_than_it_did() -> None:
    x, root, calls = draw(rows=128, n=100), str(Path(sinksort.__file__).parent), []
    for _ in range(3):
        sinksort.soft_rank(x)

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        sinksort.soft_rank(x)
    finally:
        sys.setprofile(None)
    assert sinksort.last_backend() == "numba"
    assert 1 < len(calls) <= 18, calls


# ---- devices that kernels have never seen


def test_kernels_are_not_used_under_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    reason = backends._missing("torch", "triton")
    assert reason == "its kernels have never run on AMD's devices, and this is torch for ROCm"
    assert backends._missing("torch", "numba") is None
    monkeypatch.setitem(backends._MISSING, "triton", reason)
    monkeypatch.setattr(memo, "_remembered", {})
    with pytest.raises(ValueError, match="backend='triton' cannot answer this call: its kernels have never run on AMD"):
        sinksort.soft_rank(draw(), backend="triton")


@pytest.mark.parametrize("kind", ["xpu", "mps"])
def test_on_other_devices_the_reference_answers_and_says_so_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    backends._said.clear()
    with caplog.at_level(logging.INFO, logger="sinksort"), FakeTensorMode():
        x = torch.empty(3, 12, dtype=torch.float32, device=kind)
        chosen = [backends.backend_for(x, Options()) for _ in range(2)]
    assert chosen == [None, None]
    assert [record.message for record in caplog.records] == [
        f"sinksort: fused kernels are not used, since there are none for {kind} devices"
    ]


@pytest.mark.parametrize("name", [name for name in TABLE if name != "Sinkhorn"])
def test_where_there_is_no_float64_none_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on MPS, whose tensors cannot be float64."""
    no_kernels(monkeypatch)
    x = draw()
    with Seen(refused=torch.float64):
        TABLE[name](x)


def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = sinksort.core.problem.wide_dtype  # type: ignore[attr-defined]
    monkeypatch.setattr(wide, "__code__", (lambda device: torch.float32).__code__)
    monkeypatch.setattr(backends, "_AUTO", {})
    monkeypatch.setattr(memo, "_remembered", {})


@pytest.mark.parametrize("eps", [1e-2, 1e-5])
def test_where_there_is_no_float64_none_is_made_for_long_rows(eps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    no_kernels(monkeypatch)
    x = draw(rows=1, n=20_000 if eps == 1e-2 else 2100)
    with Seen(refused=torch.float64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sinksort.soft_rank(x, eps=eps)
        sinksort.soft_sort(x, eps=eps, num_targets=9)


# ---- more than 2^31 numbers


def far_apart(x: Tensor, folder: Path) -> Tensor:
    """The same rows (3, n), 2^30 numbers apart in memory: the last begins where 32 bits do not reach."""
    step, n = 1 << 30, x.shape[1]
    sparse = torch.from_file(str(folder / "rows"), shared=True, size=2 * step + n, dtype=torch.float16, device="cpu")
    rows = sparse.as_strided((3, n), (step, 1))
    return rows.copy_(x)


FAR_APART: dict[str, tuple[int, Callable[[Tensor, str], Tensor]]] = {
    "ranks of short rows": (40, lambda x, backend: sinksort.soft_rank(x, backend=backend)),
    "ranks of long rows": (3000, lambda x, backend: sinksort.soft_rank(x, backend=backend)),
    "masks": (3000, lambda x, backend: sinksort.soft_topk_mask(x, 30, backend=backend)),
    "quantiles": (300, lambda x, backend: sinksort.soft_quantile(x, 0.3, backend=backend)),
}


#: Triton's interpreter takes a minute for the others, whose rows begin where those of ranks do.
BACKENDS = [(name, backend) for name in FAR_APART for backend in ("numba", "torch")]
BACKENDS += [("ranks of short rows", "triton"), ("ranks of long rows", "triton")]


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_rows_may_be_far_apart_in_memory(name: str, backend: str, tmp_path: Path) -> None:
    if backend == "triton":
        pytest.importorskip("triton", reason="Triton is made for Linux only")
    n, read = FAR_APART[name]
    x = draw(rows=3, n=n).half()
    same(read(far_apart(x, tmp_path), backend), read(x, backend))


def test_one_row_may_be_too_long_for_kernels() -> None:
    y = torch.zeros(1, 3, dtype=torch.float32)
    asked = [
        Request(torch.zeros(1, 1, dtype=torch.float32).expand(1, n), None, y, y, 1e-2, None) for n in (2**31 - 1, 2**31)
    ]
    assert refusal("triton", asked[0]) is None
    assert refusal("triton", asked[1]) == "its kernels take rows of fewer than 2^31 values, and a row has 2147483648"


# ---- copies and processes


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_copied_and_pickled_after_use(name: str) -> None:
    module, x = MODULES[name](), draw()
    expected = module(x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        same(twin(x), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_answers_as_its_parent() -> None:
    expected = {name: read(draw()) for name, read in TABLE.items()}
    child = os.fork()
    if child == 0:
        try:
            for name, read in TABLE.items():
                same(read(draw()), expected[name])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_rejected_rows_of_a_compiled_program_have_gradients() -> None:
    """Inside a registered operator autograd records nothing, and the reference needs it for such rows."""
    x = torch.randn(40, 9, generator=torch.Generator().manual_seed(0)).relu().requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return sinksort.soft_permutation(x, eps=1e-3)[..., 0].square().sum()

    (grad,) = torch.autograd.grad(torch.compile(loss, backend="eager", fullgraph=True)(x), x)
    (expected,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(grad, expected)
