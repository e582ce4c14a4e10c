"""Long rows on the CPU: Numba kernels in several passes over each row, in pieces, for more than 2048 values.

Ranks, whose targets are the nodes of a rule, go by way of a grid (``row.pieces_grid``); a few targets of one's own see
every value (``thresholds.pieces``). Ranks of rows that fit a cache are first asked of the kernels for short rows, which
have a grid as well and take a row in one go; rows that these cannot do come back here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...linear.rules import gauss_rule
from ..contract import Answer, Request, State, in_tensors, of_rows, some_rows
from ..dispatch import REJECT_ALL, ROW_OR_PIECES, kernels_for
from . import by_nodes
from . import rows as short_rows
from .engine.blocks import ARCTAN, BFLOAT16, FLOAT16, FLOAT32, IDENTITY, SIGMOID, Array, Rows
from .engine.potentials import DONE, SEARCH
from .engine.sources import padded
from .engine.threads import run
from .engine.values import (
    CELLS,
    GRID_ERROR,
    HEAD,
    HIGH,
    INFINITE,
    LOW,
    MEAN,
    NODES,
    OTHER_ERROR,
    POISONED,
    REPORT,
    WIDTH,
    conclude,
    finish,
    survey,
)
from .row import pieces_grid as grid
from .row.solve import ACCEPTED
from .thresholds import pieces as part

_PIECE = 1 << 15  #: values that a task works on
_MOST_PIECES = 64
_SCRATCH = 1 << 22  #: bytes of moments at a time: rows are worked on in groups
_ACCEPTED = 4e-6  #: error of a grid that need not be made finer
_MOST_NODES = 512  #: of a rule
_SHARP = 30.0  #: change of exponents within a bin from which values that share it must be told apart
_HERE = (math.nan, -1.0)  #: in place of the weight of a row and its flag
_HOPELESS = 0.3  #: error of a rule that says nothing about how many nodes are missing
_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
_SQUASHES = {"sigmoid": SIGMOID, "arctan": ARCTAN, None: IDENTITY}
_NONE = Array(np.empty(0, np.float32), np.empty(0, np.uint16), FLOAT32, 0)


def weightless(_request: Request) -> bool:
    return False


def rejects_by_nan(_request: Request) -> bool:
    """Never: a row that could not be answered says so in its error."""
    return False


def state_layout(request: Request) -> tuple[int, torch.dtype]:
    """What is known of a row, and the potentials of its targets."""
    if _in_one_go(request):
        return short_rows.state_layout(request)
    return HEAD + request.y.shape[-1], torch.float64


def unable(request: Request) -> str | None:
    device = request.x.device
    return None if device.type == "cpu" else f"its kernels work on the CPU, and x is on {device}"


class _ReadOut(NamedTuple):
    """An ask as kernels take it: arrays of NumPy, targets in float64."""

    rows: Rows
    y: np.ndarray  #: (R or 1, K)
    b: np.ndarray  #: (R or 1, K) rows sum to one, now to the last bit
    ends: np.ndarray  #: (R or 1, 2) the outermost targets: nodes of a rule lie inside
    eps: np.ndarray  #: (R,)
    R: int

    @property
    def K(self) -> int:  # noqa: N802
        return int(self.y.shape[1])

    @property
    def values(self) -> int:
        return self.R * self.rows.n

    @property
    def tasks(self) -> int:
        return self.R * self.rows.pieces


def _array(t: Tensor) -> Array:
    """A tensor (R, n) as flat memory, copied only if its rows are not contiguous."""
    t = t.detach()
    if t.shape[1] > 1 and t.stride(1) != 1:
        t = t.contiguous()
    R, n = t.shape
    stride = t.stride(0) if R > 1 else 0
    flat = t.as_strided(((R - 1) * stride + n,), (1,))
    if t.dtype == torch.float32:
        return Array(flat.numpy(), _NONE.half, FLOAT32, stride)
    return Array(_NONE.single, flat.view(torch.uint16).numpy(), _KINDS[t.dtype], stride)


def _read_out(request: Request) -> _ReadOut:
    R, n = request.x.shape
    pieces = min(_MOST_PIECES, -(-n // _PIECE))
    weights = _NONE if request.a is None else _array(request.a.float())
    rows = Rows(_array(request.x), weights, n, _SQUASHES[request.squash], pieces)
    y, b = _wide(request.y), _wide(request.b)
    eps = _wide(request.eps.expand(R)) if isinstance(request.eps, Tensor) else np.full(R, float(request.eps))
    ends = np.ascontiguousarray(y[:, [0, -1]]) if request.m is None else np.array([[0.0, 1.0]])
    return _ReadOut(rows, y, b / b.sum(-1, keepdims=True), ends, eps, R)


def _wide(t: Tensor) -> np.ndarray:
    return np.ascontiguousarray(t.detach().numpy(), dtype=np.float64)


def _surveyed(read_out: _ReadOut) -> np.ndarray:
    """The state of rows, with what is known of them before anything is solved."""
    state = np.zeros((read_out.R, HEAD + read_out.y.shape[1]))
    reports = np.empty((read_out.R, read_out.rows.pieces, REPORT))
    run(survey, read_out.R * read_out.rows.pieces, read_out.values, read_out.rows, reports)
    conclude(0, read_out.R, read_out.rows, reports, read_out.ends, state)
    return state


def pull(request: Request, phi: Tensor) -> Answer:
    if request.m is None:
        return _pull_few(request, phi)
    if not _in_one_go(request):
        return _pull_by_rules(request, phi)
    out, state, error = in_tensors(short_rows.pull(request, phi))
    rejected = error.numpy() > ACCEPTED
    if rejected.any():
        rows = torch.from_numpy(np.flatnonzero(rejected))
        out[rows], better, error[rows] = in_tensors(_pull_by_rules(some_rows(request, rows), of_rows(phi, rows)))
        mark, theirs = _room(request, state)
        mark[rejected], theirs[rejected] = _HERE, better.numpy()
        state[rows, -1] = 0.0  # of a rule, not of all targets
    return Answer(out, state, error)


def _pull_by_rules(request: Request, phi: Tensor) -> Answer:
    out, state, error = in_tensors(_pull_on_grid(request, phi))
    for rows, K in _rows_by_nodes(_nodes_wanted(state.numpy(), request)):
        better, _, better_error = in_tensors(_pull_on_grid(*_by_rule(request, phi, rows, K)))
        right = better_error <= _ACCEPTED
        done = rows[right]
        out[done], error[done], state[done, NODES] = better[right], better_error[right], float(K)
    return Answer(out, state, error)


def pull_backward(request: Request, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    if request.m is None:
        return _few_backward(request, _wide(phi), state.numpy(), _array(w), pushing=False)
    if not _in_one_go(request):
        return _pull_by_rules_backward(request, phi, state, w)
    state = state.contiguous()
    grad = short_rows.pull_backward(request, phi, state, w)
    mark, theirs = _room(request, state)
    rejected = mark[:, 1] == _HERE[1]
    if rejected.any():
        rows = torch.from_numpy(np.flatnonzero(rejected))
        part, part_phi, their_state = some_rows(request, rows), of_rows(phi, rows), torch.from_numpy(theirs[rejected])
        grad[rows] = _pull_by_rules_backward(part, part_phi, their_state, w[rows])
    return grad


def _pull_by_rules_backward(request: Request, phi: Tensor, state: Tensor, w: Tensor) -> Tensor:
    grad = _pull_on_grid_backward(request, phi, state.numpy(), w)
    for rows, K in _rows_by_nodes(state.numpy()[:, NODES]):
        # There is no room for more potentials in the state, and no need: solving again takes as long as reading.
        finer = _by_rule(request, phi, rows, K)
        grad[rows] = _pull_on_grid_backward(*finer, in_tensors(_pull_on_grid(*finer))[1].numpy(), w[rows])
    return grad


def push(request: Request) -> Answer:
    if request.m is not None:
        return short_rows.push(request) if _in_one_go(request) else _push_by_nodes(request)
    read_out = _read_out(request)
    state = _solved(read_out)
    out = torch.empty(read_out.R, read_out.K, dtype=torch.float32, device="cpu")
    partial = np.empty((read_out.R, read_out.rows.pieces, 2, read_out.K))
    run(
        part.push_sums,
        read_out.tasks,
        2.0 * read_out.K * read_out.values,
        read_out.rows,
        state,
        read_out.y,
        read_out.eps,
        partial,
    )
    part.push_averages(0, read_out.R, state, read_out.b, partial, out.numpy())
    return _answer(out, state)


def push_backward(request: Request, state: State, c: Tensor) -> Tensor:
    if request.m is not None:
        if _in_one_go(request):
            return short_rows.push_backward(request, state, c)
        return by_nodes.push_backward(request, state, c, _push_on_grid, _push_on_grid_backward, _records)
    state = state if isinstance(state, Tensor) else torch.from_numpy(state)
    b = request.b.double().expand(c.shape)
    infinite = state[:, INFINITE : INFINITE + 1] != 0  # an infinite average has no gradient
    phi = torch.where((b > 0) & ~infinite, c.double() / b, 0.0)
    return _few_backward(request, _wide(phi), state.numpy(), _NONE, pushing=True)


def _answer(out: Tensor, state: np.ndarray) -> Answer:
    error = np.maximum(state[:, GRID_ERROR], state[:, OTHER_ERROR]).astype(np.float32)
    return Answer(out, torch.from_numpy(state), torch.from_numpy(error))


# ---- rows in one go


def _in_one_go(request: Request) -> bool:
    """Whether rows fit a cache, so that the kernels for short rows try them first."""
    return request.m is not None and kernels_for("numba", request, "pull").answer in (ROW_OR_PIECES, REJECT_ALL)


def _room(request: Request, state: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Of a state of rows in one go: two numbers that may say that a row is done here, and room for its state then.

    They are the weight of the row, which says that it holds NaN, and a flag; see ``row.solve.save``.
    """
    K = request.y.shape[-1]
    wide, at = state.numpy().view(np.float64), padded(K) + 2
    return wide[:, at : at + 2], wide[:, at + 2 : at + 2 + HEAD + K]


