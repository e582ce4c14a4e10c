"""Relaxations that hold an n by n matrix: sorting networks (diffsort), NeuralSort and SoftSort (from checkouts).

The matrix P sends x to its sorted values. A soft rank averages the places by how much of a value each holds:
columns of P, normalised where they do not sum to one. Tops and quantiles are read from its rows.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from contest.cells import K
from torch import Tensor

from . import Operator, Site, checkout
from .derived import beside, ndcg_of_permutation, of_ranks
from .isotonic import between


def operator(variant: str, task: str, n: int, site: Site) -> Operator | None:
    matrix, descending = _matrix(variant, n, site)

    def rank(x: Tensor, parameter: float) -> Tensor:
        P = matrix(x, parameter)
        places = torch.arange(1, n + 1, device=x.device, dtype=x.dtype)
        places = places.flip(0) if descending else places
        return (places @ P) / P.sum(-2)

    def quantile(x: Tensor, parameter: float) -> Any:
        ordered = (matrix(x, parameter) @ x.unsqueeze(-1)).squeeze(-1)
        return between(ordered.flip(-1) if descending else ordered, n)

    def topk(x: Tensor, parameter: float) -> Tensor:
        P = matrix(x, parameter)
        return (P[..., :K, :] if descending else P[..., -K:, :]).sum(-2)

    def carried(values: Tensor, x: Tensor, parameter: float) -> Tensor:
        ordered = (matrix(x, parameter) @ values.unsqueeze(-1)).squeeze(-1)
        return ordered.flip(-1) if descending else ordered

    def permutation(x: Tensor, parameter: float) -> Tensor:
        P = matrix(x, parameter)
        return P.flip(-2) if descending else P

    tasks: dict[str, Operator] = {
        **of_ranks(rank),
        "quantile": quantile,
        "topk": topk,
        "sort": lambda x, parameter: carried(x, x, parameter),
        "sort_with": lambda x, parameter: carried(beside("sort_with", x), x, parameter),
        "permutation": permutation,
        "ndcg": lambda x, parameter: ndcg_of_permutation(permutation(x, parameter), x),
    }
    return tasks.get(task)


def _matrix(variant: str, n: int, site: Site) -> tuple[Operator, bool]:
    """A function from x and a parameter to P (rows, places, values), and whether places descend."""
    if variant == "diffsort":
        from diffsort import DiffSortNet

        # Bitonic has log^2 n layers where odd-even has n; its matrices are made once, and are float32.
        net = DiffSortNet("bitonic" if n > 10 else "odd_even", n, device=site.device)

        def network(x: Tensor, softness: float) -> Tensor:
            net.steepness = 1 / softness
            if x.dtype == torch.float64:
                net.sorting_network = [tuple(part.double() for part in layer) for layer in net.sorting_network]
            P: Tensor = net(x)[1]
            return P.transpose(-1, -2)

        return network, False
    if variant == "softsort":
        layer = _load(checkout(site, "softsort", "pytorch") / "softsort.py").SoftSort
        return lambda x, tau: layer(tau=tau)(x), True
    if variant == "neuralsort in softsort":
        layer = _load(checkout(site, "softsort", "pytorch") / "neuralsort_cpu_or_gpu.py").NeuralSort
        return lambda x, tau: layer(tau=tau, device=site.device)(x), True
    layer = _load(checkout(site, "neuralsort", "pytorch") / "neuralsort.py").NeuralSort
    return lambda x, tau: layer(tau=tau)(x), True


def _load(path: Path) -> Any:
    """A file of a checkout as a module, without the rest of its folder (``utils`` and the like) on the path."""
    spec = importlib.util.spec_from_file_location(f"checkout_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{path} is not there; point --checkout to a clone of the repository")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
