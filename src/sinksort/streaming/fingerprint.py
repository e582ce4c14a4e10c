"""A fingerprint of the values of a pass, by which two passes are compared without keeping either.

It is the number of values in a row, the sum of their bit patterns, and the sum of their bit patterns mixed with the
places of the values. Whole numbers add up without rounding, so that the fingerprint does not depend on how a pass is
cut into chunks. Other values, or the same in another order, have another fingerprint (but for one case in about 2^60).
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}  #: by bytes
#: Odd 64-bit numbers with irregular digits.
_PLACE, _ROW, _FIRST, _SECOND = (
    c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_BLOCK = 1 << 16  #: values at a time, so that what is made of them stays in a cache


class Fingerprint:
    """Of the values that have been added so far.

    >>> one, other = Fingerprint(), Fingerprint()
    >>> one.add(torch.tensor([1.0, 2.0, 3.0]))
    >>> other.add(torch.tensor([1.0]))
    >>> other.add(torch.tensor([2.0, 3.0]))
    >>> one.told() == other.told()
    True
    """

    def __init__(self) -> None:
        self.count = 0  #: of values in a row
        self._sums = torch.zeros(2, dtype=torch.int64, device="cpu")

    def add(self, x: Tensor, w: Tensor | None = None) -> None:
        """The next values of each row, and their weights."""
        self._sums = self._sums.to(x.device)
        for salt, values in enumerate((x, w)):
            if values is not None and values.numel():
                size = max(1, _BLOCK * values.shape[-1] // values.numel()) if x.device.type == "cpu" else x.shape[-1]
                for k, block in enumerate(values.reshape(-1, values.shape[-1]).split(size, dim=-1)):
                    self._sums += _sums(block, self.count + k * size, salt)
        self.count += x.shape[-1]

    def told(self) -> tuple[int, ...]:
        """(count, sum, hash). Waits for the device."""
        return (self.count, *self._sums.tolist())


def _sums(x: Tensor, before: int, salt: int) -> Tensor:
    """(2,): the sum of the bit patterns of rows x, and of these mixed with their places, both modulo 2^64.

    The mixing is that of a good generator of random numbers: a multiplication carries every bit upwards, and a shift
    brings the upper half down to the lower half.
    """
    bits = _bits(x).to(torch.int64)
    columns = torch.arange(before, before + x.shape[-1], dtype=torch.int64, device=x.device).mul_(_PLACE)
    rows = torch.arange(salt, salt + 2 * len(x), 2, dtype=torch.int64, device=x.device).mul_(_ROW)
    mixed = (bits * _FIRST).add_(columns).add_(rows.unsqueeze(-1))
    for factor in (_SECOND, _FIRST):
        mixed.bitwise_xor_(mixed >> 32).mul_(factor)
    return torch.stack([bits.sum(), mixed.sum()])


def _bits(x: Tensor) -> Tensor:
    """The bit patterns of x, the same for values that are the same: for 0 and -0, and for all that are NaN."""
    same = torch.where(x.isnan(), torch.full((), torch.nan, dtype=x.dtype, device=x.device), x + 0.0)
    return same.contiguous().view(_BITS[x.dtype.itemsize])
