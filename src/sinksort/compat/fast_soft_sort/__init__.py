"""Soft ranks and sorts with the names, arguments and answers of fast-soft-sort.

``numpy_ops`` works on arrays of one dimension, ``pytorch_ops`` on tensors of two. The whole migration is one line:
``from sinksort.compat.fast_soft_sort import numpy_ops, pytorch_ops``. Operators for JAX and TensorFlow are not here.
"""
