"""What kernels get, what they return, and how that is differentiated: the contract that all of them keep.

A kernel does in one go, for rows x (R, n) in single precision, what the reference does in separate steps: standardise,
squash, solve, read. With targets y_j of weight b_j, K of them, the plan of a row is given by the K numbers gamma,

    p_ij  =  b_j exp(gamma_j - (y_j - x~_i)^2 / eps) / (the same summed over j),       sum_i a_i p_ij = b_j,

and there are three ways to read it:

    pull:   out_i  = sum_j p_ij phi_j              (ranks, memberships)       (R, n)
    push:   out_j  = sum_i a_i p_ij x_i / b_j      (sorted values, quantiles) (R, K)
    logs:   out_ij = log p_ij                      (permutations)             (R, n, K)

Logarithms are those of the exponents, so they stay finite where p_ij underflows; a slot without a target has -inf.

**Gradients.** Let w_i phi_j be the cotangent of p_ij: for pull, w is the cotangent of the answer; for push, w_i =
a_i x_i and phi_j = c_j / b_j with c the cotangent of the answer (and x_i itself receives sum_j a_i p_ij c_j / b_j).
With

    L      = diag(sum_i a_i p_ij) - sum_i a_i p_i p_i^T        a graph Laplacian, K by K, L 1 = 0,
    t_j    = sum_i w_i p_ij (phi_j - sum_k p_ik phi_k),        lambda = L^+ t,

the cotangent of x~_i is (2 / eps) (w_i Cov_i(phi, y) - a_i Cov_i(lambda, y)), covariances under p_i. The derivation:
p_ij changes by p_ij (dgamma_j + 2 (y_j - x~_i) dx~_i / eps - its mean over j), and dgamma is what keeps the columns:
L dgamma = -(2 / eps) sum_i a_i p_ij (y_j - E_i y) dx~_i.

For logs, let C_ij be the cotangent of log p_ij, which changes by dgamma_j + 2 (y_j - E_i y) dx~_i / eps - E_i dgamma.
The loss then changes by

    sum_ij G_ij (dgamma_j + 2 y_j dx~_i / eps),       G_ij = C_ij - p_ij sum_k C_ik       (zero in total over j),

so t_j = sum_i G_ij, and with lambda = L^+ t as above the cotangent of x~_i is
(2 / eps) (sum_j G_ij y_j - a_i Cov_i(lambda, y)). (With C_ij = p_ij w_i phi_j this is pull.) But t need not be small
where the plan is: a pair that the plan hardly joins has a logarithm like any other, and lambda becomes as large as
1 / p. As in ``semidual``, links weaker than 1e-13 of what a target weighs are none.

**Digits.** a and b are float32, but for masks and quantiles, where they are float64: where nearly all of a row is
clearly in or clearly out, its gradient hangs on the ninth digit of k / n.

**Fewer targets.** When ``m`` says so, y and b are the nodes and weights of a Gauss rule for m equal targets at
j / (m - 1), see ``rules``, and phi is affine in y. What is pushed is answered at all m targets, see ``by_nodes``; they
may be the nodes themselves, which are equal then. ``last`` holds what estimates the error of a rule: with
E_ij = p_ij / b_j and c_0 = sum_j b_j E_ij = 1, a row is off by at most about 4 max_i sum_l (sum_j b_j last_lj E_ij)^2,
as a fraction of n.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Request(NamedTuple):
    """Rows and their targets. Tensors with 1 in place of R are the same for all rows."""

    x: Tensor  #: (R, n) float32, float16 or bfloat16; any strides (several levels of one row have row stride 0)
    a: Tensor | None  #: (R, n) weights, rows sum to 1; a value of weight 0 gets an answer and influences no other
    y: Tensor  #: (R or 1, K) float32, increasing
    b: Tensor  #: (R or 1, K) rows sum to 1; an entry of 0 is a slot without a target
    eps: float | Tensor  #: or (R,) float32
    squash: str | None  #: "sigmoid", "arctan", or None when x is x~
    m: int | None = None  #: how many targets the nodes stand for; None: y are the targets
    #: (R or 1, 6, K) float32, for the estimate of a rule's error. (1, 0, K): rows have default targets and padding.
    #: That is the largest number there is, it weighs nothing, and it has targets behind all others that weigh nothing.
    last: Tensor | None = None
    prepared: dict[Any, Any] | None = None  #: what kernels prepared, for requests that differ in x alone


class _ToCome(threading.local):
    """What a thread will call next, so that kernels of a GPU are compiled together."""

    gradient: bool = False


to_come = _ToCome()


def if_differentiated(backward: Callable[[], Any]) -> Callable[[], Any] | None:
    """``backward``, if this thread's call will be followed by its gradient."""
    return backward if to_come.gradient else None


