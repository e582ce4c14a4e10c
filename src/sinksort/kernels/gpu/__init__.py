"""Kernels for CUDA, written in Triton. Each folder is a family, except ``engine``, which all families use."""
