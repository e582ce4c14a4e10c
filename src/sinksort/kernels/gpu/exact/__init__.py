"""Rows that the fast families reject, sorted values and logarithms of plans."""
