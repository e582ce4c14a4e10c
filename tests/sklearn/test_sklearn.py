"""The scikit-learn estimators: scikit-learn's own checks, contaminated data, exact small cases, pipelines."""

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from sinksort.sklearn import LeastQuantileRegressor, LeastTrimmedRegressor, SoftTopKClassifier
from sinksort.sklearn.layers import Units, fold, predict, random_layers, unfold
from sinksort.sklearn.robust import order_statistic, robust_units, shortest_interval_centre
from tests.devices import DEVICES

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

REGRESSORS = [LeastQuantileRegressor, LeastTrimmedRegressor]


def contaminated(kind, seed, n=150, d=3):
    """A linear model with 30 % of the rows spoiled; X, y and the true coefficients."""
    random = np.random.RandomState(seed)
    X, beta = random.normal(size=(n, d)), random.normal(size=d)
    y = X @ beta + 1 + 0.3 * random.normal(size=n)
    spoiled = random.choice(n, int(0.3 * n), replace=False)
    if kind == "shifted":
        y[spoiled] += 20 + 5 * random.normal(size=len(spoiled))
    elif kind == "leverage":
        X[spoiled] = 5 + random.normal(size=(len(spoiled), d))
        y[spoiled] = -10 + random.normal(size=len(spoiled))
    else:
        y[spoiled] = 1e4 * random.standard_cauchy(size=len(spoiled))
    return X, y, beta


