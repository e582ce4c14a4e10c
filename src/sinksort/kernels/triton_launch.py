"""Launching a Triton kernel that was launched before, without looking for it again.

At every launch Triton inspects each argument to find out which compiled kernel is meant, which takes longer than many
kernels here run. Arguments that have the same numbers, types and alignments always mean the same one: it is kept, and
launched directly, as in Triton's own tutorials.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

#: Compiled kernels take values for their constants, and ignore them, since this version.
_DIRECT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)


class Launch:
    """A kernel with its numbers and constants, whose other arguments always mean the same compiled kernel.

    Those are tensors, always of the same dtypes (and alignments, where these matter to the kernel), and numbers with a
    fraction; they come first.
    """

    def __init__(self, kernel: Any, numbers: tuple[int, ...], num_warps: int, **constants: Any) -> None:
        self._kernel, self._numbers, self._warps, self._constants = kernel, numbers, num_warps, constants
        self._rest = (*numbers, *(constants[name] for name in kernel.arg_names[-len(constants) :]))
        self._compiled: dict[int, Any] = {}  # for each device

    def __call__(self, programs: int, *args: Any) -> None:
        device = args[0].get_device()
        compiled = self._compiled.get(device)
        if compiled is not None:
            compiled[programs, 1, 1](*args, *self._rest)
            return
        compiled = self._kernel[(programs,)](*args, *self._numbers, **self._constants, num_warps=self._warps)
        if _DIRECT:
            self._compiled[device] = compiled  # None, from the interpreter, is asked again


_MOST = 4096  #: launches kept; then all are forgotten, and found again by Triton
_kept: dict[tuple[Any, ...], Launch] = {}


def launch(kernel: Any, programs: int, *args: Any, num_warps: int = 4, **constants: Any) -> None:
    """``kernel[(programs,)](*args, **constants, num_warps=num_warps)``, where any of its arguments may change."""
    # Numbers with a fraction make no difference to what is compiled, whole ones do: 1 and multiples of 16 are special.
    sorts = [
        (arg.dtype, arg.data_ptr() % 16) if isinstance(arg, Tensor) else arg if isinstance(arg, int) else None
        for arg in args
    ]
    key = (kernel, num_warps, *(constants[name] for name in kernel.arg_names[len(args) :]), *sorts)
    again = _kept.get(key)
    if again is None:
        if len(_kept) >= _MOST:
            _kept.clear()
        again = _kept[key] = Launch(kernel, (), num_warps, **constants)
    again(programs, *args)
