"""What the reference took long for is said once, with what helps; nothing else is measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import sinksort
from sinksort.core import slow
from sinksort.kernels import backends


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock by which every call takes two seconds; the list holds what it was read for."""
    seen: list[float] = []
    ticks = itertools.count(0.0, 2.0)

    def read() -> float:
        seen.append(next(ticks))
        return seen[-1]

    monkeypatch.setattr(slow, "clock", read)
    monkeypatch.setattr(slow, "_said", set())
    return seen


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


CAUSES: dict[str, tuple[tuple[int, ...], dict[str, Any], str, str]] = {
    "by name": (
        (3, 5), {"backend": "torch"}, "backend='torch' asks for the reference",
        "leave backend out, so that kernels answer where they can",
    ),
    "Sinkhorn": (
        (3, 5), {"solver": sinksort.Sinkhorn(), "eps": 0.5}, "solver=Sinkhorn(...) takes many iterations",
        "leave solver out: Newton() takes about five",
    ),
    "another Newton": (
        (3, 5), {"solver": sinksort.Newton(tolerance=1e-11)},
        "solver=Newton(...) has options that kernels do not have", "leave solver out",
    ),
    "cost": (
        (1, 2049), {"cost": 1.5, "num_targets": 3},
        "only the squared cost has a fast way for more than 2048 values or targets",
        "leave cost at 2, or rank fewer values at a time",
    ),
    "float64": (
        (1, 40000), {}, "kernels for such rows compute in single precision, and x is float64", "pass x.float()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_its_advice(name: str, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    shape, options, cause, advice = CAUSES[name]
    x = draw(*shape)
    sinksort.soft_rank(x, **options)
    (record,) = caplog.records
    m = options.get("num_targets", shape[1])
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"sinksort: a call took 2.0 s in the reference ({shape[0]} rows of {shape[1]} values onto {m} targets, "
        f"torch.float64 on cpu), since {cause}; {advice}. This is said once."
    )
    sinksort.soft_rank(x, **options)
    assert len(caplog.records) == 1


def test_without_numba(clock: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends._MISSING, "numba", backends._missing("a_package_that_is_not_there", "numba"))
    sinksort.soft_rank(draw(3, 5, dtype=torch.float32).T, dim=0)
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    (message,) = said
    assert message == (
        "sinksort: a call took 2.0 s in the reference (3 rows of 5 values onto 5 targets, torch.float32 on cpu), "
        "since a_package_that_is_not_there is not installed; install it with: pip install numba. "
        "This is said once."
    )


def test_each_cause_is_said(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        sinksort.soft_rank(draw(3, 5), backend="torch")
        sinksort.soft_sort(draw(3, 5), backend="torch")
        sinksort.soft_rank(draw(3, 5), eps=0.5, solver=sinksort.Sinkhorn())
    assert len(caplog.records) == 2


def test_nothing_is_said_of_what_is_quick(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_said", set())
    monkeypatch.setattr(slow, "clock", itertools.count(0.0, slow.LONG).__next__)
    sinksort.soft_rank(draw(3, 5), backend="torch")
    assert not caplog.records


def test_kernels_and_programs_read_no_clock(clock: list[float]) -> None:
    sinksort.soft_rank(draw(3, 5, dtype=torch.float32))
    sinksort.soft_rank(draw(3, 5))
    torch.func.vmap(lambda x: sinksort.soft_rank(x, backend="torch"))(draw(3, 5))
    torch._dynamo.reset()
    torch.compile(lambda x: sinksort.transport(x).matrix(), fullgraph=True, backend="aot_eager")(draw(3, 5))
    assert not clock
