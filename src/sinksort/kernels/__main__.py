"""Which code answers a call: ``python -m sinksort.kernels``.

    python -m sinksort.kernels                              the table by which calls are sent to kernels
    python -m sinksort.kernels calls                        ordinary calls on the CPU, a line each
    python -m sinksort.kernels soft_rank 128x100            one call: every kernel that it enters, and its file
    python -m sinksort.kernels soft_sort 4x1000 --eps 1e-3 --dtype float64

Calls are made, forward and backward, on random rows, and what is printed is what ran. The table is ``dispatch``.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import sinksort

from . import backends, dispatch

#: The calls of the table: operator, shapes, and what differs from a plain call.
TABLE: tuple[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]], ...] = (
    ("soft_rank", ((128, 10), (128, 100), (4, 1000), (1, 40_000)), {}),
    ("soft_rank", ((128, 100), (4, 1000), (1, 40_000)), {"eps": 1e-3}),
    ("soft_rank", ((128, 100),), {"weights": True}),
    ("soft_rank", ((16, 100),), {"dtype": "float64"}),
    ("soft_rank", ((16, 100),), {"cost": 1}),
    ("soft_sort", ((128, 10), (128, 100), (4, 1000), (1, 40_000)), {}),
    ("soft_sort", ((16, 100),), {"dtype": "float64"}),
    ("soft_topk_mask", ((128, 100), (1, 40_000)), {}),
    ("soft_median", ((128, 100), (1, 40_000)), {}),
    ("soft_topk", ((128, 100),), {}),
    ("soft_permutation", ((128, 100),), {}),
    ("transport", ((16, 100),), {}),
)


class Ran(NamedTuple):
    """What a call entered."""

    backend: str
    forward: list[str]  #: kernels as "cpu/lanes/band_rows.py: pull_band", in their order
    backward: list[str]

    @property
    def families(self) -> str:
        """The folders of these kernels, or the reference."""
        found = dict.fromkeys(name.rpartition("/")[0] for name in self.forward + self.backward)
        return ", ".join(found) or "reference"


class _Entered(dict[Any, Any]):
    """The table of entered kernels of ``engine.threads``, which notes what is looked up."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        super().__init__(entries)
        self.names: list[str] = []

    def get(self, kernel: Any, default: Any = None) -> Any:
        function = getattr(kernel, "py_func", kernel)
        file = Path(function.__code__.co_filename).relative_to(Path(__file__).parent)
        name = f"{file.as_posix()}: {function.__name__}"
        if name not in self.names:
            self.names.append(name)
        return super().get(kernel, default)


def explain(operator: str, shape: tuple[int, ...], options: dict[str, Any]) -> Ran:
    """Make a call, and say which kernels it enters forward and backward."""
    if backends.missing("numba") is not None:
        return Ran("torch", [], [])
    threads: Any = importlib.import_module(f"{__package__}.cpu.engine.threads")
    options = dict(options)
    dtype = getattr(torch, options.pop("dtype", "float32"))
    numbers = torch.Generator("cpu").manual_seed(0)
    x = torch.randn(shape, generator=numbers, dtype=torch.float64, device="cpu").to(dtype).requires_grad_()
    if options.pop("weights", False):
        options["weights"] = torch.rand(shape, generator=numbers, dtype=torch.float64, device="cpu").to(dtype) + 0.1
    before, threads._entries = threads._entries, (entered := _Entered(threads._entries))
    try:
        out = _called(operator, x, options)
        backend, forward = sinksort.last_backend(), entered.names[:]
        entered.names.clear()
        out.backward(torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape))
        return Ran(backend, forward, entered.names)
    finally:
        before.update(entered)
        threads._entries = before


def _called(operator: str, x: Tensor, options: dict[str, Any]) -> Tensor:
    k = max(1, min(5, x.shape[-1] - 1))
    special: dict[str, Callable[[], Tensor]] = {
        "soft_topk": lambda: sinksort.soft_topk(x, k, **options).values,
        "soft_topk_mask": lambda: sinksort.soft_topk_mask(x, k, **options),
        "transport": lambda: sinksort.transport(x, **options).ranks(),
    }
    made: Tensor = special[operator]() if operator in special else getattr(sinksort, operator)(x, **options)
    return made


def table() -> str:
    """The families of ordinary calls, as a table in Markdown."""
    lines = ["| call | rows x values | kernels |", "|---|---|---|"]
    for operator, shapes, options in TABLE:
        said = ", ".join(name if value is True else f"{name}={value}" for name, value in options.items())
        for shape in shapes:
            families = explain(operator, shape, options).families
            lines.append(f"| `{operator}`{', ' + said if said else ''} | {shape[0]} x {shape[-1]} | {families} |")
    return "\n".join(lines)


