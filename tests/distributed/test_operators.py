"""Values spread over real processes: the answers and gradients of one process on all of them together."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import sinksort
import sinksort.distributed as spread
from sinksort.linear import elsewhere
from tests.inputs import table
from tests.processes import Team, raised

SIZES = {"even": [1000, 1000, 1000], "uneven": [2500, 3, 497], "empty": [0, 3000, 0]}


@pytest.fixture(scope="session")
def team() -> Iterator[Team]:
    team = Team(3)
    yield team
    team.close()


def cut(t: Tensor, sizes: list[int], rank: int) -> Tensor:
    return t.split(sizes, dim=-1)[rank]


def ask(module: Any, name: str, x: Tensor, **options: Any) -> Tensor:
    """One operator, of one process or of many."""
    args = {"soft_rank": (), "soft_quantile": ([0.5, 0.05, 0.9, 0.5],), "soft_median": (), "soft_topk_mask": (123.5,)}
    return getattr(module, name)(x, *args[name], **options)


def alone(name: str, x: Tensor, **options: Any) -> Tensor:
    """The answer of one process, from the whole plan where that is cheap enough: the reference."""
    cheap = name != "soft_rank" or x.shape[-1] <= 1200
    solver = sinksort.Newton(compress=False, tolerance=1e-13) if cheap else sinksort.Newton()
    return ask(sinksort, name, x, solver=solver, **options)


OPERATORS = ["soft_rank", "soft_quantile", "soft_median", "soft_topk_mask"]


def answer_and_gradients(
    rank: int, size: int, name: str, x: Tensor, w: Tensor | None, sizes: list[int], direction: Tensor, options: Any
) -> tuple[Tensor, ...]:
    leaves = [cut(t, sizes, rank).clone().requires_grad_() for t in ((x,) if w is None else (x, w))]
    out = ask(spread, name, leaves[0], weights=None if w is None else leaves[1], **options)
    one_a_value = out.shape == leaves[0].shape
    loss = (out * cut(direction, sizes, rank)).sum() if one_a_value else (out * (1.0 + rank)).square().sum()
    return out.detach(), *torch.autograd.grad(loss, leaves)


def both(
    team: Team, name: str, x: Tensor, w: Tensor | None, sizes: list[int], reference: Any = alone, **options: Any
) -> list[tuple[Tensor, Tensor]]:
    """(of many processes, of one): the answer, the gradient in x and in w."""
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(9), dtype=x.dtype)
    answers = team.run(answer_and_gradients, name, x, w, sizes, direction, options)
    raised(answers)
    outs, *grads = zip(*answers, strict=True)
    leaves = [t.clone().requires_grad_() for t in ((x,) if w is None else (x, w))]
    truth = reference(name, leaves[0], weights=None if w is None else leaves[1], **options)
    if truth.shape == x.shape:
        loss, out = (truth * direction).sum(), torch.cat(outs, dim=-1)
    else:
        # Each rank has a loss of its own of the quantiles; they are added up.
        loss, out = (truth.square() * sum((1.0 + r) ** 2 for r in range(len(outs)))).sum(), outs[0]
        assert all(torch.equal(outs[0], other) for other in outs)
    true_grads = torch.autograd.grad(loss, leaves)
    return [(out, truth.detach()), *((torch.cat(g, dim=-1), t) for g, t in zip(grads, true_grads, strict=True))]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", list(SIZES))
def test_answers_and_gradients_are_those_of_one_process(team: Team, name: str, weighted: bool, sizes: str) -> None:
    """To 1e-9; the derivatives of ranks are those of polynomials that are right to 1e-9 in cells of a hundredth."""
    x = torch.tensor(table(["normal", "exponential"], 2, 1200, seed=1))
    w = torch.tensor(table(["uniform", "uniform"], 2, 1200, seed=2)) if weighted else None
    parts = [2 * size // 5 for size in SIZES[sizes]]
    parts[1] += 1200 - sum(parts)
    (mine, truth), *gradients = both(team, name, x, w, parts, eps=0.03)
    torch.testing.assert_close(mine, truth, rtol=1e-9, atol=1e-9 * truth.abs().max().item())
    tolerance = 1e-7 if name == "soft_rank" else 1e-9
    for mine, truth in gradients:
        torch.testing.assert_close(mine, truth, rtol=tolerance, atol=tolerance * truth.abs().max().item())


@pytest.mark.parametrize("name", OPERATORS)
def test_how_values_are_shared_out_does_not_matter(team: Team, name: str) -> None:
    x = torch.tensor(table(["normal", "exponential"], 2, 3000, seed=1))
    first, *others = ([mine for mine, _ in both(team, name, x, None, sizes, eps=0.03)] for sizes in SIZES.values())
    for other in others:
        for mine, theirs in zip(other, first, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11 * theirs.abs().max().item())


def gradients_together_and_alone(rank: int, size: int, x: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    shard = cut(x, sizes, rank).clone().requires_grad_()
    ranks = spread.soft_rank(shard, eps=0.03)
    cotangents = torch.randn(3, *ranks.shape, generator=torch.Generator().manual_seed(rank), dtype=x.dtype)
    (together,) = torch.autograd.grad(ranks, shard, cotangents, is_grads_batched=True, retain_graph=True)
    return together, torch.stack([torch.autograd.grad(ranks, shard, c, retain_graph=True)[0] for c in cotangents])


def test_several_cotangents_at_once_are_a_loop(team: Team) -> None:
    x = torch.tensor(table(["normal"], 1, 1200, seed=1))
    answers = team.run(gradients_together_and_alone, x, [500, 3, 697])
    raised(answers)
    for together, looped in answers:
        torch.testing.assert_close(together, looped, rtol=0, atol=1e-12 * looped.abs().max().item())


# ---- every option


def answer(rank: int, size: int, name: str, x: Tensor, sizes: list[int], options: Any, dim: int = -1) -> Tensor:
    options = {key: cut(value, sizes, rank) if key == "weights" else value for key, value in options.items()}
    shard = cut(x, sizes, rank)
    return ask(spread, name, shard.movedim(-1, dim), dim=dim, **options)


OPTIONS: dict[str, dict[str, Any]] = {
    "arctan": {"squash": "arctan"},
    "already in [0, 1]": {"squash": None},
    "callable": {"squash": torch.sigmoid},
    "one eps a row": {"eps": torch.tensor([0.1, 0.02], dtype=torch.float64)},
    "small eps": {"eps": 1e-3},
}


@pytest.mark.parametrize("option", list(OPTIONS))
@pytest.mark.parametrize("name", ["soft_rank", "soft_quantile", "soft_topk_mask"])
def test_options(team: Team, name: str, option: str) -> None:
    x = torch.tensor(table(["uniform", "clusters_2"], 2, 3000, seed=3))
    sizes, options = SIZES["uneven"], {"eps": 0.05, **OPTIONS[option]}
    truth = alone(name, x, **options)
    for dim in (-1, 0):
        answers = team.run(answer, name, x, sizes, options, dim)
        raised(answers)
        if name == "soft_quantile":
            assert all(torch.equal(answers[0], other) for other in answers)
            mine = answers[0]
        else:
            mine = torch.cat([a.movedim(dim, -1) for a in answers], dim=-1)
        torch.testing.assert_close(mine, truth, rtol=0, atol=2e-9 * truth.abs().max().item())


def test_descending_smallest_widths_and_numbers_a_row(team: Team) -> None:
    x = torch.tensor(table(["normal", "tied"], 2, 3000, seed=3))
    k = torch.tensor([10.0, 250.5])
    for function in (ranks_descending, smallest, wide_median):
        answers = team.run(function, x, k)
        raised(answers)
        torch.testing.assert_close(
            answers[0] if function is wide_median else torch.cat(answers, dim=-1),
            function(-1, 1, x, k),
            rtol=0,
            atol=2e-9 * 3000,
        )


def ranks_descending(rank: int, size: int, x: Tensor, k: Tensor) -> Tensor:
    if rank < 0:
        return sinksort.soft_rank(x, descending=True)
    return spread.soft_rank(x.chunk(size, -1)[rank], descending=True)


def smallest(rank: int, size: int, x: Tensor, k: Tensor) -> Tensor:
    if rank < 0:
        return sinksort.soft_topk_mask(x, k, largest=False)
    return spread.soft_topk_mask(x.chunk(size, -1)[rank], k, largest=False)


def wide_median(rank: int, size: int, x: Tensor, k: Tensor) -> Tensor:
    if rank < 0:
        return sinksort.soft_median(x, width=0.1, keepdim=True)
    return spread.soft_median(x.chunk(size, -1)[rank], width=0.1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision(team: Team, dtype: torch.dtype) -> None:
    x = torch.tensor(table(["normal", "few_valued"], 2, 3000, seed=5)).to(dtype)
    answers = team.run(answer, "soft_rank", x, SIZES["even"], {"eps": 0.01})
    raised(answers)
    truth = sinksort.soft_rank(x.double(), eps=0.01)
    assert answers[0].dtype == dtype
    # Accurate to 1e-5 n, and then rounded.
    tolerance = 1e-5 * 3000 + 3000 * torch.finfo(dtype).eps
    torch.testing.assert_close(torch.cat(answers, dim=-1).double(), truth, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["soft_rank", "soft_quantile", "soft_topk_mask"])
def test_strange_rows_are_as_in_one_process(team: Team, name: str) -> None:
    """Constant rows, huge and tiny values, infinities, NaN on one rank only, values that weigh nothing."""
    x = torch.randn(6, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0] = 7.0
    x[1] *= 1e200
    x[2] = x[2] * 1e-200 + 1e-199
    x[3, 2999], x[3, 4] = math.inf, -math.inf
    x[4, 2600] = math.nan
    w = torch.ones_like(x)
    w[5, ::3], x[5, 0] = 0.0, 1e30
    for weights in (None, w):
        options = {"eps": 0.05} if weights is None else {"eps": 0.05, "weights": weights}
        answers = team.run(answer, name, x, SIZES["uneven"], options)
        raised(answers)
        mine = answers[0] if name == "soft_quantile" else torch.cat(answers, dim=-1)
        truth = alone(name, x, **options)
        scale = truth.abs().nan_to_num(0, 0, 0).amax(-1, keepdim=True).clamp(min=1e-300)
        torch.testing.assert_close(mine / scale, truth / scale, rtol=0, atol=1e-8, equal_nan=True)
        assert mine[..., 4, :].isnan().all() if name != "soft_quantile" else mine[:, 4].isnan().all()


@pytest.mark.parametrize("name", OPERATORS)
def test_few_values_are_exactly_as_in_one_process(team: Team, name: str) -> None:
    x = torch.randn(2, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = torch.rand(2, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for mine, truth in both(team, name, x, w, [190, 0, 10], functools.partial(ask, sinksort), eps=1e-3):
        torch.testing.assert_close(mine, truth, rtol=1e-12, atol=1e-12 * truth.abs().max().item())


def no_rows(rank: int, size: int, name: str, n: int) -> tuple[int, ...]:
    return tuple(ask(spread, name, torch.empty(0, n, dtype=torch.float64), eps=torch.empty(0)).shape)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_batch_without_rows_has_no_answers(team: Team, name: str) -> None:
    """Of very many values, for which a grid would be chosen by the smallest eps: there is none."""
    answers = team.run(no_rows, name, 3000)
    raised(answers)
    assert answers == [tuple(ask(sinksort, name, torch.empty(0, 3000), eps=torch.empty(0)).shape)] * 3


def second_derivative(rank: int, size: int, name: str, x: Tensor, v: Tensor) -> Tensor:
    """Along v, of the squares of the answers; of a loss that the ranks share each has its part."""
    shard = x.chunk(size, -1)[rank].clone().requires_grad_()
    answers = alone(name, shard, eps=0.05) if size == 1 else ask(spread, name, shard, eps=0.05)
    loss = answers.square().sum() / (1 if answers.shape == shard.shape else size)
    (grad,) = torch.autograd.grad(loss, shard, create_graph=True)
    (second,) = torch.autograd.grad((grad * v.chunk(size, -1)[rank]).sum(), shard)
    return second


@pytest.mark.parametrize("name", OPERATORS)
def test_second_derivatives(team: Team, name: str) -> None:
    x = torch.randn(1, 1200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v = torch.randn(1, 1200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    answers = team.run(second_derivative, name, x, v)
    raised(answers)
    truth = second_derivative(0, 1, name, x, v)
    tolerance = 1e-5 if name == "soft_rank" else 1e-8  # of ranks: two derivatives of polynomials, see above
    torch.testing.assert_close(torch.cat(answers, dim=-1), truth, rtol=0, atol=tolerance * truth.abs().max().item())


def gradient_in_eps(rank: int, size: int, name: str, x: Tensor) -> Tensor:
    eps = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    shard = x.chunk(size, -1)[rank]
    answers = alone(name, shard, eps=eps) if size == 1 else ask(spread, name, shard, eps=eps)
    loss = answers.square().sum() / (1 if answers.shape == shard.shape else size)
    (grad,) = torch.autograd.grad(loss, eps)
    return grad


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_in_eps_add_up(team: Team, name: str) -> None:
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answers = team.run(gradient_in_eps, name, x)
    raised(answers)
    truth = gradient_in_eps(0, 1, name, x)
    torch.testing.assert_close(sum(answers), truth, rtol=1e-9, atol=0)


def gradient_in_level(rank: int, size: int, name: str, x: Tensor) -> Tensor:
    level = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    shard = x.chunk(size, -1)[rank]
    module, options = (
        (sinksort, {"solver": sinksort.Newton(compress=False, tolerance=1e-13)}) if size == 1 else (spread, {})
    )
    if name == "q":
        loss = module.soft_quantile(shard, level, **options).square() / size
    else:
        loss = module.soft_topk_mask(shard, level * x.shape[-1], **options).square().sum()
    (grad,) = torch.autograd.grad(loss, level)
    return grad


@pytest.mark.parametrize("name", ["q", "k"])
def test_gradients_in_q_and_k_add_up(team: Team, name: str) -> None:
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answers = team.run(gradient_in_level, name, x)
    raised(answers)
    torch.testing.assert_close(sum(answers), gradient_in_level(0, 1, name, x), rtol=1e-9, atol=0)


# ---- the wire


def bytes_sent(rank: int, size: int, name: str, n: int, eps: float, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes that one rank puts into collectives, forward and backward."""
    sent = forward = 0
    reduce, gather = dist.all_reduce, dist.all_gather

    def counting_reduce(t: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal sent
        sent += t.numel() * t.element_size()
        return reduce(t, *args, **kwargs)

    def counting_gather(out: list[Tensor], t: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal sent
        sent += t.numel() * t.element_size()
        return gather(out, t, *args, **kwargs)

    dist.all_reduce, dist.all_gather = counting_reduce, counting_gather
    try:
        x = torch.randn(n, generator=torch.Generator().manual_seed(rank), dtype=dtype).requires_grad_()
        out = spread.soft_topk_mask(x, 0.3 * n, eps=eps) if name == "soft_topk_mask" else ask(spread, name, x, eps=eps)
        forward = sent
        out.sum().backward()
    finally:
        dist.all_reduce, dist.all_gather = reduce, gather
    return forward, sent - forward


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-2, 1e-3, 1e-4])
def test_bytes_on_the_wire(team: Team, name: str, eps: float, dtype: torch.dtype) -> None:
    """A few tens of kilobytes, forward and backward; nearly the same for 20 times as many values."""
    few, many = (team.run(bytes_sent, name, n, eps, dtype) for n in (5_000, 100_000))
    raised([*few, *many])
    assert many[0] == many[1] == many[2]
    assert 500 < sum(many[0]) <= 40_000
    # Ranks may need one panel of targets more, quantiles a few Newton steps, each of at most 4 levels x 9 numbers.
    assert abs(sum(few[0]) - sum(many[0])) <= (8 if name == "soft_rank" else 8 * 4 * 9 * 8)


