"""LapSum from a checkout: sums of Laplace distributions. Its extensions are compiled from there into torch's cache.

Its package imports the CPU and the CUDA extension of a part together, and its setup builds both: here the one that is
needed is built and put where the package looks for it. As its setup does, ``.type()`` becomes ``.scalar_type()`` in a
copy for new torch.
"""

from __future__ import annotations

import importlib
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from contest.cells import K
from torch import Tensor
from torch.utils import cpp_extension

from . import Operator, Site, checkout
from .derived import of_ranks
from .isotonic import between

PARTS = ("rank", "sort", "topk")


def operator(variant: str, task: str, n: int, site: Site) -> Operator | None:  # noqa: ARG001 (one signature for all)
    part = {
        "quantile": "sort",
        "sort": "sort",
        "topk": "topk",
        **dict.fromkeys(("rank", "rank64", "spearman", "ndcg"), "rank"),
    }.get(task)
    if part is None:
        return None
    library = _part(part, site)

    def rank(x: Tensor, alpha: float) -> Any:
        return 1 + library.soft_rank(x, torch.tensor([alpha]))  # its backward fails if alpha is a number

    def quantile(x: Tensor, alpha: float) -> Any:
        return between(library.soft_sort(x, alpha), n)

    def topk(x: Tensor, alpha: float) -> Any:
        return library.soft_topk(x, x.new_full((len(x), 1), K), torch.tensor([alpha]))

    def sort(x: Tensor, alpha: float) -> Any:
        return library.soft_sort(x, alpha)

    return {**of_ranks(rank), "quantile": quantile, "sort": sort, "topk": topk}[task]


def _part(part: str, site: Site) -> Any:
    root = checkout(site, "LapSum", "lapsum")
    if not any(name.startswith("lapsum.") for name in sys.modules):
        with ThreadPoolExecutor() as pool:  # compiling takes a minute the first time
            built = pool.map(lambda one: _build(root / "lapsum" / one, f"soft_{one}", site.device), PARTS)
        sys.modules |= {
            f"lapsum.{one}.extension.soft_{one}_{site.device}": module for one, module in zip(PARTS, built, strict=True)
        }
        for source in (root / "lapsum").glob("*/cpu/*.cpp"):
            for device in ("cpu", "cuda"):
                name = f"lapsum.{source.parts[-3]}.extension.{source.stem}_{device}"
                sys.modules.setdefault(name, types.ModuleType(name))  # imported, but not called
        sys.path.insert(0, str(root))
    return importlib.import_module(f"lapsum.{part}")


def _build(folder: Path, stem: str, device: str) -> Any:
    files = [f"cpu/{stem}.cpp"] if device == "cpu" else [f"cuda/{stem}.cu", f"cuda/{stem}_cuda.cpp"]
    build = Path(torch.hub.get_dir()).parent / "lapsum" / f"{stem}_{device}_{torch.__version__}"
    build.mkdir(parents=True, exist_ok=True)
    (build / "lock").unlink(missing_ok=True)  # of a process that was killed: torch would wait for it for ever
    sources = []
    for file in files:
        text = (folder / file).read_text(encoding="utf-8").replace(".type()", ".scalar_type()")
        source = build / Path(file).name
        if not source.exists() or source.read_text(encoding="utf-8") != text:  # otherwise it is compiled already
            source.write_text(text, encoding="utf-8")
        sources.append(str(source))
    options = {"extra_cflags": ["-O2"], "extra_ldflags": ["-fopenmp"]}
    return cpp_extension.load(f"lapsum_{stem}_{device}", sources, build_directory=str(build), **options)
