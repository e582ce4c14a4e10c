"""A perceptron as a list of (weights, bias): linear when it has no hidden layer. One forward pass for torch and NumPy.

Fitting sees standardised features (X - centre) / scale and a standardised response; what is stored is in the units of
the data. Both are affine, so they fold into the first and the last layer, and unfold from there when fitting goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
ArrayLayers = list[tuple[Array, Array]]
TensorLayers = list[tuple[Tensor, Tensor]]


class Units(NamedTuple):
    """Centre and scale, of the features (d,) or of the response (1,)."""

    centre: Array
    scale: Array

    def standardize(self, values: Array) -> Array:
        return (values - self.centre) / self.scale


def forward(layers: TensorLayers, X: Tensor) -> Tensor:
    """(n, outputs), with rectified linear units between the layers."""
    for depth, (W, b) in enumerate(layers):
        X = (X.relu() if depth else X) @ W + b
    return X


def predict(layers: ArrayLayers, X: Array) -> Array:
    """``forward`` in NumPy."""
    for depth, (W, b) in enumerate(layers):
        X = (np.maximum(X, 0.0) if depth else X) @ W + b
    return X


def random_layers(sizes: Sequence[int], random: np.random.RandomState) -> ArrayLayers:
    """He's initialisation, with a last layer small enough that training begins near the centre of the response."""
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers.append((random.normal(scale=np.sqrt(2.0 / n_in), size=(n_in, n_out)), np.zeros(n_out)))
    W, b = layers[-1]
    layers[-1] = (0.1 * W, b)
    return layers


def fold(layers: ArrayLayers, features: Units, response: Units) -> ArrayLayers:
    """Layers for standardised data -> layers for the data."""
    layers = list(layers)
    W, b = layers[0]
    W = W / features.scale[:, None]
    layers[0] = (W, b - features.centre @ W)
    W, b = layers[-1]
    layers[-1] = (W * response.scale, b * response.scale + response.centre)
    return layers


def unfold(layers: ArrayLayers, features: Units, response: Units) -> ArrayLayers:
    """The inverse of ``fold``."""
    layers = list(layers)
    W, b = layers[-1]
    layers[-1] = (W / response.scale, (b - response.centre) / response.scale)
    W, b = layers[0]
    layers[0] = (W * features.scale[:, None], b + features.centre @ W)
    return layers


def to_tensors(layers: ArrayLayers, like: Tensor) -> TensorLayers:
    return [(like.new_tensor(W), like.new_tensor(b)) for W, b in layers]


def to_arrays(layers: TensorLayers) -> ArrayLayers:
    return [(W.detach().cpu().double().numpy().copy(), b.detach().cpu().double().numpy().copy()) for W, b in layers]
