"""A few nodes in place of many equal targets on the regular grid, for the squared cost.

What     Nodes, weights and last polynomials of a Gauss rule for m targets, from ``rules.py``, as the kernels want them.
When     The default targets at the squared cost, when the rule has clearly fewer nodes than there are targets.
Why      128 x 100 at eps = 1e-2: 48 nodes take a third of the time of 100 targets.
Keeps    Rules, as long as the process lives.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from ....linear.rules import gauss_rule

#: Share of the values that a rule may put wrong by its own estimate, for answers in double and in single precision.
#: The estimate is cautious: ranks of 7 kinds of rows of 60 to 1,000 values at eps from 1e-3 to 1e-1 were off by at most
#: a thousandth of it (of n), and their gradients by at most a thirtieth.
LOST, LOST_IN_SINGLE = 1e-7, 1e-5
_NODES = 4.2, 6.0  # a and b of a / sqrt(eps) + b nodes, which are enough for normal values
_WORTH = 1.3  # how many times more targets there must be
_MOST = 512  # nodes; more take longer than a small problem in torch


class Rule(NamedTuple):
    y: np.ndarray  #: (1, K) nodes on [0, 1]
    b: np.ndarray  #: (1, K) their weights
    last: np.ndarray  #: (6, K) or more columns, zeros behind: the last polynomials at the nodes


def rule_for(m: int, eps: float) -> Rule | None:
    """Return the rule for m targets at the smallest eps of a call, or None where it is not worth it."""
    if not eps > 0.0:
        return None
    per_width, more = _NODES
    K = (int(per_width / math.sqrt(eps) + more) + 15) // 16 * 16
    return rule_of(m, K) if m >= _WORTH * K and K <= _MOST else None


@functools.lru_cache(256)
def rule_of(m: int, K: int) -> Rule:
    """Return the rule of K nodes for m targets."""
    nodes, weights, last = gauss_rule(m, K)
    return Rule(nodes[None] / (m - 1), weights[None].copy(), np.ascontiguousarray(last))