# ---- those who disagree


def disagree(rank: int, size: int, odd: str) -> Tensor:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(rank))
    if odd == "operator":
        return spread.soft_rank(x) if rank else spread.soft_median(x)
    if odd == "q":
        return spread.soft_quantile(x, [0.5, 0.1 if rank == 1 else 0.2])
    if odd == "k":
        return spread.soft_topk_mask(x, 5 + rank)
    options: dict[str, Any] = {"eps": {"eps": 0.02}, "squash": {"squash": None}, "descending": {"descending": True}}
    options["weights"] = {"weights": torch.ones(2000)}
    if odd == "requires_grad of eps":
        return spread.soft_median(x, eps=torch.tensor(0.01, dtype=torch.float64, requires_grad=rank == 2))
    if rank == 2 and odd == "dtype":
        x = x.double()
    if rank == 2 and odd == "shape":
        x = x.reshape(2, 1000)
    if rank == 2 and odd == "requires_grad":
        x.requires_grad_()
    return spread.soft_rank(x, **options.get(odd, {})) if rank == 2 else spread.soft_rank(x)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ("eps", "soft_rank must be called with the same eps on every rank of the group, got 0.01 on ranks 0, 1, 0.02"),
        ("dtype", "the same dtype of x on every rank of the group, got torch.float32 on ranks 0, 1, torch.float64 on"),
        ("shape", "the same shape of x without dim on every rank of the group, got () on ranks 0, 1, (2,) on rank 2."),
        ("squash", "the same squash on every rank of the group, got sigmoid on ranks 0, 1, None on rank 2."),
        ("descending", "the same descending on every rank of the group, got False on ranks 0, 1, True on rank 2."),
        ("weights", "the same weights on every rank of the group, got none on ranks 0, 1, a tensor on rank 2."),
        ("requires_grad", "the same requires_grad of x on every rank of the group, got False on ranks 0, 1, True on"),
        ("requires_grad of eps", "with the same requires_grad of eps on every rank of the group, got False on ranks 0"),
        ("q", "soft_quantile must be called with the same q on every rank of the group, got [0.5, 0.2] on ranks 0, 2,"),
        (
            "k",
            "soft_topk_mask must be called with the same k on every rank of the group, got 5 on rank 0, 6 on",
        ),
        ("operator", "for the same operator on every rank of the group, got soft_quantile on rank 0, soft_rank on"),
    ],
)
def test_every_rank_hears_who_disagrees(team: Team, odd: str, message: str) -> None:
    for error in team.run(disagree, odd):
        assert isinstance(error, ValueError)
        assert message in str(error)