@pytest.mark.parametrize(
    "estimator",
    [
        LeastQuantileRegressor(max_iter=2, n_starts=5),
        LeastTrimmedRegressor(max_iter=2, n_starts=5),
        SoftTopKClassifier(max_iter=3),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_own_checks(estimator):
    results = check_estimator(estimator, on_fail=None)
    assert [r["check_name"] for r in results if r["status"] == "failed"] == []
    assert sum(r["status"] == "passed" for r in results) > 45


@pytest.mark.parametrize("kind", ["shifted", "leverage", "heavy"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("estimator", REGRESSORS)
def test_a_third_of_the_error_of_least_squares_with_30_percent_outliers(estimator, seed, kind):
    X, y, beta = contaminated(kind, seed)
    ordinary = np.linalg.norm(LinearRegression().fit(X, y).coef_ - beta)
    robust = np.linalg.norm(estimator(max_iter=30, random_state=seed).fit(X, y).coef_ - beta)
    assert robust <= ordinary / 3
    assert robust < 0.25


@pytest.mark.parametrize("seed", [0, 1])
def test_soft_training_lowers_the_hard_quantile_of_the_start(seed):
    X, y, _ = contaminated("shifted", seed)

    def quantile(**options):
        model = LeastQuantileRegressor(random_state=0, **options).fit(X, y)
        return order_statistic(np.abs(y - model.predict(X)), 0.5)

    assert quantile(max_iter=40) < 0.99 * quantile(max_iter=1, learning_rate=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_least_median_line_is_nearly_the_exact_one(seed):
    """The exact one (Stromberg 1993) is the Chebyshev line of three of the points: enumerate them all."""
    random = np.random.RandomState(seed)
    x, noise = random.normal(size=15), random.normal(size=15)
    y = 2 * x + 0.5 * noise + 8 * (random.rand(15) < 0.3)
    exact = np.inf
    for three in itertools.combinations(range(15), 3):
        a, b, c = sorted(three, key=lambda i: x[i])
        slope = (y[c] - y[a]) / (x[c] - x[a])
        offset = 0.5 * ((y[a] - slope * x[a]) + (y[b] - slope * x[b]))
        exact = min(exact, order_statistic(np.abs(y - slope * x - offset), 0.5))
    model = LeastQuantileRegressor(n_starts=100, max_iter=60, random_state=0).fit(x[:, None], y)
    found = order_statistic(np.abs(y - model.predict(x[:, None])), 0.5)
    assert exact - 1e-12 <= found <= 1.1 * exact


@pytest.mark.parametrize("seed", [0, 1])
def test_least_trimmed_line_is_the_exact_one(seed):
    random = np.random.RandomState(seed)
    x = random.normal(size=12)
    y = 2 * x + 0.5 * random.normal(size=12) + 8 * (random.rand(12) < 0.3)
    best = np.inf
    for subset in map(list, itertools.combinations(range(12), 8)):
        line = np.polyfit(x[subset], y[subset], 1)
        loss = np.square(y[subset] - np.polyval(line, x[subset])).mean()
        if loss < best:
            best, slope, offset = loss, *line
    model = LeastTrimmedRegressor(trim=1 / 3, eps=1e-4, n_starts=50, max_iter=40, random_state=0).fit(x[:, None], y)
    assert model.coef_[0] == pytest.approx(slope, abs=1e-3)
    assert model.intercept_ == pytest.approx(offset, abs=1e-3)


def test_without_trimming_it_is_least_squares():
    X, y, _ = contaminated("shifted", 0)
    model = LeastTrimmedRegressor(trim=0.0, max_iter=20, random_state=0).fit(X, y)
    ordinary = LinearRegression().fit(X, y)
    assert_allclose(model.coef_, ordinary.coef_, atol=1e-6)
    assert model.intercept_ == pytest.approx(ordinary.intercept_)


@pytest.mark.parametrize("estimator", REGRESSORS)
def test_regression_follows_the_units_of_the_data(estimator):
    X, y, _ = contaminated("shifted", 3, n=60)
    model = estimator(max_iter=15, random_state=0)
    before = model.fit(X, y).predict(X)
    after = model.fit(X * [1e3, 1e-3, 7.0] + 5.0, 100 * y - 40).predict(X * [1e3, 1e-3, 7.0] + 5.0)
    assert_allclose(after, 100 * before - 40, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        LeastQuantileRegressor(
            0.65, width=0.3, hidden_layer_sizes=(32,), learning_rate=0.03, max_iter=60, random_state=0
        ),
        LeastTrimmedRegressor(0.35, hidden_layer_sizes=32, learning_rate=0.03, max_iter=120, random_state=0),
    ],
)
def test_a_network_finds_a_curve_among_outliers(model):
    random = np.random.RandomState(0)
    x = random.uniform(-2, 2, size=(200, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * random.normal(size=200)
    spoiled = random.choice(200, 60, replace=False)
    y[spoiled] += random.uniform(5, 20, size=60)
    grid = np.linspace(-1.9, 1.9, 100)[:, None]
    error = np.sqrt(np.mean((model.fit(x, y).predict(grid) - np.sin(2 * grid[:, 0])) ** 2))
    assert error < 0.25  # ordinary squares: more than 3, the mean of the outliers' share
    assert [W.shape for W in model.coefs_] == [(1, 32), (32, 1)]
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_classifier_ignores_a_far_cluster_with_a_wrong_label(classes, seed):
    random = np.random.RandomState(seed)
    angle = 2 * np.pi * np.arange(classes) / classes
    centres = 3 * np.column_stack([np.cos(angle), np.sin(angle)])
    labels, true = random.randint(classes, size=240), random.randint(classes, size=1000)
    X, X_true = centres[labels] + random.normal(size=(240, 2)), centres[true] + random.normal(size=(1000, 2))
    wrong = random.choice(240, 48, replace=False)
    X[wrong], labels[wrong] = random.normal(loc=[15.0, 0.0], size=(48, 2)), 1
    ordinary = LogisticRegression(max_iter=1000).fit(X, labels).score(X_true, true)
    robust = SoftTopKClassifier(max_iter=40, random_state=0).fit(X, labels).score(X_true, true)
    assert robust > 0.95
    assert robust > ordinary + 0.05


def test_two_guesses_when_one_is_not_enough():
    """Four overlapping classes in a row: the true label is one of two neighbours."""
    random = np.random.RandomState(0)
    y = random.randint(4, size=200)
    X = y[:, None] + 0.4 * random.normal(size=(200, 1))
    model = SoftTopKClassifier(k=2, max_iter=30, random_state=0).fit(X, y)
    pairs = model.predict_top_k(X)
    assert pairs.shape == (200, 2)
    assert (pairs == y[:, None]).any(-1).mean() > 0.95
    assert_array_equal(pairs[:, 0], model.predict(X))


def test_label_types_and_the_sign_of_the_decision():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "other"])[(y > 0).astype(int)]
    model = SoftTopKClassifier(max_iter=10, random_state=0).fit(X, names)
    assert_array_equal(model.classes_, ["other", "setosa"])
    assert model.score(X, names) == 1.0
    assert_array_equal(model.decision_function(X) > 0, names == "setosa")
    scores = SoftTopKClassifier(max_iter=2, random_state=0).fit(X, y).decision_function(X)
    assert scores.shape == (150, 3)


MODELS = [
    LeastQuantileRegressor(max_iter=4, random_state=0),
    LeastQuantileRegressor(max_iter=4, hidden_layer_sizes=(5, 4), batch_size=40, early_stopping=True, random_state=0),
    LeastTrimmedRegressor(max_iter=4, batch_size=32, random_state=0),
    SoftTopKClassifier(max_iter=4, hidden_layer_sizes=(6,), early_stopping=True, random_state=0),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}{m.hidden_layer_sizes}")
def test_clones_pickles_and_seeds(model):
    X, y = load_iris(return_X_y=True)
    state = torch.random.get_rng_state()
    model = clone(model).fit(X, y)
    assert torch.equal(state, torch.random.get_rng_state())  # nobody else's random numbers are used up
    expected = model.predict(X)
    assert isinstance(expected, np.ndarray)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), expected)
    again = clone(model).fit(X, y)
    assert_array_equal(again.predict(X), expected)
    for ours, theirs in zip(again.coefs_, model.coefs_, strict=True):
        assert_array_equal(ours, theirs)
    other = clone(model).set_params(random_state=1).fit(X, y)
    if model.hidden_layer_sizes:
        assert not np.array_equal(other.coefs_[0], model.coefs_[0])
    assert len(model.loss_curve_) == model.n_iter_ == 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}{m.hidden_layer_sizes}")
def test_the_device_makes_no_difference(model, device):
    X, y = load_iris(return_X_y=True)
    by_default, there = clone(model).fit(X, y), clone(model).set_params(device=device).fit(X, y)
    for ours, theirs in zip(by_default.coefs_, there.coefs_, strict=True):
        assert_allclose(ours, theirs, atol=1e-9)


def test_pipeline_and_grid_search():
    X, y, _ = contaminated("shifted", 0, n=90)
    pipeline = make_pipeline(StandardScaler(), LeastTrimmedRegressor(max_iter=3, random_state=0))
    search = GridSearchCV(
        pipeline, {"leasttrimmedregressor__trim": [0.0, 0.4]}, cv=3, scoring="neg_median_absolute_error"
    ).fit(X, y)
    assert search.best_params_ == {"leasttrimmedregressor__trim": 0.4}


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_warm_start_goes_on_where_it_ended(hidden):
    X, y, _ = contaminated("shifted", 1, n=80)
    model = LeastTrimmedRegressor(hidden_layer_sizes=hidden, max_iter=25, warm_start=True, random_state=0).fit(X, y)
    first = model.best_loss_
    before = model.predict(X)
    model.set_params(max_iter=1, learning_rate=1e-12).fit(X, y)
    assert_allclose(model.predict(X), before, atol=1e-8)
    assert model.best_loss_ == pytest.approx(first)
    cold = clone(model).fit(X, y)
    if hidden:
        assert cold.best_loss_ > first


def test_warm_start_with_other_sizes_begins_anew():
    X, y, _ = contaminated("shifted", 1, n=60)
    model = LeastTrimmedRegressor(max_iter=2, warm_start=True, random_state=0).fit(X, y).fit(X[:, :2], y)
    assert model.coef_.shape == (2,)


def test_early_stopping_judges_by_what_was_held_out():
    """All noise: the held-out loss cannot fall as the training loss of a large network does."""
    random = np.random.RandomState(0)
    X, y = random.normal(size=(60, 8)), random.normal(size=60)
    options = {"trim": 0.1, "hidden_layer_sizes": (64,), "max_iter": 40, "learning_rate": 0.03, "random_state": 0}
    memorised = LeastTrimmedRegressor(**options).fit(X, y)
    stopped = LeastTrimmedRegressor(**options, early_stopping=True, validation_fraction=0.3).fit(X, y)
    assert memorised.best_loss_ < 0.5 * stopped.best_loss_


def test_progress_is_printed_when_wanted(capsys):
    X, y, _ = contaminated("shifted", 0, n=40)
    LeastTrimmedRegressor(max_iter=4, random_state=0).fit(X, y)
    assert capsys.readouterr().out == ""
    LeastTrimmedRegressor(max_iter=4, verbose=2, random_state=0).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"LeastTrimmedRegressor: epoch {i} of 4" for i in (2, 4)]


