"""What measures and corrects answers on a device; another array module stands in for CuPy."""

import types
import warnings

import numpy as np
import pytest

from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._family.systems import DenseSystem, ProductSystem
from tcsolve._family.verification import settled


class DeviceOps(NumpyOps):
    """NumPy's primitives with an array module that is not NumPy, as on a device."""

    xp = types.SimpleNamespace(**vars(np))


@pytest.mark.parametrize("kind", ["matrix", "factors"])
def test_rounding_gives_no_warning_for_any_of_many_columns_of_few_unknowns(kind):
    """A few columns miss the bound by rounding, and an FP64 residual would not correct all of them."""
    ops, (first, second) = DeviceOps(), map(np.random.default_rng, (0, 1))
    a = np.triu(first.standard_normal((3, 3)) + 9 * np.eye(3))
    b = second.standard_normal((3, 70_000))
    inverse = np.linalg.inv(a)

    def solved(b):
        return inverse @ b

    system = DenseSystem(ops, a) if kind == "matrix" else ProductSystem(ops, [np.eye(3), a])
    x = solved(b)
    missed = system.errors(x, b) > 2.0**-52
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = settled(system, x, b, solved, "solve_triangular")

    assert missed.any() or kind == "factors"
    assert (DenseSystem(NumpyOps(), a).errors(x, b) <= 2.0**-52).all() or kind == "factors"
