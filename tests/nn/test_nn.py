"""Modules: they compute what their functions do, say what they are, move, save, schedule and pass straight through."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import sinksort
import sinksort.nn as snn
from sinksort import losses
from sinksort.schedules import EpsSchedule, rank_spread, suggest_eps
from tests.devices import DEVICES


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


X = drawn(0, 4, 6)
T = drawn(1, 4, 6)
LABELS = torch.tensor([0, 5, 2, 2])
GRADES = torch.tensor([[0, 1, 2, 0, 0, 1]] * 4)
GROUPS = torch.tensor([[0, 1, 1, 0, 2, 2]] * 4)
W_ROWS = torch.tensor([1.0, 2.0, 0.5, 0.0], dtype=torch.float64)
W_ENTRIES = torch.tensor([[1.0, 2.0, 0.5, 1.0, 3.0, 1.0]] * 4, dtype=torch.float64)
MASK = torch.tensor([[True] * 5 + [False]] * 2 + [[True] * 6] * 2)

#: module with every option off its default, the function with the same, what they are called with, their weights
OPTIONS = {"eps": 0.07, "cost": 1.5, "squash": "arctan", "reduction": "sum"}
PAIRS = {
    "TopKLoss": ((2,), {"J": "log", "rescale": True, "positives": "any"}, (X, LABELS), W_ROWS),
    "MembershipLoss": ((2,), {"power": 0.5, "positives": "any"}, (X, LABELS), W_ROWS),
    "LeastQuantileLoss": ((0.7,), {"power": 2.0, "width": 0.3}, (X,), W_ENTRIES),
    "TrimmedLoss": ((0.1, 0.7), {}, (X,), W_ENTRIES),
    "MedianOfMeans": ((3,), {}, (X,), W_ENTRIES),
    "SpearmanLoss": ((), {}, (X, T), W_ENTRIES),
    "KendallLoss": ((), {"pair_weights": "hyperbolic", "margin": 2.0}, (X, T), W_ENTRIES),
    "NDCGLoss": ((3,), {"gain": "exponential"}, (X, GRADES), W_ROWS),
    "AveragePrecisionLoss": ((3,), {}, (X, GRADES), W_ROWS),
    "ReciprocalRankLoss": ((3,), {}, (X, GRADES), W_ROWS),
    "RecallAtKLoss": ((3,), {}, (X, GRADES), W_ROWS),
    "PartialOrderLoss": (
        (),
        {},
        (X, torch.tensor([[1, 1, 3, 1, 1, 2]] * 4), torch.tensor([[1, 4, 5, 5, 5, 2]] * 4)),
        W_ROWS,
    ),
    "PermutationCrossEntropy": ((), {"objective": "nll"}, (X, torch.tensor([[1, 2, 3, 4, 5, 2]] * 4)), W_ROWS),
    "QuantileParityLoss": ((), {"p": 2.0, "num_quantiles": 5, "num_groups": 3}, (X, GROUPS), W_ENTRIES),
    "KNNLoss": ((3,), {"objective": "nll", "num_classes": 6}, (X, GROUPS, torch.tensor([0, 1, 2, 0])), W_ROWS),
    "ConformalSizeLoss": (
        (0.3,),
        {"temperature": 0.5, "free": 0.5},
        (X, drawn(2, 4, 3, 5)),
        W_ROWS[:, None].expand(4, 3),
    ),
}
FUNCTIONS = {
    "TopKLoss": losses.topk_loss,
    "MembershipLoss": losses.membership_loss,
    "LeastQuantileLoss": losses.least_quantile_loss,
    "TrimmedLoss": losses.trimmed_loss,
    "MedianOfMeans": losses.median_of_means,
    "SpearmanLoss": losses.spearman_loss,
    "KendallLoss": losses.kendall_loss,
    "NDCGLoss": losses.ndcg_loss,
    "AveragePrecisionLoss": losses.average_precision_loss,
    "ReciprocalRankLoss": losses.reciprocal_rank_loss,
    "RecallAtKLoss": losses.recall_at_k_loss,
    "PartialOrderLoss": losses.partial_order_loss,
    "PermutationCrossEntropy": losses.permutation_cross_entropy,
    "QuantileParityLoss": losses.quantile_parity_loss,
    "KNNLoss": losses.knn_loss,
    "ConformalSizeLoss": losses.conformal_size_loss,
}
every = pytest.mark.parametrize("name", FUNCTIONS)


def test_every_loss_of_the_package_has_its_module():
    named = {name for name in losses.__all__ if name.endswith("_loss")}
    named |= {"median_of_means", "permutation_cross_entropy"}
    assert {function.__name__ for function in FUNCTIONS.values()} == named
    assert set(PAIRS) == set(FUNCTIONS) <= set(snn.__all__)


@every
def test_module_is_its_function(name):
    positional, options, given, weights = PAIRS[name]
    module = getattr(snn, name)(*positional, **options, **OPTIONS)
    ours = module(*given, weights=weights, mask=MASK)
    theirs = FUNCTIONS[name](*given, *positional, **options, **OPTIONS, weights=weights, mask=MASK)
    torch.testing.assert_close(ours, theirs)
    other = getattr(snn, name)(*positional)(*given)
    torch.testing.assert_close(other, FUNCTIONS[name](*given, *positional))  # same defaults
    assert not torch.equal(ours, other)


@every
def test_any_batch_shape_and_none(name):
    positional, options, given, weights = PAIRS[name]
    loss = getattr(snn, name)(*positional, **options, reduction="none")
    rows = loss(*given, weights=weights, mask=MASK)

    def batched(t):
        return t.reshape(2, 2, *t.shape[1:])

    square = loss(*map(batched, given), weights=batched(weights), mask=batched(MASK))
    torch.testing.assert_close(square, batched(rows))
    torch.testing.assert_close(loss(*(t[1] for t in given), weights=weights[1], mask=MASK[1]), rows[1])


@every
@pytest.mark.parametrize("device", DEVICES)
def test_any_device_gives_what_the_cpu_gives(name, device):
    positional, options, given, weights = PAIRS[name]
    loss = getattr(snn, name)(*positional, **options)
    there = [t.to(device) for t in given]
    x, y = given[0].clone().requires_grad_(), there[0].clone().requires_grad_()
    ours = loss(y, *there[1:], weights=weights.to(device), mask=MASK.to(device))
    expected = loss(x, *given[1:], weights=weights, mask=MASK)
    assert ours.device.type == device
    torch.testing.assert_close(ours.cpu(), expected)
    torch.testing.assert_close(torch.autograd.grad(ours, y)[0].cpu(), torch.autograd.grad(expected, x)[0])


@every
def test_vmap_gives_what_a_batch_gives(name):
    positional, options, given, _ = PAIRS[name]
    loss = getattr(snn, name)(*positional, **options, reduction="sum")
    rows = getattr(snn, name)(*positional, **options, reduction="none")(*given).reshape(4, -1).sum(-1)
    torch.testing.assert_close(torch.func.vmap(loss)(*given), rows)
    x = given[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(x, *given[1:]), x)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(*given), expected)


@every
def test_module_has_the_options_of_its_function_with_the_same_defaults(name):
    module = inspect.signature(getattr(snn, name)).parameters
    function = inspect.signature(FUNCTIONS[name]).parameters
    for option, parameter in module.items():
        if parameter.default is not parameter.empty:
            assert parameter.default == function[option].default
    given_in_call = set(inspect.signature(getattr(snn, name).forward).parameters) - {"self"}
    assert set(function) == set(module) | given_in_call


@every
def test_module_is_printed_copied_and_pickled(name):
    positional, options, given, _ = PAIRS[name]
    module = getattr(snn, name)(*positional, **options, eps=0.07)
    shown = repr(module)
    assert shown.startswith(f"{name}(")
    assert "eps=0.07" in shown
    assert "squash" not in shown  # the default
    for option, value in options.items():
        assert f"{option}={value!r}" in shown
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(*given), module(*given))


def test_reduction_is_checked_when_the_module_is_made():
    with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', 'none', got 'max'"):
        snn.SpearmanLoss(reduction="max")


# ---- layers


def test_layers_are_their_operators():
    torch.testing.assert_close(snn.SoftRank(0, descending=True)(X), sinksort.soft_rank(X, dim=0, descending=True))
    torch.testing.assert_close(snn.SoftSort(num_targets=3)(X), sinksort.soft_sort(X, num_targets=3))
    torch.testing.assert_close(
        snn.SoftQuantile([0.2, 0.9], 0, keepdim=True, width=0.3)(X),
        sinksort.soft_quantile(X, [0.2, 0.9], dim=0, keepdim=True, width=0.3),
    )
    ours, theirs = snn.SoftTopK(2, 0, largest=False)(X), sinksort.soft_topk(X, 2, dim=0, largest=False)
    torch.testing.assert_close(ours.values, theirs.values)
    torch.testing.assert_close(ours.mask, theirs.mask)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_straight_through_is_hard_forward_and_soft_backward(dim, descending):
    x = X.clone().requires_grad_()
    v = T  # any direction
    pairs = [
        (snn.SoftRank, {"descending": descending}, X.argsort(dim, descending).argsort(dim) + 1.0),
        (snn.SoftSort, {"descending": descending}, X.sort(dim, descending=descending).values),
    ]
    for layer, options, expected in pairs:
        hard = layer(dim, **options, straight_through=True, eps=0.1)(x)
        assert torch.equal(hard, expected.double())
        soft = layer(dim, **options, eps=0.1)(x)
        torch.testing.assert_close(*(torch.autograd.grad((v * y).sum(), x)[0] for y in (hard, soft)))
    top = snn.SoftTopK(2, dim, largest=descending, straight_through=True, eps=0.1)(x)
    expected = X.topk(2, dim, largest=descending)
    assert torch.equal(top.values, expected.values)
    member = torch.zeros_like(X).scatter(dim, expected.indices, 1.0)
    assert torch.equal(top.mask, member)
    soft = snn.SoftTopK(2, dim, largest=descending, eps=0.1)(x)
    for hard_part, soft_part in zip(top, soft, strict=True):
        ramp = torch.arange(1.0, hard_part.numel() + 1, dtype=torch.float64).reshape(hard_part.shape)
        grads = [torch.autograd.grad((ramp * t).sum(), x, retain_graph=True)[0] for t in (hard_part, soft_part)]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dim", [0, 1])
def test_straight_through_quantile_is_hazens(q, dim):
    x = X.clone().requires_grad_()
    hard = snn.SoftQuantile(q, dim, straight_through=True, eps=0.1)(x)
    expected = np.quantile(X, q, axis=dim, method="hazen")
    torch.testing.assert_close(hard.detach(), torch.tensor(expected), atol=1e-12, rtol=0)
    several = snn.SoftQuantile([q, 0.5], dim, keepdim=True, straight_through=True, eps=0.1)(x)
    assert several.shape == sinksort.soft_quantile(X, [q, 0.5], dim=dim, keepdim=True).shape
    torch.testing.assert_close(several[0].squeeze(dim), hard)
    soft = sinksort.soft_quantile(x, q, dim=dim, eps=0.1)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (hard, soft)))


def test_straight_through_topk_shares_ties_across_the_border_and_leaves_padding_out():
    top = snn.SoftTopK(2, straight_through=True)(torch.tensor([1.0, 3.0, 1.0, 0.0]))
    torch.testing.assert_close(top.mask, torch.tensor([0.5, 1.0, 0.5, 0.0]))
    mask = torch.tensor([True, False, True, True])
    top = snn.SoftTopK(2, straight_through=True)(torch.tensor([1.0, 9.0, 3.0, 0.0]), mask=mask)
    assert torch.equal(top.mask, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert torch.equal(top.values, torch.tensor([3.0, 1.0]))


def test_quantile_pool_pools_every_feature_and_ignores_padding():
    x = drawn(3, 2, 9, 4)
    pooled = snn.QuantilePool([0.5, 0.9], eps=1e-4)(x)
    assert pooled.shape == (2, 8)
    expected = np.quantile(x, [0.5, 0.9], axis=1, method="hazen")  # (levels, batch, features)
    torch.testing.assert_close(pooled, torch.tensor(expected).movedim(0, -1).flatten(-2), atol=1e-2, rtol=0)
    padded = torch.cat([x, torch.full((2, 3, 4), float("nan"), dtype=x.dtype)], dim=1)
    mask = torch.arange(12).expand(2, 12) < 9
    torch.testing.assert_close(snn.QuantilePool([0.5, 0.9], eps=1e-4)(padded, mask=mask), pooled)
    assert snn.QuantilePool([0.5, 0.9], flatten=False)(x).shape == (2, 4, 2)


# ---- eps: learned, kept in checkpoints, scheduled, suggested


def test_eps_can_be_learned_or_kept():
    learned = snn.SoftRank(eps=nn.Parameter(torch.tensor(0.1)))
    assert [name for name, _ in learned.named_parameters()] == ["eps"]
    learned(X).square().sum().backward()
    assert learned.eps.grad.abs() > 0
    kept = snn.SoftRank(eps=torch.tensor(0.1))
    assert list(kept.state_dict()) == ["eps"]
    assert "eps=0.1" in repr(kept)
    assert not list(snn.SoftRank(eps=0.1).state_dict())


@pytest.mark.parametrize("shape", ["geometric", "linear", "cosine"])
def test_schedule_goes_from_start_to_end(shape):
    schedule = EpsSchedule(1e-1, 1e-3, steps=10, shape=shape)
    seen = [schedule.eps] + [schedule.step() for _ in range(12)]
    assert seen[0] == pytest.approx(1e-1)
    assert seen[10] == seen[12] == 1e-3
    assert all(a > b for a, b in itertools.pairwise(seen[:11]))
    middle = {"geometric": 1e-2, "linear": 0.0505, "cosine": 1e-2}[shape]
    assert seen[5] == pytest.approx(middle)


def test_schedule_sets_modules_and_resumes_from_a_checkpoint():
    model = nn.Sequential(nn.Linear(3, 3), snn.SoftRank(), nn.ModuleList([snn.SpearmanLoss()]))
    schedule = EpsSchedule(1e-1, 1e-3, steps=4, module=model)
    assert model[1].eps == model[2][0].eps == pytest.approx(1e-1)
    schedule.step()
    schedule.step()
    assert model[1].eps == pytest.approx(1e-2)
    saved = pickle.loads(pickle.dumps(schedule.state_dict()))

    fresh = nn.Sequential(nn.Linear(3, 3), snn.SoftRank())
    resumed = EpsSchedule(1.0, 0.5, steps=3, shape="linear", module=fresh)
    resumed.load_state_dict(saved)
    assert fresh[1].eps == pytest.approx(1e-2)
    assert [resumed.step() for _ in range(3)] == [schedule.step() for _ in range(3)]
    assert repr(resumed) == repr(schedule)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: EpsSchedule(0.0, 1e-3, 5), ValueError, "start must be positive and finite, got 0.0"),
        (lambda: EpsSchedule(0.1, 1e-3, 0), ValueError, "steps must be a positive integer, got 0"),
        (
            lambda: EpsSchedule(0.1, 1e-3, 5, shape="step"),
            ValueError,
            "shape must be 'geometric', 'linear' or 'cosine'",
        ),
        (
            lambda: EpsSchedule(0.1, 1e-3, 5, module=nn.Linear(1, 1)),
            ValueError,
            "module must contain a sinksort.nn module",
        ),
        (
            lambda: EpsSchedule(0.1, 1e-3, 5, module=snn.SoftRank(eps=torch.tensor(0.1))),
            TypeError,
            "eps of SoftRank is a tensor, which is learned or set elsewhere and cannot be scheduled",
        ),
        (lambda: EpsSchedule(0.1, 1e-3, 5).load_state_dict({"taken": 1}), ValueError, "state must be an EpsSchedule"),
        (lambda: suggest_eps(1), ValueError, "n must be an integer of at least 2"),
        (lambda: suggest_eps(20, 6.0), ValueError, "spread must be in (0, n/4] = (0, 5], got 6.0"),
    ],
)
def test_schedule_errors(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)


@pytest.mark.parametrize(("n", "spread"), [(20, 1.0), (20, 2.0), (60, 1.0), (60, 4.0), (150, 2.0), (150, 10.0)])
def test_suggested_eps_spreads_values_as_asked(n, spread):
    x = drawn(4, 8, n)
    measured = rank_spread(x, eps=suggest_eps(n, spread)).mean().item()
    assert measured == pytest.approx(spread, rel=0.15)


def test_rank_spread_is_the_deviation_of_the_plan():
    x = X[0]
    P = sinksort.transport(x, eps=0.05).matrix() * 6
    ranks = torch.arange(1.0, 7.0, dtype=torch.float64)
    mean = P @ ranks
    torch.testing.assert_close(rank_spread(x, eps=0.05), (P @ ranks.square() - mean.square()).sqrt())
