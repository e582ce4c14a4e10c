"""Where tests run: the CPU, and CUDA where there is one. A list to parametrise over, not a skip. And limits there."""

from __future__ import annotations

import pytest
import torch

from sinksort.kernels import dispatch
from sinksort.kernels.contract import Request

DEVICES: list[str] = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def limits(monkeypatch: pytest.MonkeyPatch, **named: int) -> None:
    """Give the table of the GPU's kernels other limits, so that short rows go where longer ones do."""
    monkeypatch.setitem(dispatch.KERNELS, "triton", dispatch.of_triton(**named))
    monkeypatch.setattr(dispatch, "_first_again", dispatch._first)


def refusal(name: str, request: Request, read: str = "pull") -> str | None:
    """Why the table has no kernels for a request, or None if it has."""
    facts = dispatch.facts_of(name, request, read)
    row = dispatch.kernels_for(name, request, read)
    return row.reason(facts) if row.answer == dispatch.PLAN else None
