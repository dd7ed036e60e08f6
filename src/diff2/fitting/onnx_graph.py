"""A small writer of ONNX graphs in double precision: an operation a call, arrays as constants."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from scipy.special import ndtri

OPSET, ML_OPSET, IR_VERSION = 17, 2, 8
LOWEST, DEGREE = 0.001, 20  # of the ranks that get a normal score, and of the polynomial that gives it


class Graph:
    """Operations in the order of their calls; a tensor is the name of what made it."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self._helper, self._arrays = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def __call__(self, operation: str, *inputs: Any, domain: str = "", name: str = "", **attributes: Any) -> str:
        """Add an operation; numbers and arrays among its inputs become constants."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        made = name or f"t{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(operation, names, [made], domain=domain, **attributes))
        return made

    def constant(self, value: Any) -> str:
        """Return the name of a constant; numbers are in double precision."""
        array = np.asarray(value, np.float64) if isinstance(value, float) else np.asarray(value)
        self.constants.append(self._arrays.from_array(np.array(array, order="C"), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def cast(self, tensor: str, kind: str) -> str:
        """Return a tensor as ``DOUBLE`` or ``INT64``."""
        from onnx import TensorProto

        return self("Cast", tensor, to=getattr(TensorProto, kind))

    def clip(self, tensor: str, low: float, high: float) -> str:
        """Return a tensor within bounds."""
        return self("Clip", tensor, float(low), float(high))

    def beside(self, tensors: list[str]) -> str:
        """Return the columns of several tensors side by side."""
        return tensors[0] if len(tensors) == 1 else self("Concat", *tensors, axis=1)

    def normal_quantile(self, shares: str) -> str:
        """Return normal quantiles of shares between .001 and .999, right to 1e-14.

        ONNX has no such operation. With w = -log(4 p (1 - p)), the quantile is 2 p - 1 times a polynomial of w.
        """
        product = self("Mul", self("Mul", shares, 4.0), self("Sub", 1.0, shares))
        w = self("Neg", self("Log", product))
        first, *others = quantile_polynomial()
        found = self("Mul", w, first)
        for coefficient in others[:-1]:
            found = self("Mul", self("Add", found, coefficient), w)
        found = self("Add", found, others[-1])
        return self("Mul", self("Sub", self("Mul", shares, 2.0), 1.0), found)


@cache
def quantile_polynomial() -> tuple[float, ...]:
    """Return the coefficients of ndtri(p) / (2 p - 1) as a polynomial of -log(4 p (1 - p)), highest power first.

    >>> p = np.linspace(LOWEST, 1 - LOWEST, 10_000)
    >>> found = np.polyval(quantile_polynomial(), -np.log(4 * p * (1 - p))) * (2 * p - 1)
    >>> bool(np.abs(found - ndtri(p)).max() < 1e-14)
    True
    """
    largest = -math.log(4 * LOWEST * (1 - LOWEST))
    w = largest * (np.cos(np.pi * (np.arange(200) + 0.5) / 200) + 1) / 2
    p = (1 - np.sqrt(-np.expm1(-w))) / 2
    fitted = Chebyshev.fit(w, ndtri(p) / (2 * p - 1), DEGREE, domain=[0, largest])
    return tuple(fitted.convert(kind=Polynomial).coef[::-1].tolist())
