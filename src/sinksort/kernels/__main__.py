"""Which code answers a call on the CPU: ``python -m sinksort.kernels``.

    python -m sinksort.kernels                              ordinary calls, a line each
    python -m sinksort.kernels soft_rank 128x100            one call: every kernel that it enters, and its file
    python -m sinksort.kernels soft_sort 4x1000 --eps 1e-3 --dtype float64

The calls are made, forward and backward, on random rows. What is printed is what ran.
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

from . import dispatch

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
    if dispatch.missing("numba") is not None:
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


def main(words: list[str] | None = None) -> None:
    """Print the table, or the kernels of one call."""
    parser = argparse.ArgumentParser(prog="python -m sinksort.kernels", description="Which kernels answer a call.")
    parser.add_argument("operator", nargs="?", help="such as soft_rank; without it, a table of ordinary calls")
    parser.add_argument("shape", nargs="?", default="128x100", help="of x, such as 128x100")
    parser.add_argument("--eps", type=float)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cost", type=float)
    parser.add_argument("--weights", action="store_true", help="values have weights")
    given = parser.parse_args(words)
    reason = dispatch.missing("numba")
    if reason is not None:
        print(f"There are no kernels for the CPU here: {reason}. The reference answers every call.")
        return
    if given.operator is None:
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
