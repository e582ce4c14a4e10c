"""Narrow bands: the part of a plan that is not negligible at small eps, solved and read in near-linear time."""
