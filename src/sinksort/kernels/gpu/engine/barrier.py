"""A barrier for programs that work on one row together."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def meet(ticket: tl.tensor, met: tl.tensor, P: tl.tensor) -> Any:
    """Goes on when all programs are here; what each has written the others see."""
    met = met + P
    tl.debug_barrier()
    seen = tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu") + 1
    while seen < met:
        seen = tl.atomic_add(ticket, 0, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return met
