"""Conformal prediction that can be trained: a soft conformal quantile, and the size of the prediction sets it makes.

Split conformal prediction calibrates on n nonconformity scores and keeps every answer whose score is at most the
r-th smallest of them, r = ceil((n + 1)(1 - alpha)): the (1 - alpha)(1 + 1/n) quantile. A new score is below it with
probability at least 1 - alpha. In the transport picture the r-th value occupies the mass between (r - 1)/n and r/n, so
the soft quantile has the targets' weights [r - 1, 1, n - r]/n, which is exact at eps -> 0. At eps > 0 it averages
neighbouring scores; the guarantee belongs to the hard quantile, so train with the soft one and calibrate with
``conformal_quantile``.

The default eps is smaller here than for other losses. The r-th value lies near the end of its row, where there are many
more neighbours below than above, so a wide average is too small: of uniform scores eps = 1e-1 covers 81% where 90% is
asked, 1e-2 89%, and 3e-3 90.0% (95% asked: 84%, 92%, 95.0%). What is left at 3e-3, up to 1% where scores have no
variance (Cauchy's), is less than a calibration on n scores differs from the next. For alpha below 0.02 take eps smaller
in proportion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.checks import values_readable
from ..core.costs import Cost
from ..core.problem import wide_dtype
from ..core.solvers import Solver
from ..core.squash import Squash
from ..operators import DEFAULT_SOLVER, soft_quantile, soft_sort
from ._common import Reduction, any_entry, as_mask, live_count, reduce, require_rows, require_samples


def soft_conformal_quantile(
    scores: Tensor,
    alpha: float = 0.1,
    *,
    mask: Tensor | None = None,
    eps: float | Tensor = 3e-3,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """The soft r-th smallest calibration score of each row, r = ceil((n + 1)(1 - alpha)).

    With absolute residuals for scores, twice this number is the width of the prediction interval: a loss as it is.

    Args:
        scores: (..., n) nonconformity scores of the calibration examples: larger is stranger.
        alpha: the share of mistakes allowed; n must be at least 1/alpha - 1.

    >>> import torch
    >>> from sinksort.losses import soft_conformal_quantile
    >>> soft_conformal_quantile(torch.arange(1.0, 20.0), 0.1, eps=1e-4)
    tensor(18.)
    """
    r, n, kept = _position(scores, alpha, mask, "scores")
    if kept is None and values_readable(r) and r.numel():  # the same r in all rows: a quantile like others
        place, count = float(r.flatten()[0]), scores.shape[-1]
        level = 1.0 if place == count else (place - 0.5) / count
        return soft_quantile(scores, level, eps=eps, cost=cost, squash=squash, solver=solver, backend=backend)
    return soft_sort(
        scores,
        mask=kept,
        target_weights=torch.cat([r - 1.0, torch.ones_like(r), n - r], dim=-1) / n,
        eps=eps,
        cost=cost,
        squash=squash,
        solver=solver,
        backend=backend,
    )[..., 1]


def conformal_quantile(scores: Tensor, alpha: float = 0.1, *, mask: Tensor | None = None) -> Tensor:
    """The exact r-th smallest calibration score of each row, to calibrate with when training is over.

    >>> import torch
    >>> from sinksort.losses import conformal_quantile
    >>> conformal_quantile(torch.arange(1.0, 20.0), 0.1)
    tensor(18.)
    """
    r, _, kept = _position(scores, alpha, mask, "scores")
    if kept is not None:
        scores = torch.where(kept, scores, float("inf"))
    quantile = scores.sort(dim=-1).values.gather(-1, r.long() - 1).squeeze(-1)
    return torch.where(scores.isnan().any(-1), torch.nan, quantile)


def conformal_size_loss(
    calibration: Tensor,
    scores: Tensor,
    alpha: float = 0.1,
    *,
    temperature: float = 0.1,
    free: float = 1.0,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    eps: float | Tensor = 3e-3,
    cost: Cost = 2,
    squash: Squash = "sigmoid",
    solver: Solver = DEFAULT_SOLVER,
    backend: str = "auto",
) -> Tensor:
    """How many classes the conformal set of an example holds beyond ``free``.

    That is max(0, sum_l sigmoid((q - s_l) / temperature) - free), with q the soft conformal quantile.

    Half of a mini-batch calibrates (its scores of the *true* classes), the other half is predicted; both get gradients
    (Stutz et al. 2022). With ``temperature`` and eps towards 0 this counts the set {l: s_l <= q} of split conformal
    prediction.

    Args:
        calibration: (..., n) nonconformity scores of the calibration examples, at their true class.
        scores: (..., m, L) nonconformity scores of m other examples, for every class. Batch dimensions as in
            ``calibration``.
        alpha: the share of mistakes allowed.
        temperature: softness of the comparison, in the unit of the scores.
        free: sets up to this size cost nothing: 1 asks for single answers.
        weights: (..., m) one number a predicted example.
        mask: (..., n) calibration examples that exist.

    Measured (docs/losses.md) on blurred digits after a start with cross-entropy: sets of 2.33 classes held out, level
    with going on with cross-entropy (2.32).

    >>> import torch
    >>> from sinksort.losses import conformal_size_loss
    >>> calibration = torch.linspace(0.0, 1.0, 19)
    >>> conformal_size_loss(calibration, torch.tensor([[0.1, 0.5, 0.99]]), 0.1, temperature=1e-3, eps=1e-4)
    tensor(1.)
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature must be positive, got {temperature}; 0.1 of the spread of the scores is a start."
        )
    require_rows(calibration, "calibration")
    require_rows(scores, "scores")
    if scores.ndim != calibration.ndim + 1 or scores.shape[:-2] != calibration.shape[:-1]:
        raise ValueError(
            f"scores must have shape {(*calibration.shape[:-1], 'm', 'L')} (m examples, L classes) for calibration of "
            f"shape {tuple(calibration.shape)}, got {tuple(scores.shape)}."
        )
    _position(calibration, alpha, mask, "calibration")  # for its messages
    q = soft_conformal_quantile(
        calibration, alpha, mask=mask, eps=eps, cost=cost, squash=squash, solver=solver, backend=backend
    )
    size = ((q[..., None, None] - scores) / temperature).sigmoid().sum(-1)
    exists = any_entry(as_mask(mask, calibration, "calibration"))
    if exists is not None:
        exists = exists.unsqueeze(-1).expand(size.shape)
    return reduce((size - free).relu(), reduction, weights, exists)


def _position(scores: Tensor, alpha: float, mask: Tensor | None, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """r and n (..., 1), and the mask."""
    require_samples(scores, name)
    if not isinstance(alpha, (int, float)) or not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1, got {alpha!r}; 0.1 asks for 90% coverage.")
    kept = as_mask(mask, scores, name)
    n = live_count(scores.to(wide_dtype(scores.device)), kept)
    r = ((n + 1.0) * (1.0 - alpha) - 1e-9).ceil()
    if values_readable(r) and ((r > n) & (n > 0)).any():
        fewest = int(n[n > 0].min())
        raise ValueError(
            f"{name} must hold at least 1/alpha - 1 calibration scores a row, got {fewest} for alpha = {alpha}: the "
            "conformal quantile would be infinite; calibrate on more examples, or raise alpha."
        )
    n = n.clamp(min=1.0)
    return r.minimum(n).clamp(min=1.0), n, kept
