r"""Second moments of bounded vectors: the statistic :math:`\sum_i w_i v_i v_i^T`, as a vector.

A symmetric matrix becomes the vector of its diagonal and of :math:`\sqrt 2` times what is above it. Lengths stay: the
length of the vector is the Frobenius norm. For :math:`|v|, |v'| \le B`,

.. math::
    \lVert v v^T - v' v'^T \rVert^2 = |v|^4 + |v'|^4 - 2 \langle v, v' \rangle^2 \le 2 B^4,

so replacing a record of weight w moves it by at most :math:`\sqrt 2 B^2 w`, and by that much where v and v' are
orthogonal. Equal noise in all coordinates of the vector is noise of variance s^2 on the diagonal of the matrix and
s^2/2 off it.
"""

from __future__ import annotations

import math

import numpy as np

ROOT = math.sqrt(2.0)


def as_vector(matrix: np.ndarray) -> np.ndarray:
    """Return a symmetric matrix as a vector of the same length."""
    row, column = np.triu_indices(len(matrix))
    return matrix[row, column] * np.where(row == column, 1.0, ROOT)


def as_matrix(vector: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix of such a vector.

    >>> as_matrix(as_vector(np.array([[1.0, 2.0], [2.0, 5.0]])))
    array([[1., 2.],
           [2., 5.]])
    """
    size = (math.isqrt(8 * len(vector) + 1) - 1) // 2
    row, column = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[row, column] = vector / np.where(row == column, 1.0, ROOT)
    matrix[column, row] = matrix[row, column]
    return matrix


def noise_norm(size: int, std: float) -> float:
    """Return the spectral norm of the noise in a matrix, about: sqrt(2 size) deviations."""
    return math.sqrt(2 * size) * std


def length_limited(vectors: np.ndarray, bound: float) -> np.ndarray:
    """Return the rows, none longer than the bound."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * np.minimum(1.0, bound / np.maximum(lengths, 1e-300))