def test_an_unfinished_fit_is_reported():
    X, y, _ = contaminated("shifted", 0, n=40)
    with pytest.warns(
        ConvergenceWarning, match=r"LeastTrimmedRegressor stopped after max_iter=2 epochs .* raise max_iter"
    ):
        LeastTrimmedRegressor(max_iter=2, random_state=0).fit(X, y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            LeastQuantileRegressor(tau=0.0),
            r"tau must be a number > 0 and <= 1, got 0\.0; it is the share of the data to be fitted",
        ),
        (LeastQuantileRegressor(tau="half"), r"LeastQuantileRegressor: tau must be a number > 0 and <= 1, got 'half'"),
        (LeastQuantileRegressor(width=2.0), r"width must be a number > 0 and <= 1, got 2\.0; None for one residual"),
        (
            LeastQuantileRegressor(device="gpu"),
            r"device must be 'auto' or a torch device that .*, got 'gpu'; 'cpu' alw",
        ),
        (LeastQuantileRegressor(verbose="yes"), r"verbose must be True, False or an integer >= 0, got 'yes'\."),
        (LeastQuantileRegressor(n_starts=-1), r"n_starts must be an integer >= 0, got -1\."),
        (
            LeastTrimmedRegressor(trim=1.0),
            r"trim must be a number >= 0 and < 1, got 1\.0; it is the share of the data to leave out",
        ),
        (
            LeastTrimmedRegressor(eps=0),
            r"LeastTrimmedRegressor: eps must be a number > 0, got 0; 1e-2 is a good start\.",
        ),
        (LeastTrimmedRegressor(alpha=-1), r"alpha must be a number >= 0, got -1; 0 for no penalty\."),
        (LeastTrimmedRegressor(max_iter=0), r"max_iter must be an integer >= 1, got 0\."),
        (LeastTrimmedRegressor(batch_size=1), r"batch_size must be 'auto' or an integer >= 2, got 1\."),
        (LeastTrimmedRegressor(validation_fraction=1.0), r"validation_fraction must be a number > 0 and < 1, got 1\.0"),
        (
            LeastTrimmedRegressor(hidden_layer_sizes=(4, 0)),
            r"entry of hidden_layer_sizes must be an integer >= 1, got 0\.",
        ),
        (SoftTopKClassifier(k=0), r"SoftTopKClassifier: k must be an integer >= 1, got 0\."),
        (SoftTopKClassifier(k=3), r"k must be below the number of classes, 3, got 3; the 3 best of 3 labels always"),
    ],
)
def test_errors_of_options(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(*load_iris(return_X_y=True))


def test_errors_of_data():
    with pytest.raises(ValueError, match=r"needs at least two classes in y, got one class: "):
        SoftTopKClassifier().fit([[0.0], [1.0]], [1, 1])
    with pytest.raises(NotFittedError):
        LeastQuantileRegressor().predict([[0.0]])


@pytest.mark.parametrize("estimator", REGRESSORS)
@pytest.mark.parametrize("factor", [1e-150, 1e150, 1e200])
def test_very_small_and_very_large_data(estimator, factor):
    X, y, beta = contaminated("shifted", 0, n=60)
    for coefficients in (
        estimator(max_iter=3, random_state=0).fit(X, y * factor).coef_ / factor,
        estimator(max_iter=3, random_state=0).fit(X * factor, y).coef_ * factor,
    ):
        assert np.linalg.norm(coefficients - beta) < 0.3


@pytest.mark.parametrize("estimator", REGRESSORS)
def test_degenerate_data(estimator):
    random = np.random.RandomState(0)
    X, y = random.normal(size=(40, 3)), random.normal(size=40)
    model = estimator(max_iter=3, random_state=0)
    assert_allclose(model.fit(X, np.full(40, 7.0)).predict(X), 7.0)
    assert_allclose(model.fit(X[:2], y[:2]).predict(X[:2]), y[:2], atol=1e-9)  # fewer rows than coefficients
    constant = model.fit(np.ones((40, 2)), y).predict(np.ones((1, 2)))
    assert y.min() < constant < y.max()
    single = model.fit(X.astype(np.float32), y.astype(np.float32)).predict(X.astype(np.float32))
    assert_allclose(single, model.fit(X, y).predict(X), atol=1e-4)
    stopped = clone(model).set_params(early_stopping=True).fit(X[:3], y[:3])
    assert np.isfinite(stopped.coef_).all()


@pytest.mark.parametrize(
    "labels", [np.repeat([0, 1, 2, 3], 3), np.r_[np.zeros(11, int), 1]], ids=["more classes than held out", "rare"]
)
def test_early_stopping_with_few_rows_of_a_class(labels):
    X = np.random.RandomState(0).normal(size=(12, 2))
    model = SoftTopKClassifier(max_iter=3, early_stopping=True, random_state=0).fit(X, labels)
    assert_array_equal(model.classes_, np.unique(labels))


def test_without_scikit_learn_the_error_names_the_extra():
    code = (
        "import sys; sys.modules['sklearn'] = None\nimport sinksort, sinksort.relaxations\n"
        "try:\n    import sinksort.sklearn\nexcept ImportError as error:\n    print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "sinksort.sklearn needs scikit-learn 1.6 or newer" in out
    assert "pip install 'sinksort[sklearn]'" in out


# ---- parts


def test_fold_and_unfold_are_inverse_and_mean_the_same():
    random = np.random.RandomState(0)
    X, sizes = random.normal(size=(20, 3)) * [1, 50, 0.1] + 7, [3, 4, 1]
    features, response = robust_units(X), Units(np.array([5.0]), np.array([3.0]))
    layers = random_layers(sizes, random)
    folded = fold(layers, features, response)
    assert_allclose(predict(folded, X), 3 * predict(layers, features.standardize(X)) + 5)
    for (W, b), (W2, b2) in zip(layers, unfold(folded, features, response), strict=True):
        assert_allclose(W, W2, atol=1e-10)
        assert_allclose(b, b2, atol=1e-10)


def test_robust_units_of_ordinary_and_odd_columns():
    spread = np.random.RandomState(0).normal(3, 2, size=4001)
    mostly_zero = np.where(np.arange(4001) % 10 == 0, 1.0, 0.0)
    units = robust_units(np.column_stack([spread, mostly_zero, np.full(4001, 7.0)]))
    assert_allclose(units.centre, [3, 0, 7], atol=0.1)
    assert_allclose(units.scale, [2, mostly_zero.std(), 1], rtol=0.05)


def test_the_middle_of_the_shortest_interval():
    assert shortest_interval_centre(np.array([9.0, 0.0, 1.0, 1.5, 20.0]), 0.6) == 0.75
    values = np.random.RandomState(0).normal(size=31)
    grid = np.linspace(-2, 2, 20_001)
    least = min(order_statistic(np.abs(values - c), 0.5) for c in grid)
    found = order_statistic(np.abs(values - shortest_interval_centre(values, 0.5)), 0.5)
    assert found == pytest.approx(least, abs=2e-4)