def one_is_wrong(rank: int, size: int, what: str) -> Tensor:
    x, w = torch.randn(2000), torch.ones(2000)
    if what == "nobody has weight":
        return spread.soft_rank(x, weights=0.0 * w)
    if what == "nobody has values":
        return spread.soft_rank(x[:0])
    if what == "k":
        return spread.soft_topk_mask(x, 6001)
    if what == "eps":
        return spread.soft_rank(x, eps=1e-30)
    if rank == 1:
        return spread.soft_rank(x.long()) if what == "integers" else spread.soft_rank(x, weights=-w)
    return spread.soft_rank(x, weights=w)


@pytest.mark.parametrize(
    ("what", "there", "elsewhere"),
    [
        ("integers", "x must be a floating-point tensor, got torch.int64", "wrong on rank 1, so no rank goes on."),
        ("weights", "weights must be finite and non-negative", "Rank 1 says: ValueError: weights must be finite and"),
        ("nobody has weight", "weights must have a positive entry in every row", "but a row is all zeros"),
        ("nobody has values", "x must hold at least one value on some rank", "empty on all of them"),
        ("k", "k must be between 0 and n = 6000", "got 6001"),
        ("eps", "eps must be larger for values that are not all in one place: got 1e-30", "raise eps"),
    ],
)
def test_what_is_wrong_on_one_rank_is_told_to_all(team: Team, what: str, there: str, elsewhere: str) -> None:
    errors = team.run(one_is_wrong, what)
    assert all(isinstance(error, (TypeError, ValueError, RuntimeError)) for error in errors)
    assert there in str(errors[1])
    assert elsewhere in str(errors[0])
    assert elsewhere in str(errors[2])


