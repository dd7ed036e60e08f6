"""Products over a tile: right for all numbers of rows, the same bits by fives and one by one, rounding as stated."""

from __future__ import annotations

import numpy as np
import pytest

from diff2.gradients.sums import TILE

products = pytest.importorskip("diff2.gradients.kernel_products", reason="numba is not installed")
UNIT = np.finfo(np.float32).eps / 2


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sums(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    out, lanes = np.zeros(len(left) * len(right)), np.empty(TILE, np.float32)
    products.add_products(left, right, out, lanes)
    return out.reshape(len(left), len(right))


@pytest.mark.parametrize("rows", [1, 4, 5, 6, 10, 13])
@pytest.mark.parametrize("inputs", [1, 2, 3, 4, 9])
def test_rows_are_the_same_by_fives_and_one_by_one(rows, inputs):
    weight, bias, x, left = (
        numbers(rows, inputs),
        numbers(rows, seed=1),
        numbers(inputs, TILE, seed=2),
        numbers(rows, TILE),
    )
    together, alone = np.empty((rows, TILE), np.float32), np.empty((1, TILE), np.float32)
    products.affine(weight, bias, x, together)
    np.testing.assert_allclose(together, weight.astype(float) @ x + bias[:, None], rtol=1e-4, atol=1e-5)
    found = sums(left, x)
    for row in range(rows):
        products.affine(weight[row : row + 1], bias[row : row + 1], x, alone)
        np.testing.assert_array_equal(alone[0], together[row])
        np.testing.assert_array_equal(sums(left[row : row + 1], x)[0], found[row])
    for column in range(inputs):
        np.testing.assert_array_equal(sums(left, x[column : column + 1])[:, 0], found[:, column])


@pytest.mark.parametrize("seed", range(5))
def test_a_sum_over_a_tile_is_off_by_at_most_15_roundings_of_its_terms(seed):
    left, right = np.abs(numbers(5, TILE, seed=seed)), np.abs(numbers(7, TILE, seed=seed + 100))
    exact = left.astype(float) @ right.T.astype(float)
    assert (np.abs(sums(left, right) - exact) <= 15 * UNIT * exact).all()


def test_every_record_of_a_tile_is_added_once():
    for record in range(TILE):
        left, right = np.zeros((6, TILE), np.float32), np.ones((3, TILE), np.float32)
        left[:, record] = np.arange(1, 7)
        assert sums(left, right).T.tolist() == 3 * [[1, 2, 3, 4, 5, 6]]
