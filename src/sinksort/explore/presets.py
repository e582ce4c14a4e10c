"""States to begin with: the README's numbers, the paper's three figures, and many values."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..paper import figure1, figure2, figure3
from .state import DEFAULT, State


def _tuple(x: Tensor) -> tuple[float, ...]:
    return tuple(x.tolist())


PRESETS: dict[str, State] = {
    "Five numbers": DEFAULT,
    "Figure 1: sorting as transport": State(
        x=_tuple(figure1.X),
        num_targets=len(figure1.B),
        target_weights=_tuple(figure1.B),
        eps=figure1.EPS,
        squash="none",
    ),
    "Figure 2: slide eps": State(x=_tuple(figure2.X), eps=1e-2),
    "Figure 3: a 30% quantile": State(
        x=_tuple(figure3.X),
        num_targets=3,
        target_weights=tuple(round(b, 12) for b in figure3.plan().problem.b.tolist()),
        eps=figure3.EPS,
        squash="none",
        reads="sorted",
        index=1,  # the filler, whose value is the quantile
    ),
    "Fifty normal values": State(
        x=tuple(round(float(v), 3) for v in np.random.default_rng(1).standard_normal(50)), eps=3e-3
    ),
}