# ---- a few targets


def _solved(read_out: _ReadOut) -> np.ndarray:
    """The state of rows, with the potentials of their few targets."""
    K, pieces, n = read_out.K, read_out.rows.pieces, read_out.rows.n
    state = _surveyed(read_out)
    index = np.flatnonzero(state[:, POISONED] == 0)
    search = np.empty((read_out.R, 3 * K + SEARCH))
    eps = read_out.eps.min()
    bins = int(min(max(256.0, 16.0 / eps), 8192, n // 2))
    tally, price = part.tally, 2.0 * K * (K + 1) / 2
    if pieces == 1 and _change(read_out, state) > _SHARP * bins * eps:
        tally, bins = part.in_order, n
    for some, _ in _groups(index, np.full(read_out.R, float(bins)), 16 * pieces):
        counts = np.empty((len(some), pieces, bins, 2))
        run(tally, len(some) * pieces, 3.0 * len(some) * n, read_out.rows, some, state, counts)
        run(part.start, len(some), 10.0 * price * len(some) * bins, some, state, counts, read_out.y, read_out.b,
            read_out.eps,
            search)  # fmt: skip
    while len(index):
        partial = np.empty((len(index), pieces, K + 1, K))
        run(part.columns, len(index) * pieces, price * len(index) * n, read_out.rows, index, state, read_out.y,
            read_out.eps,
            search, partial)  # fmt: skip
        part.step(0, len(index), read_out.rows, index, state, read_out.b, search, partial)
        index = index[search[index, 3 * K + DONE] == 0]
    return state


def _change(read_out: _ReadOut, state: np.ndarray) -> float:
    """How much exponents of a plan change from one end of a row to the other, at most, times eps."""
    ends = read_out.ends
    width = ends[0, 1] - ends[0, 0] if len(ends) == 1 else (ends[:, 1] - ends[:, 0]).max()
    return 2.0 * float(width * ((state[:, HIGH] - state[:, LOW]).max() if read_out.rows.squash == IDENTITY else 1.0))


def _pull_few(request: Request, phi: Tensor) -> Answer:
    read_out = _read_out(request)
    state = _solved(read_out)
    out = torch.empty_like(request.x, memory_format=torch.contiguous_format)
    run(part.read_pull, read_out.tasks, 2.0 * read_out.K * read_out.values, read_out.rows, state, read_out.y,
        read_out.eps,
        _wide(phi), _array(out))  # fmt: skip
    return _answer(out, state)


def _few_backward(request: Request, phi: np.ndarray, state: np.ndarray, w: Array, pushing: bool) -> Tensor:
    read_out = _read_out(request)
    K, price = read_out.K, 2.0 * read_out.K * read_out.values
    out = torch.empty_like(request.x, memory_format=torch.contiguous_format)
    wide = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
    g = _array(wide)
    partial, sums = (
        np.empty((read_out.R, read_out.rows.pieces, K + 1, K)),
        np.empty((read_out.R, read_out.rows.pieces, 2)),
    )
    multipliers = np.empty((read_out.R, K))
    run(part.pulls, read_out.tasks, price, read_out.rows, state, read_out.y, read_out.eps, phi, w, pushing, partial)
    part.multipliers(0, read_out.R, state, read_out.b, partial, multipliers)
    run(part.read_backward, read_out.tasks, price, read_out.rows, state, read_out.y, read_out.eps, phi, w, pushing,
        multipliers, g,
        sums)  # fmt: skip
    run(
        finish, read_out.tasks, 1.0 * read_out.values, read_out.rows, np.arange(read_out.R), state, sums, g, _array(out)
    )
    return out


# ---- finer rules


def _nodes_wanted(state: np.ndarray, request: Request) -> np.ndarray:
    """(R,): nodes of a rule that should be fine enough where the given one is not; 0 where it is, or none would be.

    The error falls geometrically with the number of nodes, see ``rules``.
    """
    K, error = request.y.shape[-1], state[:, OTHER_ERROR]
    rejected = (error > _ACCEPTED) & (error < _HOPELESS)
    if not rejected.any():
        return np.zeros(len(state))
    factor = math.log(0.1 * _ACCEPTED) / np.log(np.clip(error, _ACCEPTED, _HOPELESS))
    wanted = 32.0 * np.ceil(K * factor / 32.0)
    return np.where(rejected & (wanted <= _MOST_NODES) & (2 * wanted < (request.m or 0)), wanted, 0.0)


def _rows_by_nodes(nodes: np.ndarray) -> list[tuple[Tensor, int]]:
    """Rows that want the same number of nodes, and that number; not those that want none."""
    if not nodes.any():
        return []
    return [(torch.from_numpy(np.flatnonzero(nodes == K)), int(K)) for K in np.unique(nodes) if K > 0]


def _by_rule(request: Request, phi: Tensor, rows: Tensor, K: int) -> tuple[Request, Tensor]:
    """The same for some rows, by a rule of K nodes; phi is affine in y."""
    m = request.m or 0
    at, weights, last = (torch.from_numpy(t).unsqueeze(0) for t in gauss_rule(m, K))
    some = some_rows(request, rows)
    y, old_y, old_phi = at / (m - 1), some.y.double(), of_rows(phi, rows).double()
    slope = (old_phi[:, -1:] - old_phi[:, :1]) / (old_y[:, -1:] - old_y[:, :1])
    return some._replace(y=y, b=weights, last=last), old_phi[:, :1] + slope * (y - old_y[:, :1])


# ---- ranks on a grid


def _groups(index: np.ndarray, cells: np.ndarray, bytes_per_cell: int) -> list[tuple[np.ndarray, int]]:
    """Rows in groups whose moments fit in the scratch memory, and the most cells that one of a group has."""
    groups: list[tuple[np.ndarray, int]] = []
    while len(index):
        largest = int(cells[index].max())
        if len(index) * largest * bytes_per_cell <= _SCRATCH:
            return [*groups, (index, largest)]
        most = np.maximum.accumulate(cells[index])
        fits = max(1, int((most * np.arange(1, len(index) + 1) * bytes_per_cell <= _SCRATCH).sum()))
        groups.append((index[:fits], int(most[fits - 1])))
        index = index[fits:]
    return groups


def _pull_on_grid(request: Request, phi: Tensor) -> Answer:
    read_out = _read_out(request)
    rows, n, pieces = read_out.rows, read_out.rows.n, read_out.rows.pieces
    state = _surveyed(read_out)
    out = torch.empty_like(request.x, memory_format=torch.contiguous_format)
    ends = np.zeros((1, 0, read_out.y.shape[1])) if request.last is None else _wide(request.last)
    levels, answers = _wide(phi), _array(out)
    grid.lay_grid(0, read_out.R, state, read_out.eps)
    todo = np.arange(read_out.R)
    small = 2.0 * read_out.y.shape[1] ** 2  # nanoseconds for each node of a grid, at a guess
    while len(todo):
        rejected = []
        for index, cells in _groups(todo, state[:, CELLS], 32 * pieces):
            moments = np.empty((len(index), pieces, cells, 4))
            run(grid.spread, len(index) * pieces, 3.0 * len(index) * n, rows, index, state, _NONE, False, moments)
            run(grid.solve, len(index), small * cells * len(index), index, state, moments, read_out.y, read_out.b,
                levels,
                ends, read_out.eps)  # fmt: skip
            run(grid.read, len(index) * pieces, 3.0 * len(index) * n, rows, index, state, moments, answers)
            rejected.append(_refined(index, state))
        todo = np.concatenate(rejected)
    return _answer(out, state)


def _refined(index: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Rows that a finer grid will help, with that grid."""
    off = state[index, GRID_ERROR]
    if not off.max() > _ACCEPTED:
        return index[:0]
    rejected: np.ndarray = index[(off > _ACCEPTED) & (state[index, OTHER_ERROR] <= _ACCEPTED)]
    excess = np.minimum(state[rejected, GRID_ERROR] / _ACCEPTED, 4.0**4)  # a grid of fourth order; no blind leap
    factor = 2.0 ** np.maximum(1.0, np.ceil(np.log2(excess) / 4.0))
    rejected = rejected[(fits := state[rejected, CELLS] * factor <= grid.MOST_CELLS)]
    state[rejected, CELLS] *= factor[fits]
    state[rejected, WIDTH] /= factor[fits]
    return rejected


def _push_by_nodes(request: Request) -> Answer:
    out, state, error = in_tensors(by_nodes.push(request, _push_on_grid, _records))
    infinite = state[:, INFINITE]
    if infinite.any():
        out = torch.where((infinite != 0).unsqueeze(-1), infinite.unsqueeze(-1).float(), out)
    return Answer(out, state, error)


def _push_on_grid(request: Request) -> Answer:
    """What nodes receive, (R, K), in units of the standardised rows."""
    read_out = _read_out(request)
    rows, n, pieces = read_out.rows, read_out.rows.n, read_out.rows.pieces
    state, out = _surveyed(read_out), np.empty((read_out.R, read_out.K))
    ends = np.zeros((1, 0, read_out.K)) if request.last is None else _wide(request.last)
    grid.lay_grid(0, read_out.R, state, read_out.eps)
    todo = np.arange(read_out.R)
    while len(todo):
        rejected = []
        for index, cells in _groups(todo, state[:, CELLS], 64 * pieces):
            moments = np.empty((len(index), pieces, cells, 8))
            run(grid.spread, len(index) * pieces, 4.0 * len(index) * n, rows, index, state, _NONE, True, moments)
            run(grid.solve_push, len(index), 3.0 * read_out.K**2 * cells * len(index), index, state, moments,
                read_out.y,
                read_out.b, ends, read_out.eps, out)  # fmt: skip
            rejected.append(_refined(index, state))
        todo = np.concatenate(rejected)
    out[state[:, POISONED] > 0] = np.nan
    return _answer(torch.from_numpy(out.astype(np.float32)), state)


def _push_on_grid_backward(request: Request, state: State, c: Tensor) -> Tensor:
    known = np.ascontiguousarray(state) if isinstance(state, np.ndarray) else state.contiguous().numpy()
    b = request.b.double()
    infinite = torch.from_numpy(known[:, INFINITE : INFINITE + 1]) != 0  # an infinite average has no gradient
    phi = torch.where((b > 0) & ~infinite, c.double() / b, 0.0)
    return _on_grid_backward(request, phi, known, None)


def _records(_request: Request, state: State) -> by_nodes.Records:
    known = state if isinstance(state, np.ndarray) else state.numpy()
    return by_nodes.Records(known.reshape(-1), np.arange(len(known)) * known.shape[1] + MEAN, NODES - MEAN)


def _pull_on_grid_backward(request: Request, phi: Tensor, state: np.ndarray, w: Tensor) -> Tensor:
    return _on_grid_backward(request, phi, state, w)


def _on_grid_backward(request: Request, phi: Tensor, state: np.ndarray, w: Tensor | None) -> Tensor:
    """From the cotangents w of what was pulled; or from phi alone, of what was pushed."""
    read_out = _read_out(request)
    rows, n, pieces, own = read_out.rows, read_out.rows.n, read_out.rows.pieces, w is None
    carried, levels, columns = _NONE if w is None else _array(w), _wide(phi), 12 if own else 8
    out = torch.empty_like(request.x, memory_format=torch.contiguous_format)
    wide = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
    g, answers = _array(wide), _array(out)
    small = 2.0 * read_out.y.shape[1] ** 2
    for index, cells in _groups(np.arange(read_out.R), state[:, CELLS], 8 * columns * pieces):
        moments, sums = np.empty((len(index), pieces, cells, columns)), np.empty((len(index), pieces, 2))
        tasks, values = len(index) * pieces, len(index) * n
        run(grid.spread, tasks, 4.0 * values, rows, index, state, carried, own, moments)
        run(grid.solve_backward, len(index), small * cells * len(index), index, state, moments, read_out.y, read_out.b,
            levels, read_out.eps, own)  # fmt: skip
        run(grid.read_backward, tasks, 4.0 * values, rows, index, state, moments, carried, own, g, sums)
        run(finish, tasks, 1.0 * values, rows, index, state, sums, g, answers)
    return out
