"""Launching a Triton kernel that was launched before, without looking for it again.

At every launch Triton inspects each argument to find out which compiled kernel is meant, which takes longer than many
kernels here run. Arguments that have the same numbers, types and alignments always mean the same one: it is kept, and
launched directly, as in Triton's own tutorials.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

_MOST = 4096  #: kernels kept; then all are forgotten, and found again by Triton
_kept: dict[tuple[Any, ...], Any] = {}

#: Compiled kernels take values for their constants, and ignore them, since this version.
_DIRECT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)


def launch(kernel: Any, programs: int, *args: Any, num_warps: int = 4, **constants: Any) -> None:
    """``kernel[(programs,)](*args, **constants, num_warps=num_warps)``."""
    # Numbers with a fraction make no difference to what is compiled, whole ones do: 1 and multiples of 16 are special.
    sorts = [
        (arg.dtype, arg.data_ptr() % 16) if isinstance(arg, Tensor) else arg if isinstance(arg, int) else None
        for arg in args
    ]
    values = [constants[name] for name in kernel.arg_names[len(args) :]]
    key = (kernel, args[0].get_device(), num_warps, *values, *sorts)
    compiled = _kept.get(key)
    if compiled is not None:
        compiled[programs, 1, 1](*args, *values)
        return
    compiled = kernel[(programs,)](*args, **constants, num_warps=num_warps)
    if _DIRECT and compiled is not None:  # the interpreter compiles nothing
        if len(_kept) >= _MOST:
            _kept.clear()
        _kept[key] = compiled


class Launch:
    """A kernel with its numbers and constants, when it is compiled for any values and alignments of what is left.

    What is left are tensors, always of the same dtypes, and numbers with a fraction; they come first.
    """

    def __init__(self, kernel: Any, numbers: tuple[int, ...], num_warps: int, **constants: Any) -> None:
        self._kernel, self._numbers, self._warps, self._constants = kernel, numbers, num_warps, constants
        self._rest = (*numbers, *(constants[name] for name in kernel.arg_names[-len(constants) :]))
        self._compiled: dict[int, Any] = {}

    def __call__(self, programs: int, *args: Any) -> None:
        device = args[0].get_device()
        compiled = self._compiled.get(device)
        if compiled is not None:
            compiled[programs, 1, 1](*args, *self._rest)
            return
        compiled = self._kernel[(programs,)](*args, *self._numbers, **self._constants, num_warps=self._warps)
        if _DIRECT:
            self._compiled[device] = compiled  # None, from the interpreter, is asked again
