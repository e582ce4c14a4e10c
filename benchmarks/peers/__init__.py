"""Who is compared: one small adapter for each library, none of whose code is here.

An adapter is a module, named by where it is imported from, with a function

    operator(variant, task, n, site) -> function of (x, parameter)

that imports what it needs, and whose answer has the conventions of this comparison: ranks from 1, ascending; a number
for each row of a quantile or a loss; a mask of the shape of x; a permutation whose rows are places of sorted values.
``None`` when the library does not have the task. Nothing is imported here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Operator = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Site:
    """Where a contestant runs: the device, and the checkouts that the user points to."""

    device: str
    checkouts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Knob:
    """The parameter that makes a peer soft: it grows with softness, between ``low`` and ``high``.

    It is tuned on a smaller cell where n is large: there it is multiplied by (n / n of the smaller cell)^power.
    """

    name: str
    low: float
    high: float
    power: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """One contestant. ``knob`` is None when it has our eps (the same relaxation), or nothing to tune."""

    name: str
    adapter: str
    variant: str = ""
    kind: Literal["ours", "floor", "paper", "peer"] = "peer"
    package: str = ""  #: what must be importable
    distribution: str = ""  #: whose version is reported, if it is not named as the package
    checkout: str = ""  #: name of the repository that the user must point to
    jax: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")
    knob: Knob | None = None
    truth: tuple[str, ...] = ()  #: tasks in which it poses our problem, so that our float64 answer is its truth too
    twin: bool = False  #: whether the same call in float64 is its truth
    square: bool = False  #: whether it holds a matrix, n by n, whatever the task

    def missing(self, site: Site) -> str | None:
        """Why it cannot take part, or None."""
        if site.device not in self.devices:
            return f"not for {site.device}"
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"not installed ({self.package})"
        if self.checkout and self.checkout not in site.checkouts:
            return f"no checkout given (--checkout {self.checkout}=PATH)"
        return None

    def version(self, site: Site) -> str:
        """Of the distribution, or the commit of the checkout."""
        if self.checkout:
            asked = ["git", "-C", site.checkouts[self.checkout], "rev-parse", "--short", "HEAD"]
            found = subprocess.run(asked, capture_output=True, text=True, check=False)
            return found.stdout.strip() or "a checkout without git"
        if self.kind == "ours":  # perhaps from a folder, not installed
            return str(importlib.import_module(self.package).__version__)
        name = self.distribution or self.package
        return importlib.metadata.version(name) if name else ""

    def operator(self, task: str, n: int, site: Site) -> Operator | None:
        found: Operator | None = importlib.import_module(self.adapter).operator(self.variant, task, n, site)
        return found


def checkout(site: Site, name: str, inside: str = "") -> Path:
    """The folder to import from in the checkout that the user points to."""
    path = Path(site.checkouts[name]).expanduser() / inside
    if not path.is_dir():
        raise FileNotFoundError(f"--checkout {name}: {path} is not a folder; point to a clone of the repository")
    return path


_ALL = (
    "rank", "quantile", "topk", "sort", "permutation", "rank64", "rank_weights", "rank_eps", "rank_cost1",
    "rank_cost1.5", "sort_with", "normalize", "spearman", "ndcg",
)  # fmt: skip
_OTT = ("rank", "quantile", "topk", "sort", "permutation", "sort_with", "normalize")
_SHRINKS, _GROWS = {"rank": -1.0, "quantile": 1.0}, {"rank": 1.0, "quantile": 1.0}
_TEMPERATURE = Knob("softness", 1e-6, 1e3)
_PERMUTAHEDRON = Knob("strength", 1e-8, 1e8, _SHRINKS)


def _relaxed(library: str, package: str, *, jax: bool) -> list[Peer]:
    """The four relaxations that SoftTorch and SoftJAX share."""
    knobs = {
        "softsort": _TEMPERATURE,
        "neuralsort": Knob("softness", 1e-6, 1e5, _GROWS),
        "fast_soft_sort": Knob("softness", 1e-6, 1e6),
        "ot": None,
    }
    return [
        Peer(
            f"{library} {method}", f"peers.{package}", method, package=package, jax=jax, knob=knob,
            truth=("rank",) if method == "ot" else (), twin=not jax and method != "ot",
            square=method == "neuralsort",
        )
        for method, knob in knobs.items()
    ]  # fmt: skip


PEERS: tuple[Peer, ...] = (
    Peer("copy", "peers.floors", "copy", kind="floor", package="torch"),
    Peer("hard", "peers.floors", "hard", kind="floor", package="torch"),
    Peer("sinksort", "peers.ours", kind="ours", package="sinksort", truth=_ALL),
    Peer("sinksort (torch)", "peers.ours", "torch", kind="ours", package="sinksort", truth=_ALL),
    Peer(
        "sinksort (CUDA graph)", "peers.ours", "graph", kind="ours", package="sinksort", devices=("cuda",),
        truth=_ALL,
    ),
    Peer("paper's method", "peers.papers", kind="paper", package="torch", truth=_ALL),
    Peer(
        "OTT (default)", "peers.ott_jax", "default", package="ott", distribution="ott-jax", jax=True,
        truth=_OTT,
    ),
    Peer(
        "OTT (unrolled)", "peers.ott_jax", "unrolled", package="ott", distribution="ott-jax", jax=True,
        truth=_OTT,
    ),
    Peer("torchsort", "peers.isotonic", "torchsort l2", package="torchsort", knob=_PERMUTAHEDRON, twin=True),
    Peer(
        "torchsort (kl)", "peers.isotonic", "torchsort kl", package="torchsort", knob=Knob("strength", 1e-8, 1e8),
        twin=True,
    ),
    Peer(
        "fast-soft-sort", "peers.isotonic", "fast-soft-sort", package="torch", checkout="fast-soft-sort",
        devices=("cpu",), knob=_PERMUTAHEDRON, twin=True,
    ),
    Peer("LapSum", "peers.lapsum", package="torch", checkout="LapSum", knob=Knob("alpha", 1e-5, 1e3), twin=True),
    Peer(
        "diffsort", "peers.matrices", "diffsort", package="diffsort", knob=Knob("1 / steepness", 1e-4, 1e3),
        twin=True, square=True,
    ),
    Peer(
        "NeuralSort", "peers.matrices", "neuralsort", package="torch", checkout="neuralsort", devices=("cuda",),
        knob=Knob("tau", 1e-6, 1e5, _GROWS), square=True,
    ),
    Peer(
        "NeuralSort (as in SoftSort)", "peers.matrices", "neuralsort in softsort", package="torch", checkout="softsort",
        knob=Knob("tau", 1e-6, 1e5, _GROWS), square=True,
    ),
    Peer(
        "SoftSort", "peers.matrices", "softsort", package="torch", checkout="softsort",
        knob=Knob("tau", 1e-6, 1e3), twin=True, square=True,
    ),
    *_relaxed("SoftTorch", "softtorch", jax=False),
    *_relaxed("SoftJAX", "softjax", jax=True),
)  # fmt: skip