_READS = {"pull": "ranks", "push": "sorts", "logs": "log-plans"}  #: an operator of each read, see ``contract``
#: A fact in words: what a number is called, and what is said where a fact holds, and where it does not.
_NUMBERS = {
    "targets": "K", "all_targets": "m", "pairs": "n K", "all_pairs": "n m", "work": "n K^2", "spread": "n^2 eps",
    "size": "max(n, m)",
}  # fmt: skip
_WORDS = {
    "equal": ("equal targets or nodes", "targets one by one"),
    "every": ("K = m", "K < m"),
    "weighted": ("weights", "no weights"),
    "quantile": ("a quantile", "no quantile"),
    "double": ("target weights in float64", "target weights in float32"),
    "squashed": ("a squash", "squash=None"),
    "square": ("K = n", "K is not n"),
    "ruled": ("a rule", "no rule"),
    "shared": ("targets shared by all rows", "targets for each row"),
    "one_eps": ("one eps", "several eps"),
    "named": ("backend named", "backend='auto'"),
    "mask": ("a top-k mask", "no top-k mask"),
    "selecting": ("a quantile or mask", "no quantile or mask"),
    "uneven": ("targets or their weights given", "default targets"),
    "light": ("a weight below 1e-5 of the largest", "no such weight"),
    "empty": ("a target without weight", "no target without weight"),
    "padded": ("padding", "no padding"),
    "payload": ("averages of other numbers", "averages of ranks"),
    "traced": ("inside a compiler", "outside of compilers"),
}


def rules() -> str:
    """The rows of ``dispatch``, as a table in Markdown for each device. In each the first row that fits wins."""
    lines = []
    for name, where in (("numba", "CPU"), ("triton", "GPU")):
        lines += [f"**{where}**", "", "| call | if | then |", "|---|---|---|"]
        for row in (*dispatch.REFUSED[name], *dispatch.KERNELS[name]):
            lines.append(_line(row, ", ".join(_READS[read] for read in row.reads.split())))
        lines += [_line(row, f"rejected rows of {_READS[row.reads]}") for row in dispatch.REJECTED[name]]
        lines += [_line(row, dispatch.PLAN) for row in dispatch.PLANS[name]]
        lines.append("")
    return "\n".join(lines).rstrip()


def _line(row: dispatch.Row, call: str) -> str:
    return f"| {call} | {', '.join(_limit(*limit) for limit in row.limits) or 'always'} | {row.answer} |"


def _limit(name: str, least: float | None, below: float | None) -> str:
    """One condition of a row in words."""
    if name in _WORDS:
        return _WORDS[name][0 if below is None else 1]
    fact = _NUMBERS.get(name, name)
    if name in ("eps", "spread"):
        return f"{fact} >= {least:g}" if below is None else f"{fact} < {float(f'{below:.3g}'):g}"
    most = None if below is None else int(below) - 1
    if least is None:
        return f"{fact} <= {most:,}"
    if most is None:
        return f"{fact} >= {least:,}"
    return f"{fact} = {most:,}" if least == most else f"{least:,} <= {fact} <= {most:,}"


def main(words: list[str] | None = None) -> None:
    """Print the table, or the kernels of one call."""
    parser = argparse.ArgumentParser(prog="python -m sinksort.kernels", description="Which kernels answer a call.")
    parser.add_argument("operator", nargs="?", help="such as soft_rank, or calls; without it, the table of rules")
    parser.add_argument("shape", nargs="?", default="128x100", help="of x, such as 128x100")
    parser.add_argument("--eps", type=float)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cost", type=float)
    parser.add_argument("--weights", action="store_true", help="values have weights")
    given = parser.parse_args(words)
    if given.operator is None:
        print(rules())
        return
    reason = backends.missing("numba")
    if reason is not None:
        print(f"There are no kernels for the CPU here: {reason}. The reference answers every call.")
        return
    if given.operator == "calls":
        print(table())
        return
    options = {"dtype": given.dtype, "eps": given.eps, "cost": given.cost, "weights": given.weights or None}
    shape = tuple(int(size) for size in given.shape.split("x"))
    ran = explain(given.operator, shape, {name: value for name, value in options.items() if value is not None})
    print(f"{given.operator}, {given.shape}: backend {ran.backend}")
    for what, names in (("forward", ran.forward), ("backward", ran.backward)):
        print(f"  {what}:")
        for name in names or ["the reference"]:
            print(f"    {name}")


if __name__ == "__main__":
    main()
