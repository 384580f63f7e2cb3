"""General systems of a few hundred unknowns by LU factors in FP32 and refinement: when they are used.

From LEAST on this takes less time than an LU in FP64, with the verification of x and of the condition number
included.
"""

import numpy as np

from tcsolve._backends.cpu.ops import sums
from tcsolve._lu.norms import Survey
from tcsolve._lu.scaling import needs_scaling

__all__ = ["FEW_COLUMNS", "suit", "survey_of_well_scaled"]

# From this n on, and for at most n / FEW_COLUMNS right-hand sides, factors in FP32 are faster.
LEAST, FEW_COLUMNS = 300, 16


def suit(a, columns):
    """Tell whether FP32 factors are tried first for a general matrix a and a number of right-hand sides."""
    return len(a) >= LEAST and columns * FEW_COLUMNS <= len(a) and a.dtype.char in "dD"


def survey_of_well_scaled(a):
    """Return the `Survey` of a; None if FP32 factors need a scaled matrix, or if a sum is not finite."""
    top, least, (rows, columns) = np.maximum.reduce, np.minimum.reduce, sums(a)
    extremes = top(rows), least(rows), top(columns), least(columns)
    dominance = least(2.0 * np.abs(a.diagonal()) - rows)
    found = Survey.of(*map(float, (*extremes, dominance)))
    return None if needs_scaling(found) else found
