"""Student's and Welch's tests against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from sinksort.paper.significance import paired, tails, welch


@pytest.mark.parametrize("seed", range(10))
def test_welch_and_pairs_are_those_of_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=rng.integers(2, 15)), 1 + 3 * rng.normal(size=rng.integers(2, 15))
    ours, theirs = welch(one.tolist(), other.tolist()), scipy.stats.ttest_ind(one, other, equal_var=False)
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-10)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    count = min(len(one), len(other))
    ours, theirs = (
        paired(one[:count].tolist(), other[:count].tolist()),
        scipy.stats.ttest_rel(one[:count], other[:count]),
    )
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-10)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("freedom", [1.0, 1.3, 2.0, 5.7, 18.0, 200.0])
def test_tails_are_those_of_scipy(freedom: float) -> None:
    for t in (0.0, 0.3, 2.0, 12.0):
        assert tails(t, freedom) == pytest.approx(2 * scipy.stats.t.sf(t, freedom), rel=1e-5, abs=1e-12)


def test_verdicts() -> None:
    assert welch([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]).verdict == "behind"
    assert welch([2.0, 2.1, 1.9], [1.0, 1.1, 0.9]).verdict == "ahead"
    assert welch([1.0, 3.0], [1.5, 2.0]).verdict == "level"
    assert welch([1.0, 1.0], [2.0, 2.0]).p == 0.0  # no spread at all
    assert paired([1.0, 2.0], [1.0, 2.0]).verdict == "level"


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="two numbers or more on both sides, got 1 and 2"):
        welch([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="two pairs or more, got 1"):
        paired([1.0], [2.0])
