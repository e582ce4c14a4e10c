"""Kernels for the CPU, in one folder for each family."""
