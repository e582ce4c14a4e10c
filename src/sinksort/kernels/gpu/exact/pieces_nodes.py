"""Targets of rows that one rule cannot answer: panels of at most sixteen nodes, halved on the device where it takes it.

A panel is (level, index): targets index m >> level up to (index + 1) m >> level, of m. On each level panels come in two
sizes, so all the rules that can ever be needed are a small table, see ``rules.gauss_rule``; where a panel has no more
than sixteen targets, these are its nodes. Slots without a target weigh nothing and stand where the last target does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ....core.modes import remembered
from ....linear.rules import LAST, gauss_rule

SLOTS = tl.constexpr(16)  #: nodes of a panel
RULE = tl.constexpr(16 * (2 + LAST))  #: numbers of a rule: nodes, weights, and what estimates its error


@remembered(64)
def rules_of(m: int, device: torch.device) -> Tensor:
    """(levels, 2, 8, 16) float64: the rules of panels with m >> level targets, and with one more."""
    slots = SLOTS.value
    levels = max(1, (m // slots).bit_length())
    table = np.zeros((levels, 2, RULE.value // slots, slots))
    for level in range(levels):
        for more in range(2):
            count = (m >> level) + more
            if slots < count <= m:
                nodes, weights, last = gauss_rule(count, slots)
                table[level, more] = np.stack([nodes, weights, *last])
    return torch.as_tensor(table, dtype=torch.float64, device=device)


@triton.jit
def sizes_of_panels(level: tl.tensor, index: tl.tensor, m: tl.tensor) -> Any:
    """First targets and how many."""
    low = (index.to(tl.int64) * m) >> level.to(tl.int64)
    high = ((index.to(tl.int64) + 1) * m) >> level.to(tl.int64)
    return low, high - low


@triton.jit
def rule_at(rules: tl.tensor, level: tl.tensor, count: tl.tensor, m: tl.tensor) -> Any:
    fewer = (m.to(tl.int64) + level.to(tl.int64) * 0) >> level.to(tl.int64)
    return rules + (2 * level + (count - fewer)) * RULE


@triton.jit
def nodes_of(
    level: tl.tensor, index: tl.tensor, panels: tl.tensor, m: tl.tensor, rules: tl.tensor, room: tl.tensor,
    PANELS: tl.constexpr,
) -> Any:  # fmt: skip
    """Places of all slots in [-1/2, 1/2] (double), the steps between them, and weights. ``room``: a double a slot."""
    slot = tl.arange(0, SLOTS)[None, :]
    low, count = sizes_of_panels(level, index, m)
    there = (tl.arange(0, PANELS) < panels)[:, None]
    ruled = there & (count > SLOTS)[:, None]
    rule = rule_at(rules, level, count, m)[:, None]
    count = count[:, None]
    own = tl.minimum(slot, count - 1).to(tl.float64)
    own = tl.where(ruled, tl.load(rule + slot, mask=ruled, other=0.0), own)
    of_rule = tl.load(rule + SLOTS + slot, mask=ruled, other=0.0) * count.to(tl.float64)
    share = tl.where(ruled, of_rule, tl.where(slot < count, 1.0, 0.0).to(tl.float64))
    y = (low[:, None].to(tl.float64) + own) / (m - 1).to(tl.float64) - 0.5
    y = tl.reshape(tl.where(there, y, 0.5), [PANELS * SLOTS])
    b = tl.reshape(tl.where(there, share / m.to(tl.float64), 0.0), [PANELS * SLOTS])
    j = tl.arange(0, PANELS * SLOTS)
    tl.debug_barrier()
    tl.store(room + j, y)
    tl.debug_barrier()
    following = tl.load(room + j + 1, mask=j + 1 < PANELS * SLOTS, other=0.5)
    return y, tl.maximum(following - y, 0.0).to(tl.float32), b.to(tl.float32)


@triton.jit
def with_target(level: tl.tensor, index: tl.tensor, m: tl.tensor, PANELS: tl.constexpr) -> Any:
    """For every slot the last one up to it in its panel that has a target."""
    _low, count = sizes_of_panels(level, index, m)
    slot = tl.minimum(tl.arange(0, SLOTS)[None, :], count[:, None].to(tl.int32) - 1)
    return tl.reshape(tl.arange(0, PANELS)[:, None] * SLOTS + slot, [PANELS * SLOTS])


@triton.jit
def estimating(
    level: tl.tensor, index: tl.tensor, panels: tl.tensor, m: tl.tensor, rules: tl.tensor, order: tl.tensor,
    PANELS: tl.constexpr,
) -> Any:  # fmt: skip
    """One of the last polynomials of all rules, (1, panels, slots); zero where all targets are nodes."""
    _low, count = sizes_of_panels(level, index, m)
    ruled = ((tl.arange(0, PANELS) < panels) & (count > SLOTS))[:, None]
    at = rule_at(rules, level, count, m)[:, None] + (2 + order) * SLOTS + tl.arange(0, SLOTS)[None, :]
    return tl.load(at, mask=ruled, other=0.0).to(tl.float32)[None, :, :]


@triton.jit
def halved(
    level: tl.tensor, index: tl.tensor, panels: tl.tensor, cut: tl.tensor, room: tl.tensor, PANELS: tl.constexpr
) -> Any:
    """Panels after some of them were cut in two. ``room``: two whole numbers a panel."""
    q = tl.arange(0, PANELS)
    there = q < panels
    more = tl.where(cut & there, 1, 0)
    to = q + tl.cumsum(more, 0) - more
    tl.debug_barrier()
    tl.store(room + to, level + more, mask=there)
    tl.store(room + PANELS + to, index * (1 + more), mask=there)
    tl.store(room + to + 1, level + 1, mask=there & cut)
    tl.store(room + PANELS + to + 1, 2 * index + 1, mask=there & cut)
    tl.debug_barrier()
    panels = panels + tl.sum(more, 0)
    there = q < panels
    level = tl.load(room + q, mask=there, other=0)
    return level, tl.load(room + PANELS + q, mask=there, other=0), panels


@triton.jit
def continued(
    G: tl.tensor, y: tl.tensor, y_new: tl.tensor, slots: tl.tensor, real: tl.tensor, room: tl.tensor, KP: tl.constexpr
) -> Any:
    """A function given at y, in between and beyond by straight lines. ``room``: three doubles a slot.

    So many slots are in use; ``real``: those that have the same place and a target.
    """
    j = tl.arange(0, KP)
    tl.debug_barrier()
    tl.store(room + j, y)
    tl.store(room + 2 * KP + j, G)
    tl.debug_barrier()
    tl.store(room + KP + j, tl.load(room + 2 * KP + real))
    tl.debug_barrier()
    first = tl.zeros([KP], tl.int32)  # the last node that is not beyond, by bisection
    beyond = tl.zeros([KP], tl.int32) + slots - 1
    while tl.max(beyond - first, 0) > 1:
        middle = (first + beyond) // 2
        within = tl.load(room + middle) <= y_new
        wide = beyond - first > 1
        first = tl.where(wide & within, middle, first)
        beyond = tl.where(wide & ~within, middle, beyond)
    y0, y1 = tl.load(room + first), tl.load(room + beyond)
    G0, G1 = tl.load(room + KP + first), tl.load(room + KP + beyond)
    rise = tl.where(y1 > y0, (G1 - G0) / tl.where(y1 > y0, y1 - y0, 1.0), 0.0)
    return G0 + rise * (y_new - y0)
