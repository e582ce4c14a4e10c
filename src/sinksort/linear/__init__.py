"""The same answers in linear time, in torch: small problems, grids, narrow bands and thresholds in place of a full
plan.
"""
