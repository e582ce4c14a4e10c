"""The table: which kernels answer a call. The first row that fits wins.

Every limit on the number of values, of targets, or on eps that decides who answers stands here, and nowhere else. A row
is data: names of facts with the least and the largest number that they may have. So the same rows decide, are printed
(``python -m sinksort.kernels``, docs/guides/backends.md) and are frozen by a test.

A call goes through three parts, and the first two are one list for the reader:

    REFUSED   calls that kernels in single precision refuse, because digits would be lost; plans in double precision
              (``PLAN``) answer them. The request decides, and what the caller said.
    KERNELS   the kernels of all other calls. The request alone decides, so the backward pass finds the same row.
    REJECTED  rows that these kernels reject, and which kernels try them again before the reference does.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..core.modes import tracing
from .contract import LogPlanKernels, RejectedRowKernels, Request

#: Answers that are no kernels.
PLAN = "a plan in double precision"
ONE_BY_ONE = "as if the targets were given one by one"
REJECT_ALL = "no kernel: all rows are rejected"
#: Answers: a family, and which of its solvers.
TWO, THRESHOLDS, THRESHOLDS_IN_PIECES = "cpu/thresholds, two", "cpu/thresholds", "cpu/thresholds, in pieces"
BAND, LANES, SORT = "cpu/lanes, band", "cpu/lanes", "cpu/sort"
ROW, ROW_OR_PIECES, ROW_IN_PIECES = "cpu/row", "cpu/row, or in pieces", "cpu/row, in pieces"
REGISTERS, MATRIX, EXACT = "gpu/registers, then gpu/exact", "gpu/exact, matrix", "gpu/exact"
GRID, FEW_TARGETS = "gpu/grid, then gpu/exact", "gpu/thresholds"

#: Limits with a name are used in several rows, or where requests are made.
LEAST_EPS, MOST_EPS = 1e-10, 1e20  #: of single precision: beyond, hard plans come out wrong, or 1 / eps is nothing
FEW = 4  #: targets that every family for long rows takes one by one
ONE_THREAD, ONE_THREAD_OF_TWO = 2048, 1 << 15  #: values that one thread works on; two targets need little scratch
VERY_SHORT = 20  #: values, and targets, of rows that are worked on sixteen at a time without a band
BAND_VALUES, BAND_TARGETS, BAND_ROWS = 192, 128, 16  #: of rows that are worked on sixteen at a time with one
MOST_TARGETS = 128  #: that are taken one by one; sorts on the CPU take more
MOST_SORTED = ONE_THREAD  #: targets that sorts and ranks of the CPU take one by one
MOST_LOGS = 128  #: values of rows whose plans are answered as logarithms
MOST_EXACT = 2048  #: values, and targets, of the exact family of the CPU
MOST_COLUMNS = 4  #: of a payload: each is carried by itself
FAINT = 1e-12  #: share of a target; only plans tell where the mass of a lighter one comes from
LIGHT = 1e-5  #: weight relative to the largest of its row; single precision loses what is lighter
LEAST_LEARNED_EPS = 5e-3  #: smallest eps whose gradient keeps its digits in single precision
SHARP_GROUPS = 2e-3  #: least eps of sorts of sixteen rows at a time
AS_TYPED = 1.0 + 1e-6  #: a tensor in single precision may hold a little less than what was typed
_SHARP, _SHARP_OF_VERY_SHORT, _SHARP_QUANTILE = 5e-3, 1e-3, 2e-3  #: least eps for few targets in single precision
_FINE, _FINE_LOGS, _SMALL, _TINY = 1e-3, 5e-3, 1e-4, 1e-5  #: least eps of weighted rows, of their logs, of all rows


class Facts(NamedTuple):
    """All that the table looks at."""

    read: str  #: "pull", "push" or "logs", see ``contract``
    n: int  #: values of a row
    targets: int  #: of the request: targets or nodes
    equal: bool = False  #: whether the request says that targets are equal: it has nodes of a rule, or all of them
    every: bool = False  #: whether they are all of them
    all_targets: int = 0  #: targets; where they are nodes of a rule, those that it stands for
    size: int = 0  #: the larger of values and of all targets
    pairs: int = 0  #: n K
    all_pairs: int = 0  #: n times all targets
    work: int = 0  #: n K^2: what a pass over all values costs
    eps: float = 1.0  #: the smallest of the call
    spread: float = (
        0.0  #: n^2 eps: how many values share a target; above 3 most weight lies where a hard sort puts none
    )
    rows: int = 1
    weighted: bool = False  #: whether values have weights
    quantile: bool = False  #: whether these are the three targets of a quantile, whose weights are double
    double: bool = False  #: whether weights of targets are double
    squashed: bool = True
    square: bool = True  #: whether there are as many targets as values
    ruled: bool = False  #: whether the request says how to estimate the error of a rule
    shared: bool = True  #: whether all rows have the same targets
    one_eps: bool = True  #: whether all rows have the same eps
    # What the request does not say:
    named: bool = False  #: whether the caller named this backend
    mask: bool = False  #: whether two targets are those of a top-k mask
    selecting: bool = False  #: whether targets are those of a mask or a quantile
    uneven: bool = False  #: whether the caller gave targets or their weights
    light: bool = False  #: whether some weights are below ``LIGHT``, but not 0
    empty: bool = False  #: whether a target that is read may weigh nothing, or nearly nothing for logarithms
    padded: bool = False  #: whether rows have padding
    payload: bool = False  #: whether numbers of the caller are averaged, and not ranks
    traced: bool = False


class Row(NamedTuple):
    """A line of the table."""

    answer: str
    reads: str
    limits: tuple[tuple[str, float | None, float | None], ...]  #: fact, the least, and what it must be below
    entry: str  #: the module that enters the kernels
    why: str  #: the reason that a caller reads who named the backend

    def fits(self, facts: Facts) -> bool:
        if facts.read not in self.reads:
            return False
        for name, least, below in self.limits:
            value = getattr(facts, name)
            if (least is not None and value < least) or (below is not None and value >= below):
                return False
        return True

    def reason(self, facts: Facts) -> str:
        return self.why.format(n=facts.n, targets=facts.targets, size=facts.size, eps=facts.eps / AS_TYPED)


def _from(least: float) -> tuple[float | None, float | None]:
    return least, None


def _below(limit: float) -> tuple[float | None, float | None]:
    return None, limit


def _to(most: int, least: int | None = None) -> tuple[float | None, float | None]:
    return least, most + 1


def _row(answer: str, reads: str, entry: str = "", why: str = "", **limits: Any) -> Row:
    found = []
    for name, limit in limits.items():
        if isinstance(limit, bool):
            found.append((name, *((1, None) if limit else (None, 1))))
        elif isinstance(limit, int):
            found.append((name, limit, limit + 1))
        else:
            found.append((name, *limit))
    return Row(answer, reads, tuple(found), entry, why)


# ---- calls that are refused, and left to plans

_AVERAGES = "pull push"
_ALL = "pull push logs"
_TOO_SHARP = "its kernels sort and select from eps = {0:g} up, and eps = {{eps:g}}"
_TRACED = "a compiled program takes fewer targets for rows as long as these"
_OF_LOGS = "its kernels say from where targets get what they get if each is seen to weigh {0:g} or more"


def _refused_by_both(most: int, sorts: int) -> list[Row]:
    """Calls that no kernels answer, as they are too large."""
    one_by_one = "its kernels take at most {0} targets one by one, and there are {{targets}}"
    return [
        _row(PLAN, "push", why=one_by_one.format(sorts), equal=False, targets=_from(sorts + 1)),
        _row(PLAN, "pull logs", why=one_by_one.format(most), equal=False, targets=_from(most + 1)),
        _row(PLAN, "push", why=f"its kernels sort rows with padding onto more than {FEW} targets", padded=True,
             selecting=False, targets=_to(FEW)),
        _row(PLAN, "pull", why=f"its kernels average over more than {FEW} targets, and there are {{targets}}",
             payload=True, targets=_to(FEW)),
        _row(PLAN, _AVERAGES, why=_TRACED, traced=True, equal=False, targets=_from(FEW + 1), n=_from(ONE_THREAD + 1)),
        _row(PLAN, _AVERAGES, why=_TRACED, traced=True, equal=True, targets=_from(129), n=_from(ONE_THREAD + 1)),
        _row(PLAN, "logs", why=f"its kernels say where at most {MOST_LOGS} values go, and there are {{n}}",
             n=_from(MOST_LOGS + 1)),
        _row(PLAN, "logs", why=_OF_LOGS.format(FAINT), empty=True),
        _row(PLAN, "logs", named=False, weighted=True, eps=_below(_FINE_LOGS)),
        _row(PLAN, "logs", named=False, uneven=True, eps=_below(_FINE_LOGS)),
    ]  # fmt: skip


#: Sorts for which single precision has too few digits, or is slower: of values without a squash, of many pairs.
_SORTED: tuple[dict[str, Any], ...] = tuple(
    {"entry": "cpu.rows", "equal": False, "n": _to(ONE_THREAD), "targets": _from(FEW + 1)} | more
    for more in (
        {"squashed": False},
        {"pairs": _from((1 << 14) + 1)},
        {"eps": _below(_SHARP_OF_VERY_SHORT)},
        {"eps": _below(_SHARP), "n": _to(ONE_THREAD, VERY_SHORT + 1)},
        {"eps": _below(_SHARP), "targets": _from(VERY_SHORT + 1)},
    )
)
_NO_GRADIENT = "its kernels have no gradient for what lands on a target without weight, and there is one"
_FINE_ROWS: dict[str, Any] = {
    "named": False,
    "mask": False,
    "size": _to(MOST_EXACT),
}  #: the exact family has more digits for these
REFUSED: dict[str, tuple[Row, ...]] = {
    "numba": (
        *_refused_by_both(MOST_TARGETS, MOST_SORTED),
        _row(PLAN, "logs", named=False, eps=_below(_SMALL)),
        _row(PLAN, "push", why=_TOO_SHARP.format(_SHARP_OF_VERY_SHORT), targets=_to(FEW, 3),
             eps=_below(_SHARP_OF_VERY_SHORT), n=_to(VERY_SHORT)),
        _row(PLAN, "push", why=_TOO_SHARP.format(_SHARP_OF_VERY_SHORT), targets=1, eps=_below(_SHARP_OF_VERY_SHORT),
             n=_to(VERY_SHORT)),
        _row(PLAN, "push", why=_TOO_SHARP.format(_SHARP), targets=_to(FEW, 3), quantile=False, eps=_below(_SHARP),
             n=_to(63, VERY_SHORT + 1)),
        _row(PLAN, "push", why=_TOO_SHARP.format(_SHARP), targets=1, eps=_below(_SHARP), n=_to(63, VERY_SHORT + 1)),
        _row(PLAN, "pull", why=_TOO_SHARP.format(_SHARP_OF_VERY_SHORT), selecting=True, quantile=True,
             eps=_below(_SHARP_OF_VERY_SHORT), n=_to(VERY_SHORT)),
        _row(PLAN, _AVERAGES, why=f"its kernels take weights from {LIGHT:g} of the largest up, or 0, and some are less",
             light=True),
        _row(PLAN, "push", **_FINE_ROWS, selecting=False, equal=False, eps=_below(SHARP_GROUPS),
             targets=_from(FEW + 1), n=_to(BAND_VALUES)),
        _row(PLAN, "push", **_FINE_ROWS, selecting=False, weighted=True, eps=_below(_SHARP)),
        _row(PLAN, _AVERAGES, **_FINE_ROWS, eps=_below(_SMALL)),
        _row(PLAN, _AVERAGES, **_FINE_ROWS, weighted=True, eps=_below(_FINE)),
        _row(PLAN, "pull", **_FINE_ROWS, uneven=True, eps=_below(_FINE)),
        _row(PLAN, "pull", **_FINE_ROWS, weighted=True, equal=False, targets=_to(FEW, 2)),
        _row(PLAN, "pull", **_FINE_ROWS, uneven=True, equal=False, targets=_to(FEW, 2)),
        _row(PLAN, _AVERAGES, **_FINE_ROWS, selecting=True, weighted=True),
        *(_row(SORT, "push", **({"empty": True} | limits)) for limits in _SORTED),
        _row(PLAN, "push", why=_NO_GRADIENT, empty=True),
    ),
    "triton": (
        *_refused_by_both(MOST_TARGETS, MOST_TARGETS),
        _row(PLAN, "pull", named=False, mask=True, weighted=True, eps=_below(_FINE)),
        _row(PLAN, _AVERAGES, named=False, mask=False, eps=_below(_TINY)),
        _row(PLAN, "pull", named=False, mask=False, equal=False, targets=_to(FEW, 3)),
        _row(PLAN, _AVERAGES, named=False, mask=False, weighted=True, eps=_below(_FINE)),
        _row(PLAN, _AVERAGES, named=False, mask=False, uneven=True, eps=_below(_FINE)),
        _row(PLAN, "push", why=_NO_GRADIENT, empty=True),
    ),
}  # fmt: skip

# ---- kernels

_BAND: dict[str, Any] = {
    "rows": _from(BAND_ROWS), "targets": _to(BAND_TARGETS, FEW + 1), "n": _to(BAND_VALUES), "spread": _from(3.0),
}  # fmt: skip


def _of_numba() -> tuple[Row, ...]:
    short, long = "cpu.rows", "cpu.long"
    too_many = "its kernels take at most {0}, and there are {{targets}}"
    return (
        _row(ROW, "logs", short),
        _row(THRESHOLDS_IN_PIECES, _AVERAGES, long, equal=False, targets=2, n=_from(ONE_THREAD_OF_TWO + 1)),
        _row(TWO, _AVERAGES, short, equal=False, targets=2, n=_from(VERY_SHORT + 1)),
        _row(TWO, _AVERAGES, short, equal=False, targets=2, eps=_below(_SHARP)),
        _row(THRESHOLDS_IN_PIECES, _AVERAGES, long, quantile=True, n=_from(VERY_SHORT + 1),
             eps=_below(_SHARP_QUANTILE)),
        _row(THRESHOLDS_IN_PIECES, _AVERAGES, long, equal=False, quantile=False, targets=_to(FEW), n=_from(64),
             eps=_below(_SHARP)),
        _row(THRESHOLDS_IN_PIECES, _AVERAGES, long, equal=False, n=_from(ONE_THREAD + 1), targets=_to(16)),
        _row(THRESHOLDS_IN_PIECES, _AVERAGES, long, equal=False, n=_from(ONE_THREAD + 1), targets=_to(MOST_TARGETS),
             work=_to(400_000_000)),
        _row(PLAN, _AVERAGES, long, "its kernels take fewer targets one by one for rows of {n} values, and there are "
             "{targets}", equal=False, n=_from(ONE_THREAD + 1)),
        _row(PLAN, _AVERAGES, long, too_many.format("512 nodes of a rule"), n=_from(ONE_THREAD + 1),
             targets=_from(513)),
        _row(ROW_IN_PIECES, _AVERAGES, long, n=_from((1 << 14) + 1)),
        _row(REJECT_ALL, "pull", long, n=_from(ONE_THREAD + 1), every=True, targets=_from(BAND_TARGETS + 1)),
        _row(ROW_OR_PIECES, _AVERAGES, long, n=_from(ONE_THREAD + 1)),
        _row(PLAN, _AVERAGES, short, too_many.format("1024 nodes"), equal=True, every=False, targets=_from(1025)),
        _row(PLAN, _AVERAGES, short, too_many.format("2048 targets"), targets=_from(2049)),
        _row(REJECT_ALL, "pull", short, every=True, targets=_from(BAND_TARGETS + 1)),
        _row(BAND, "pull", short, equal=False, weighted=False, **_BAND),
        _row(BAND, "pull", short, equal=True, shared=True, **_BAND),
        _row(BAND, "push", short, equal=True, shared=True, one_eps=True, **_BAND),
        _row(ONE_BY_ONE, "push", short, every=True, n=_to(BAND_VALUES)),
        *(_row(SORT, "push", **limits) for limits in _SORTED),
        _row(LANES, _AVERAGES, short, equal=False, n=_to(VERY_SHORT), targets=_to(VERY_SHORT)),
        _row(THRESHOLDS, _AVERAGES, short, equal=False, targets=_to(FEW, 3)),
        _row(ROW, _AVERAGES, short),
    )  # fmt: skip


def of_triton(most: int = ONE_THREAD, in_double: int = 256) -> tuple[Row, ...]:
    """``most``: values of rows that fit a thread block; ``in_double``: targets that ``gpu/exact`` has in float64."""
    short, long = "gpu.rows", "gpu.long"
    double = [
        _row(EXACT, reads, short, **why, all_targets=_to(in_double))
        for reads, why in (
            ("pull", {"eps": _below(3e-4)}),  # gradients of single precision lose digits
            ("pull", {"squashed": False, "equal": False, "square": False}),
            (_AVERAGES, {"weighted": True}),
            (_AVERAGES, {"double": True}),
        )
    ]
    return (
        _row(PLAN, _AVERAGES, long, "its kernels take rows of fewer than 2^31 values, and a row has {n}",
             n=_from(1 << 31)),
        _row(FEW_TARGETS, _AVERAGES, long, equal=False, targets=_to(2)),
        _row(FEW_TARGETS, _AVERAGES, long, equal=False, targets=_to(FEW), n=_from(16)),
        _row(GRID, _AVERAGES, long, equal=True, n=_from(most + 1), targets=_to(128)),
        _row(PLAN, _AVERAGES, long, f"long rows take at most {FEW} targets one by one and 128 nodes of a rule, and "
             "there are {targets}", n=_from(most + 1)),
        _row(PLAN, _ALL, short, "these kernels take at most 2048 values and targets, and there are {size}",
             size=_from(ONE_THREAD + 1)),
        _row(EXACT, "logs", short),
        _row(GRID, "pull", short, equal=True, ruled=True, all_targets=_from(in_double + 1), n=_from(in_double + 1),
             targets=_to(128)),
        *double,
        _row(REGISTERS, "pull", short, n=_to(128), targets=_to(128)),
        _row(MATRIX, _AVERAGES, short, targets=_to(128)),
        _row(EXACT, _AVERAGES, short),
    )  # fmt: skip


KERNELS: dict[str, tuple[Row, ...]] = {"numba": _of_numba(), "triton": of_triton()}

# ---- rows that these kernels reject, and plans

#: The reference takes few values or targets in no time, and is as fast where pairs are very many.
_AGAIN: dict[str, Any] = {"n": _from(16), "all_targets": _from(32), "all_pairs": _to(1 << 24)}
REJECTED: dict[str, tuple[Row, ...]] = {
    "numba": (
        _row("cpu/sort, all targets", "pull", "cpu.rejected", **_AGAIN),
        _row("cpu/sort, all targets", "push", "cpu.rejected", equal=True, **_AGAIN),
    ),
    "triton": (),
}
_CPU_EXACT = "cpu/exact"
#: Plans of eager calls on the CPU by the default solver. Up to 2^20 pairs kernels take less time than a small problem
#: in torch (rows of 400 and 1,000 values: 0.4 to 1.0 of it, ranks at eps = 1e-3 a fifteenth); for sharper plans always.
PLANS: dict[str, tuple[Row, ...]] = {
    "numba": (
        _row(_CPU_EXACT, "plan", size=_to(MOST_EXACT), all_pairs=_to(1 << 20)),
        _row(_CPU_EXACT, "plan", size=_to(MOST_EXACT), eps=_below(5e-3 * AS_TYPED)),
    ),
    "triton": (),
}
_PARTS = {"refused": REFUSED, "kernels": KERNELS, "rejected": REJECTED, "plans": PLANS}


# ---- asking


def first(part: str, name: str, facts: Facts, entry: str | None = None) -> Row | None:
    """The first row of a part that fits a call to the backend called ``name``; of those of one module, if given."""
    return (_first if tracing() else _first_again)(part, name, facts, entry)


def _first(part: str, name: str, facts: Facts, entry: str | None = None) -> Row | None:
    for row in _PARTS[part][name]:
        if entry in (None, row.entry) and row.fits(facts):
            return row
    return None


_first_again = functools.lru_cache(maxsize=1024)(_first)


def kernels_for(name: str, request: Request, read: str, phi: Tensor | None = None, entry: str | None = None) -> Row:
    """The row of ``KERNELS`` for a request. ``phi`` is what targets are averaged with, if that is not y.

    A module that is called for a request, whoever calls it, asks with its own name as ``entry``.
    """
    found = first("kernels", name, facts_of(name, request, read, phi), entry)
    assert found is not None, "the last row of each backend and module fits every request"  # noqa: S101
    return found


def facts_of(name: str, request: Request, read: str, phi: Tensor | None = None) -> Facts:
    """What a request says of a call."""
    (R, n), K, m = request.x.shape, request.y.shape[-1], request.m
    double = request.b.dtype == torch.float64
    several = isinstance(request.eps, Tensor)
    # To read the numbers of a tensor on a GPU would wait for the device.
    eps = 1.0 if several and name == "triton" else least_of(request.eps) * AS_TYPED
    targets = K if m is None else m
    y, b, last = request.y, request.b, request.last
    shared = y.shape[0] == b.shape[0] == 1 and all(t is None or t.shape[0] == 1 for t in (phi, last))
    return Facts(
        read, n, K, m is not None, m == K, targets, max(n, targets, K), n * K, n * targets, n * K * K, eps,
        n * n * eps, R, request.a is not None,
        m is None and K == 3 and double, double, request.squash is not None, n == K, last is not None, shared,
        not several,
    )  # fmt: skip


@functools.cache
def module(entry: str) -> Any:
    """The module of the kernels of a row. It is imported when it is first needed."""
    return importlib.import_module(f"{__package__}.{entry}")


def kernels_named(name: str, request: Request, read: str = "pull") -> LogPlanKernels:
    """The kernels of a backend that answer a request."""
    return cast("LogPlanKernels", module(kernels_for(name, request, read).entry))


def rejected_row_kernels(name: str, request: Request, read: str) -> RejectedRowKernels | None:
    """The kernels that try rejected rows again, if there are any."""
    if not REJECTED[name]:
        return None
    row = first("rejected", name, facts_of(name, request, read))
    return None if row is None else cast("RejectedRowKernels", module(row.entry))


def least_of(eps: float | Tensor) -> float:
    """The smallest eps of a call. Tensors reach kernels only where their numbers may be looked at."""
    return float(eps.min()) if isinstance(eps, Tensor) else eps
