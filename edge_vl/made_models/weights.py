"""Weights: the values of parameters, one at a time, so that a model need never be in memory whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = ["RandomWeights", "Shape", "StoredWeights", "WatchedWeights", "Weights"]

Shape = tuple[int, ...]

_BIAS_STD = 0.02
_EMBEDDING_STD = 0.1
_NORM_STD = 0.1
_LAYER_SCALE = 0.1


class Weights(Protocol):
    """Parameters by name."""

    def names(self) -> Sequence[str]:
        """Return the names of all parameters."""
        ...

    def shape(self, name: str) -> Shape:
        """Return the shape of a parameter; a matrix is (outputs, inputs). KeyError: there is none of that name."""
        ...

    def values(self, name: str) -> NDArray[np.float32]:
        """Return a parameter, not to be written to; equal on every call."""
        ...


class StoredWeights:
    """Weights that are in memory."""

    def __init__(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Keep the arrays by name."""
        self._arrays = arrays

    def names(self) -> Sequence[str]:
        """Return the names of all parameters."""
        return tuple(self._arrays)

    def shape(self, name: str) -> Shape:
        """Return the shape of a parameter."""
        return self._arrays[name].shape

    def values(self, name: str) -> NDArray[np.float32]:
        """Return a parameter."""
        return self._arrays[name]


class RandomWeights:
    """Normally distributed weights, made anew on every call from a seed and the parameter's name.

    Matrices have variance 1 / inputs, so that activations neither die out nor overflow half precision; gains of norms
    lie around 1, those of layer scales around 0.1, and biases around 0.
    """

    def __init__(self, shapes: Mapping[str, Shape], *, seed: int = 0) -> None:
        """Keep names and shapes; nothing is made yet."""
        self._shapes = shapes
        self._seed = seed

    def names(self) -> Sequence[str]:
        """Return the names of all parameters."""
        return tuple(self._shapes)

    def shape(self, name: str) -> Shape:
        """Return the shape of a parameter."""
        return self._shapes[name]

    def values(self, name: str) -> NDArray[np.float32]:
        """Make a parameter: float32, finite."""
        shape = self._shapes[name]
        mean, std = _distribution(name, shape)
        values = np.random.default_rng((self._seed, crc32(name.encode()))).standard_normal(shape, np.float32)
        values *= np.float32(std)
        if mean:
            values += np.float32(mean)
        return values


class WatchedWeights:
    """Weights that tell how many values were taken."""

    def __init__(self, weights: Weights, advance: Callable[[int], None]) -> None:
        """Call `advance` with the number of values after each parameter is made."""
        self._weights = weights
        self._advance = advance

    def names(self) -> Sequence[str]:
        """Return the names of all parameters."""
        return self._weights.names()

    def shape(self, name: str) -> Shape:
        """Return the shape of a parameter."""
        return self._weights.shape(name)

    def values(self, name: str) -> NDArray[np.float32]:
        """Return a parameter."""
        values = self._weights.values(name)
        self._advance(values.size)
        return values


def _distribution(name: str, shape: Shape) -> tuple[float, float]:
    """Return mean and standard deviation for a parameter of any of the naming schemes used here."""
    if name.endswith(".bias"):
        return 0.0, _BIAS_STD
    if "embed_tokens" in name or "_embd" in name or "position_embedding" in name:
        is_patches = len(shape) > 2
        return 0.0, math.prod(shape[1:]) ** -0.5 if is_patches else _EMBEDDING_STD
    if len(shape) > 1:
        return 0.0, math.prod(shape[1:]) ** -0.5
    is_layer_scale = ".ls1." in name or ".ls2." in name
    return (_LAYER_SCALE, _LAYER_SCALE * _NORM_STD) if is_layer_scale else (1.0, _NORM_STD)
