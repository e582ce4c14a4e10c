"""The numbers that the paper prints, to stand beside ours."""

from __future__ import annotations

#: Table 1: n -> method -> (share of lists in the right order, share of numbers in the right place)
SORTING: dict[int, dict[str, tuple[float, float]]] = {
    3: {"neuralsort-stochastic": (0.920, 0.946), "neuralsort": (0.919, 0.945), "transport": (0.928, 0.950)},
    5: {"neuralsort-stochastic": (0.790, 0.907), "neuralsort": (0.777, 0.901), "transport": (0.811, 0.917)},
    7: {"neuralsort-stochastic": (0.636, 0.873), "neuralsort": (0.610, 0.862), "transport": (0.656, 0.882)},
    9: {"neuralsort-stochastic": (0.452, 0.829), "neuralsort": (0.434, 0.824), "transport": (0.497, 0.847)},
    15: {"neuralsort-stochastic": (0.122, 0.734), "neuralsort": (0.097, 0.716), "transport": (0.126, 0.742)},
}

#: Table 2: table -> level -> method -> (quantile on train, quantile on test, mean squared error on test)
QUANTILES: dict[str, dict[float, dict[str, tuple[float, float, float]]]] = {
    "bio": {
        0.5: {"hard": (0.33, 0.31, 0.83), "soft": (0.28, 0.28, 0.81)},
        0.9: {"hard": (1.17, 1.19, 0.74), "soft": (1.15, 1.18, 1.17)},
    },
    "bike": {
        0.5: {"hard": (0.23, 0.46, 0.82), "soft": (0.14, 0.49, 0.87)},
        0.9: {"hard": (0.76, 1.60, 0.65), "soft": (0.69, 1.57, 0.63)},
    },
    "facebook": {
        0.5: {"hard": (0.00, 0.01, 0.18), "soft": (0.04, 0.04, 0.19)},
        0.9: {"hard": (0.21, 0.27, 0.27), "soft": (0.27, 0.27, 0.22)},
    },
    "star": {
        0.5: {"hard": (0.55, 0.68, 0.80), "soft": (0.33, 0.74, 0.89)},
        0.9: {"hard": (1.29, 1.55, 0.77), "soft": (1.15, 1.57, 0.77)},
    },
    "concrete": {
        0.5: {"hard": (0.35, 0.45, 0.58), "soft": (0.25, 0.51, 0.61)},
        0.9: {"hard": (0.83, 1.08, 0.50), "soft": (0.72, 1.08, 0.51)},
    },
    "community": {
        0.5: {"hard": (0.27, 0.30, 0.48), "soft": (0.06, 0.32, 0.53)},
        0.9: {"hard": (0.77, 0.98, 0.46), "soft": (0.56, 0.98, 0.44)},
    },
}
