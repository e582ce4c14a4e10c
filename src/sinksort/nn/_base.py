"""What all modules share: the transport options, a readable repr, and the straight-through estimator."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor, nn

from ..core.costs import Cost
from ..core.options import borrowed, explained
from ..core.solvers import Solver
from ..core.squash import Squash
from ..losses._common import REDUCTIONS, Reduction, require_choice


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The values of ``hard`` exactly, with the gradient of ``soft``.

    Args:
        hard: what is returned, of any shape; it gets no gradient.
        soft: whose gradient the result has, of the same shape.

    >>> import torch, sinksort
    >>> from sinksort.nn import straight_through
    >>> x = torch.tensor([0.3, 0.1, 0.2], requires_grad=True)
    >>> ranks = straight_through(sinksort.kantorovich_rank(x), sinksort.soft_rank(x, eps=0.1))
    >>> ranks.detach()
    tensor([3., 1., 2.])
    >>> bool(torch.autograd.grad(ranks[0], x)[0].abs().sum() > 0)
    True
    """
    return hard.detach() + (soft - soft.detach())  # in this order: x - x is exactly 0


class SoftModule(nn.Module):
    """A module with the options of transport; ``eps`` is a number, a tensor (a buffer) or a parameter (learned).

    >>> import torch, sinksort.nn
    >>> learned = sinksort.nn.SoftRank(eps=torch.nn.Parameter(torch.tensor(0.01)))
    >>> isinstance(learned, sinksort.nn.SoftModule), [name for name, _ in learned.named_parameters()]
    (True, ['eps'])
    """

    eps: float | Tensor

    def __init__(self, eps: float | Tensor, cost: Cost, squash: Squash, solver: Solver, backend: str = "auto") -> None:
        super().__init__()
        if isinstance(eps, Tensor) and not isinstance(eps, nn.Parameter):
            self.register_buffer("eps", eps)
        else:
            self.eps = eps
        self.cost, self.squash, self.solver, self.backend = cost, squash, solver, backend

    def extra_repr(self) -> str:
        """The options that are not the defaults, as they would be written in the constructor."""
        shown = []
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            if name == "self":
                continue
            value = getattr(self, name)
            if isinstance(value, Tensor):
                value = value.item() if value.numel() == 1 else f"tensor{tuple(value.shape)}"
                shown.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
            elif parameter.default is parameter.empty or value != parameter.default:
                shown.append(f"{name}={getattr(value, '__name__', repr(value))}")
        return ", ".join(shown)


def explain(modules: Iterable[type[nn.Module]], functions: Mapping[str, Callable[..., Tensor]]) -> None:
    """Complete the docstrings of modules and of their ``forward`` by those of the functions that they call.

    The function is the first that a docstring names in a code span.
    """
    for module in modules:
        named = re.match(r"[^`\n]*``(?:sinksort\.)?(\w+)``", module.__doc__ or "")
        function = functions.get(named[1]) if named else None
        if function is not None:
            words = borrowed(function) | {
                "straight_through": "return the hard answer, with the gradient of the soft one."
            }
            explained(module, words=words)
            module.forward.__doc__ = module.forward.__doc__ or f"Call ``{function.__name__}``."
            explained(module.forward, words=words)


class SoftLoss(SoftModule):
    """A loss: also has a reduction."""

    def __init__(
        self,
        reduction: Reduction,
        eps: float | Tensor,
        cost: Cost,
        squash: Squash,
        solver: Solver,
        backend: str = "auto",
    ) -> None:
        super().__init__(eps, cost, squash, solver, backend)
        require_choice(reduction, REDUCTIONS, "reduction")
        self.reduction: Reduction = reduction