def test_the_group_works_on_after_a_disagreement(team: Team) -> None:
    team.run(disagree, "eps")
    answers = team.run(answer, "soft_rank", torch.linspace(0, 1, 3000), SIZES["even"], {})
    raised(answers)
    assert torch.cat(answers).argsort().equal(torch.arange(3000))


def test_a_group_is_needed() -> None:
    with pytest.raises(RuntimeError, match="needs a process group: start the program with torchrun"):
        spread.soft_rank(torch.randn(5))


def within_two(rank: int, size: int, x: Tensor) -> Any:
    """Only ranks 0 and 2 share the values."""
    group = dist.new_group([0, 2])
    if rank == 1:
        try:
            return spread.soft_rank(x, group=group)
        except ValueError as error:
            return str(error)
    return spread.soft_rank(x.chunk(2, -1)[rank // 2], group=group)


def test_a_part_of_the_ranks(team: Team) -> None:
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, outsider, second = team.run(within_two, x)
    assert "group must hold this process, but rank 1 is not in it" in outsider
    torch.testing.assert_close(torch.cat([first, second]), sinksort.soft_rank(x), rtol=0, atol=1e-9 * 3000)


# ---- where a grid must be fine


def test_nearly_hard_ranks(team: Team) -> None:
    """Where one process lets every value stand for itself, many go on refining the grid."""
    x = torch.tensor(table(["clusters_3"], 1, 1200, seed=6))
    answers = team.run(answer, "soft_rank", x, [500, 1, 699], {"eps": 1e-6})
    raised(answers)
    truth = sinksort.soft_rank(x, eps=1e-6)
    torch.testing.assert_close(torch.cat(answers, dim=-1), truth, rtol=0, atol=2e-9 * 1200)


def with_few_cells(rank: int, size: int, x: Tensor) -> Tensor:
    most, elsewhere.MOST_CELLS = elsewhere.MOST_CELLS, 300
    try:
        return spread.soft_rank(x.chunk(size, -1)[rank])
    finally:
        elsewhere.MOST_CELLS = most


def test_every_rank_hears_that_a_grid_is_not_enough(team: Team) -> None:
    errors = team.run(with_few_cells, torch.tensor(table(["outlier"], 1, 3000, seed=6)))
    for error in errors:
        assert isinstance(error, RuntimeError)
        assert "the last grid had an estimated error of" in str(error)
        assert "raise eps, or pass x in float32" in str(error)
