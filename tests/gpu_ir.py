"""The Triton kernels that calls launch, as Triton's own IR for an H100, made without a GPU.

    python -m tests.gpu_ir                          one line a kernel, and whether its threads agree: status 1 if not
    python -m tests.gpu_ir --save FOLDER            the IR of each kernel in a file of its own
    python -m tests.gpu_ir --compare FOLDER         which kernels differ from those that were saved: status 1 if any
    python -m tests.gpu_ir --compare FOLDER --ptx   the same, and whether the PTX of these differs too
    python -m tests.gpu_ir --only 'ranks of 100'    cases whose name contains this

What is saved has no names of functions and values and no marks of lines in it, so that renaming a kernel or moving it
changes nothing. Run this before and after a change that is not to change a kernel. Every kernel that the package
launches has to be reached by a case: the status is 1 if one is not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend

from sinksort.kernels.contract import Request
from sinksort.kernels.gpu import long
from sinksort.kernels.gpu import rows as triton_rows
from sinksort.kernels.gpu.engine import launch as triton_launch
from sinksort.kernels.gpu.exact import pieces_launch
from sinksort.kernels.targets import default_targets
from tests.sources import triton_entry_points

_MULTIPROCESSORS = 132  #: of an H100
_MANY = 32_769  #: values, of as many rows as fill a GPU more than once
_TARGET = GPUTarget("cuda", 90, 32)


class Kernel(NamedTuple):
    """A kernel as one case launches it."""

    name: str  #: of its module and function
    ir: str
    warps: int
    case: str = ""
    number: int = 0  #: of the launch in the case

    @property
    def file(self) -> str:
        """Where its IR is saved: by the case, since a kernel may get another name."""
        return re.sub(r"\W+", "_", f"{self.case} {self.number}") + ".ttir"


class _Driver(DriverBase):  # type: ignore[misc]
    """A GPU that is not there: only its kind is asked for."""

    def __init__(self) -> None:
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda _device: 0

    def get_current_target(self) -> GPUTarget:
        return _TARGET

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> None:
        return None

    @staticmethod
    def is_active() -> bool:
        return True


class _Made(Exception):
    """Carries the IR out of the compiler."""


_STAGES = CUDABackend.add_stages


def _stop_after(stage: str) -> None:
    """Make the compiler go as far as a stage, whose result is then raised."""

    def add_stages(self: Any, stages: dict[str, Any], *args: Any) -> None:
        _STAGES(self, stages, *args)
        last = stages[stage]

        def stop(source: Any, metadata: Any) -> None:
            raise _Made(str(last(source, metadata)))

        for later in list(stages)[list(stages).index(stage) :]:
            del stages[later]
        stages[stage] = stop

    CUDABackend.add_stages = add_stages


def _watch() -> list[Kernel]:
    """Make launches compile up to Triton's IR and no further. Returns the list to which they add what they made."""
    kernels: list[Kernel] = []
    _stop_after("ttir")

    def make(self: Any, kernel: Any, programs: int, args: Any, constants: Any, options: Any) -> None:
        options = {name: value for name, value in options.items() if name != "launch_cooperative_grid"}
        try:
            kernel.warmup(*args, grid=(programs,), **constants, **options, enable_fp_fusion=True)
        except _Made as made:
            name = f"{kernel.fn.__module__.rsplit('.', 1)[-1]}.{kernel.fn.__name__}"
            kernels.append(Kernel(name, str(made), options["num_warps"]))
        self._made.append((None, programs, args, []))

    triton_launch.Recorder._make = make
    triton_launch.compile_together = lambda _planned: None
    pieces_launch.programs_of = lambda _device: _MULTIPROCESSORS
    triton.runtime.driver.set_active(_Driver())
    return kernels


def _request(
    n: int, K: int, eps: float, *, weighted: bool = False, rows: int = 4, squash: str | None = "sigmoid"
) -> Request:
    a = torch.full((rows, n), 1.0 / n) if weighted else None
    return Request(torch.zeros(rows, n), a, torch.linspace(0, 1, K)[None], torch.full((1, K), 1.0 / K), eps, squash)


def _ranks(n: int, nodes: int, eps: float | Tensor = 1e-2, **other: Any) -> tuple[Request, Tensor]:
    """Ranks by way of a rule; ``other``: rows, and options of an ask that are not ordinary."""
    at = default_targets(n, n, nodes, False, torch.device("cpu"))
    x = torch.zeros(other.pop("rows", 4), n, dtype=other.pop("dtype", torch.float32))
    request = Request(x, None, at.y, at.b, eps, "sigmoid", at.m, at.last)
    return request._replace(**other), at.phi


def _both_ways(kernels: Any, request: Request, phi: Tensor | None) -> None:
    if phi is None:
        answer = kernels.push(request)
        kernels.push_backward(request, answer.state, torch.zeros_like(answer.out))
    else:
        answer = kernels.pull(request, phi)
        kernels.pull_backward(request, phi, answer.state, torch.zeros_like(answer.out))


