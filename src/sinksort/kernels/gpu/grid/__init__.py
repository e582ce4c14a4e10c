"""Ranks of longer rows: values are spread on a grid, and a rule stands for the targets."""
