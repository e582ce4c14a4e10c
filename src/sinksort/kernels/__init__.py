"""Fused kernels: the same answers, near the floor of time and memory.

Triton on CUDA and Numba on the CPU do for rows in single precision what the reference does step by step: see
``contract`` for what they compute and how it is differentiated.
"""

from .ahead import compile  # noqa: A004 - as torch.compile
from .backends import BACKENDS, last_backend

__all__ = ["BACKENDS", "compile", "last_backend"]
