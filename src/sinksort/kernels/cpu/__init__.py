"""Kernels for the CPU, compiled by Numba. Each folder is a family, except ``engine``, which all families use."""
