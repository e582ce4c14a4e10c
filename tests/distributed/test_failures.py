"""A rank that dies, or does not come: the others say so within the timeout of their group."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch

import sinksort.distributed as spread
from tests.processes import Team

TIMEOUT = 2.0


def without_one(rank: int, size: int, end: str) -> Any:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    ranks = spread.soft_rank(x)
    if rank == 1:
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "ended":
            os._exit(3)
        time.sleep(3 * TIMEOUT if end == "late" else 0)
    started = time.monotonic()
    try:
        if end == "forgot backward":
            if rank != 1:
                ranks.sum().backward()
        else:
            spread.soft_quantile(x, 0.5)
    except RuntimeError as error:
        return str(error), time.monotonic() - started
    return "no error", 0.0


@pytest.mark.parametrize("end", ["killed", "ended", "late", "forgot backward"])
def test_the_others_hear_of_it(end: str) -> None:
    team = Team(3, TIMEOUT)
    try:
        first, second, third = team.run(without_one, end)
    finally:
        team.close()
    assert (second is None) == (end in ("killed", "ended"))
    for message, seconds in (first, third):
        assert "waited for the other ranks of its group, and at least one did not answer" in message
        assert "it has ended, was killed, or did not make this call" in message
        assert seconds < 3 * TIMEOUT  # the second of two collectives may wait again; nobody hangs