def _logs() -> None:
    request = _request(20, 20, 1e-2)
    answer = triton_rows.logs(request)
    triton_rows.logs_backward(request, answer.state, torch.zeros_like(answer.out))


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Calls that launch every kernel, and the sizes at which one kernel becomes another."""
    for K in (2, 3, 4):
        for n, eps, weighted in ((20, 1e-2, False), (100, 1e-3, True), (5000, 1e-2, False), (100_000, 1e-2, False)):
            if K == 3 and n == 100:
                continue
            request = _request(n, K, eps, weighted=weighted, rows=1 if n > 5000 else 4)
            kind = f"{K} targets, {n} values, eps {eps:g}{', weights' if weighted else ''}"
            yield f"averages of {kind}", lambda a=request: _both_ways(long, a, None)
            if K < 4:
                yield f"shares of {kind}", lambda a=request: _both_ways(long, a, a.y)
    for n in (10, 32, 100):
        request = _request(n, n, 1e-2)
        yield f"ranks of {n} values", lambda a=request: _both_ways(triton_rows, a, a.y)
        yield f"sort of {n} values", lambda a=request: _both_ways(triton_rows, a, None)
    yield "sort of 500 values to 5", lambda: _both_ways(triton_rows, _request(500, 5, 1e-2), None)
    yield "sort of 300 values to 200", lambda: _both_ways(triton_rows, _request(300, 200, 1e-2), None)
    yield "ranks of 200 values", lambda: _both_ways(triton_rows, *_ranks(200, 64))
    yield "ranks of 1000 values", lambda: _both_ways(triton_rows, *_ranks(1000, 40))
    yield "ranks of 10000 values", lambda: _both_ways(long, *_ranks(10_000, 40))
    yield "ranks of a million values", lambda: _both_ways(long, *_ranks(1_000_000, 40, rows=1))
    for K in (2, 3):  # more values in all rows than programs share
        request = _request(_MANY, K, 1e-2, rows=512)
        yield f"averages of {K} targets, many long rows", lambda a=request: _both_ways(long, a, None)
    yield "logarithms of plans", _logs


def variants() -> Iterator[tuple[str, Callable[[], None]]]:
    """The same kernels with other constants."""
    for what, other in (
        ("weights", lambda n: {"a": torch.full((4, n), 1.0 / n)}),
        ("arctan", lambda _: {"squash": "arctan"}),
        ("no squash", lambda _: {"squash": None}),
        ("bfloat16", lambda _: {"dtype": torch.bfloat16}),
        ("an eps for each row", lambda _: {"eps": torch.full((4,), 1e-2)}),
    ):
        for kernels, n, nodes in ((triton_rows, 200, 64), (triton_rows, 1000, 40), (long, 10_000, 40)):
            posed = _ranks(n, nodes, **other(n))
            yield f"ranks of {n} values, {what}", lambda k=kernels, p=posed: _both_ways(k, *p)
    for nodes in (56, 112):
        yield f"ranks of 1000 values, {nodes} nodes", lambda m=nodes: _both_ways(triton_rows, *_ranks(1000, m))
    for squash in ("arctan", None):
        for n in (10, 100):
            request = _request(n, n, 1e-2, squash=squash, weighted=True)
            yield f"ranks of {n} values, {squash}, weights", lambda a=request: _both_ways(triton_rows, a, a.y)
            yield f"sort of {n} values, {squash}, weights", lambda a=request: _both_ways(triton_rows, a, None)


def made(only: str = "", *, every: bool) -> Iterator[Kernel]:
    """Every kernel of every case, its IR as Triton prints it; with ``every`` the variants too."""
    kernels = _watch()
    for case, launch in (*cases(), *(variants() if every else ())):
        if only not in case:
            continue
        kernels.clear()
        launch()
        for i, kernel in enumerate(kernels):
            yield kernel._replace(case=case, number=i)


def plain(ir: str) -> str:
    """IR without names and line marks: values are numbered in the order in which they are met."""
    lines = (re.sub(r"\s*loc\([^()]*(?:\([^()]*\))*[^()]*\)", "", line) for line in ir.splitlines())
    text = "\n".join(line for line in lines if line.strip() and not line.startswith("#loc"))
    numbers: dict[str, str] = {}
    text = re.sub(r"%[\w$.-]+", lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), text)
    return re.sub(r"@\w+", "@kernel", text) + "\n"


def products_in_sums(ir: str) -> list[str]:
    """Sums over threads of numbers that are products, by name, in loops that go on until values say that all is done.

    Threads that are not to agree about such a sum to the last bit may not agree when to leave the loop: ``triton_sums``
    says why, and how products are made numbers. A tile of four axes has its first two in one thread, see
    ``triton_held_tiles``: sums over these may be of products. Elementwise steps that a compiler can join with a product
    are looked through.
    """
    lines, found = ir.splitlines(), []
    made: dict[
        str, list[tuple[int, str, list[str]]]
    ] = {}  # by name, which is used again in other loops: where, by what
    for i, line in enumerate(lines):
        if match := re.match(r"\s*(%\w+)(?::\d+)? = \"?([\w.]+)\"?(.*)", line):
            made.setdefault(match[1], []).append((i, match[2], re.findall(r"%\w+", match[3])))

    def maker(name: str, before: int) -> tuple[int, str, list[str]]:
        return max((m for m in made.get(name, []) if m[0] < before), default=(0, "", []))

    for i, line in enumerate(lines):
        match = re.match(r'\s*(%\w+)(?::\d+)? = "tt\.reduce"\((.*?)\) <\{axis = (\d+)', line)
        if not match or not _in_loop(lines, i):
            continue
        end = next(k for k in range(i, len(lines)) if "tt.reduce.return" in lines[k])
        if not any("arith.addf" in inside for inside in lines[i:end]):
            continue
        shapes = next(lines[k] for k in range(end, len(lines)) if "}) :" in lines[k])
        if re.search(r"tensor<\d+x\d+x\d+x\d+x", shapes) and int(match[3]) < 2:
            continue
        for name in re.findall(r"%\w+", match[2]):
            at, operation, operands = maker(name, i)
            while operation in ("arith.negf", "tt.reshape", "tt.trans", "tt.broadcast", "tt.expand_dims"):
                at, operation, operands = maker(operands[0], at)
            if operation == "arith.mulf":
                found.append(f"{match[1]} of {name}")
    return found


def _in_loop(lines: list[str], i: int) -> bool:
    """Whether a line is inside a loop without a fixed number of turns, by its indentation."""
    depth = len(lines[i]) - len(lines[i].lstrip())
    for line in reversed(lines[:i]):
        indent = len(line) - len(line.lstrip())
        if line.strip() and not line.lstrip().startswith("^") and indent < depth:
            if "scf.while" in line or line.strip().startswith("} do {"):
                return True
            depth = indent
    return False


def ptx(ir: str, warps: int) -> str:
    """Of IR as it is saved, without what marks of lines leave in it."""
    _stop_after("ptx")
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
            file.write(ir)
            file.flush()
            options = {"num_warps": warps, "enable_fp_fusion": True}
            triton.compile(file.name, target=_TARGET, options=options)
    except _Made as made:
        code = re.split(r"^\s*\.section\s+\.debug", str(made), maxsplit=1, flags=re.MULTILINE)[0]
        return "\n".join(line for line in code.splitlines() if not re.match(r"\s*(\.loc|\.file|//|\$L__tmp)", line))
    finally:
        _stop_after("ttir")
    raise AssertionError("Triton's cache had the kernel: TRITON_ALWAYS_COMPILE=1 is not heeded")


class Saved:
    """A folder of IR, and a file that says which kernel each was."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, folder / "index.json"
        text = self.index.read_text(encoding="utf-8") if self.index.exists() else "{}"
        self.kernels: dict[str, Any] = json.loads(text)

    def put(self, kernel: Kernel) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / kernel.file).write_text(plain(kernel.ir), encoding="utf-8")
        self.kernels[kernel.file] = {"name": kernel.name, "warps": kernel.warps}
        self.index.write_text(json.dumps(self.kernels, indent=1) + "\n", encoding="utf-8")

    def difference(self, kernel: Kernel, *, with_ptx: bool) -> str | None:
        """In words, or None."""
        about = self.kernels.get(kernel.file)
        if about is None:
            return "is new"
        before, now = (self.folder / kernel.file).read_text(encoding="utf-8"), plain(kernel.ir)
        same_warps = about["warps"] == kernel.warps
        if before == now and same_warps:
            return None
        what = "differs" if same_warps else f"has {kernel.warps} warps and had {about['warps']}"
        if with_ptx:
            same = ptx(before, about["warps"]) == ptx(now, kernel.warps)
            what += ", the PTX is the same" if same else ", and so does the PTX"
        return what


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--ptx", action="store_true", help="of kernels whose IR differs: a minute each for the largest")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # nothing is taken from a cache
    saved, before = (Saved(folder) if folder else None for folder in (options.save, options.compare))
    differ = unequal = 0
    missing, gone = set(triton_entry_points()), set(before.kernels if before else ())
    for kernel in made(options.only, every=bool(saved or before)):
        missing.discard(kernel.name)
        gone.discard(kernel.file)
        said = f"{len(kernel.ir.splitlines())} lines"
        if products := products_in_sums(kernel.ir):
            unequal, said = unequal + 1, f"{said}; threads may not agree about {', '.join(products)}"
        if saved:
            saved.put(kernel)
        if before:
            difference = before.difference(kernel, with_ptx=options.ptx)
            differ += difference is not None
            said += f"; {difference or 'same'}"
        print(f"{kernel.case}: {kernel.number} {kernel.name}: {said}", flush=True)
    if options.only:
        missing, gone = set(), set()
    for name in sorted(missing):
        print(f"no case launches {name}")
    for file in sorted(gone):
        print(f"{file} was launched and is not any more")
    if before:
        print(f"{differ + len(gone)} launches differ")
    return 1 if differ or unequal or missing or gone else 0


if __name__ == "__main__":
    sys.exit(main())
