"""Files with matrices: the format is told by the suffix."""

import os
from pathlib import Path

from tcsolve.matrices import _matlab, _matrix_market, _rutherford_boeing
from tcsolve.matrices._matrix_market import LIMIT_BYTES

__all__ = ["SUFFIXES", "read"]

SUFFIXES = (*_matrix_market.SUFFIXES, *_rutherford_boeing.SUFFIXES, ".mat")


def read(source, *, limit_bytes=LIMIT_BYTES, pattern=True):
    """Read a file into a dense array: Matrix Market, Rutherford-Boeing, or MATLAB.

    Takes the arguments of `_matrix_market.read`; an open file holds Matrix Market.
    """
    how = {"limit_bytes": limit_bytes, "pattern": pattern}
    if hasattr(source, "peek"):
        return _matrix_market.read(source, **how)
    path = Path(os.fspath(source))
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix == ".mat":
        return _matlab.read(path, **how)
    if path.suffix in _rutherford_boeing.SUFFIXES:
        return _rutherford_boeing.read(path, **how)
    return _matrix_market.read(path, **how)
