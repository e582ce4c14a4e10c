"""Where tests run: the CPU, and CUDA where there is one. A list to parametrise over, not a skip. And limits there."""

from __future__ import annotations

import pytest
import torch

from sinksort.kernels import dispatch

DEVICES: list[str] = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def limits(monkeypatch: pytest.MonkeyPatch, **named: int) -> None:
    """Give the table of the GPU's kernels other limits, so that short rows go where longer ones do."""
    monkeypatch.setitem(dispatch.KERNELS, "triton", dispatch.of_triton(**named))
    monkeypatch.setattr(dispatch, "_first_again", dispatch._first)