def some_rows(request: Request, rows: Tensor) -> Request:
    """The same for some of its rows."""
    a, last, eps = request.a, request.last, request.eps
    return request._replace(
        x=request.x[rows],
        a=None if a is None else a[rows],
        y=of_rows(request.y, rows),
        b=of_rows(request.b, rows),
        eps=of_rows(eps, rows) if isinstance(eps, Tensor) else eps,
        last=None if last is None else of_rows(last, rows),
        prepared=None,
    )


def of_rows(t: Tensor, rows: Tensor) -> Tensor:
    """Some rows of what has one for each, or is the same for all."""
    return t[rows] if len(t) > 1 else t


#: A part of an answer that only kernels and their callers see. On the CPU it may be an array: to make a tensor of it,
#: and an array of that again, would take as long as some rows.
State: TypeAlias = Tensor | NDArray[Any]


class Answer(NamedTuple):
    """Of ``pull``, ``push`` or ``logs``."""

    out: Tensor  #: (R, n) in the dtype of x, or (R, K) or (R, n, K) float32
    state: State  #: (R, S) what the backward pass needs, in a layout of the kernel's own
    error: State  #: (R,) float32: estimated error of rule, grid and solver, as a fraction of n or of the range


def in_tensors(answer: Answer) -> tuple[Tensor, Tensor, Tensor]:
    """The same, all of it in tensors."""
    out, state, error = (torch.from_numpy(t) if isinstance(t, np.ndarray) else t for t in answer)
    return out, state, error


class Kernels(Protocol):
    """One implementation. Rows that hold NaN are answered by NaN; everything else is defined as in the reference."""

    def rejects_by_nan(self, request: Request, /) -> bool:
        """Whether rows without an answer are NaN already, so that ``Answer.error`` need not be looked at."""

    def state_layout(self, request: Request) -> tuple[int, torch.dtype]:
        """Columns and dtype of ``Answer.state``, for tracers of the operator."""

    def unable(self, request: Request) -> str | None:
        """Why these kernels cannot answer whatever the sizes are, for which ``dispatch`` has the limits; or None."""

    def weightless(self, request: Request, /) -> bool:
        """Whether ``push_backward`` knows the gradient of what a target without weight receives."""

    def pull(self, request: Request, phi: Tensor) -> Answer:
        """phi: (R or 1, K) float32."""

    def pull_backward(self, request: Request, phi: Tensor, state: State, w: Tensor) -> Tensor:
        """The cotangent of x, (R, n) in its dtype, from w (R, n)."""

    def push(self, request: Request) -> Answer: ...

    def push_backward(self, request: Request, state: State, c: Tensor) -> Tensor:
        """The cotangent of x from c (R, K) float32."""


class LogPlanKernels(Kernels, Protocol):
    """Of short rows, which can be read in the third way too: n and K are at most 128, and the targets are no rule."""

    def logs_layout(self, request: Request) -> tuple[int, torch.dtype]:
        """``state_layout`` of ``logs``."""

    def logs(self, request: Request) -> Answer: ...

    def logs_backward(self, request: Request, state: State, C: Tensor) -> Tensor:
        """The cotangent of x from C (R, n, K) float32."""


class RejectedRowKernels(Protocol):
    """Kernels for rows that others rejected: slower, with more digits. They keep no state.

    Sorted values are those at m default targets.
    """

    def pull(self, request: Request, phi: Tensor) -> tuple[Tensor, Tensor]:
        """``Answer.out`` and ``Answer.error``."""

    def pull_backward(self, request: Request, phi: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The cotangent of x, and the error of each row."""

    def push(self, request: Request) -> tuple[Tensor, Tensor]: ...

    def push_backward(self, request: Request, c: Tensor) -> tuple[Tensor, Tensor]: ...
