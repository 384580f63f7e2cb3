"""`installed`: tcsolve's functions replace those of SciPy, NumPy and CuPy, for code that is not edited."""

import contextlib
import contextvars
import functools
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from tcsolve._family import banded, cholesky, inverse, least_squares, lu, replaced, triangular
from tcsolve._solve.api import solve

__all__ = ["install", "installed"]

SCIPY = {
    "solve": solve,
    "lu_factor": lu.lu_factor,
    "lu_solve": lu.lu_solve,
    "cho_factor": cholesky.cho_factor,
    "cho_solve": cholesky.cho_solve,
    "solve_triangular": triangular.solve_triangular,
    "solve_banded": banded.solve_banded,
    "solveh_banded": banded.solveh_banded,
    "lstsq": least_squares.lstsq,
    "inv": inverse.inv,
    "det": inverse.det,
}


class _Place(NamedTuple):
    """A name of a module, what was there, and the dispatcher that is there now."""

    module: Any
    name: str
    original: Any
    dispatcher: Any


# The blocks of this thread (or task), whose calls go to tcsolve; and whether tcsolve itself is calling.
_blocks = contextvars.ContextVar("blocks", default=())
_inside = contextvars.ContextVar("inside", default=False)
_lock, _places, _users = threading.Lock(), [], []


@contextlib.contextmanager
def installed():
    """Replace functions of SciPy, NumPy and CuPy by those of tcsolve, in a with block.

    These names are rebound:

    - in `scipy.linalg`: `solve`, `lu_factor`, `lu_solve`, `cho_factor`, `cho_solve`, `solve_triangular`,
      `solve_banded`, `solveh_banded`, `lstsq`, `inv` and `det`;
    - in `numpy.linalg`: `solve`, `inv` and `det`;
    - in `cupy.linalg`, if CuPy is imported: `solve` and `inv`.

    When the last such block ends, also after an exception, the modules are as before.

    Returns
    -------
    context manager

    Notes
    -----
    Only calls of the thread (or asyncio task) of the block go to tcsolve; calls of other threads go to the
    functions that were there before.  Names that were imported before, as by ``from scipy.linalg import
    solve``, are not changed.  The functions in numpy.linalg and cupy.linalg keep the dtypes and the errors
    of these libraries.

    The command ``tcsolve run script.py`` does the same for a whole program.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.linalg, tcsolve
    >>> with tcsolve.installed():
    ...     x = scipy.linalg.solve(np.array([[2.0, 1], [1, 3]]), np.array([3.0, 4]))
    >>> x.round(12).tolist()
    [1.0, 1.0]
    """
    user = object()
    with _lock:
        _users.append(user)
        _bind()
    _blocks.set((*(block for block in _blocks.get() if block in _users), user))
    try:
        yield
    finally:
        with _lock:
            _users.remove(user)
            if not _users:
                _restore()


def install():
    """Rebind the names for all threads, until the process ends."""
    with _lock:
        _users.append("everywhere")
        _bind()


def _functions():
    """Yield (module, name, tcsolve's function) for each name that is rebound."""
    for name, ours in SCIPY.items():
        yield scipy.linalg, name, ours
    for name, ours in replaced.NUMPY.items():
        yield np.linalg, name, ours
    cupy = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "linalg"):
        for name, ours in replaced.cupy_functions(cupy.linalg).items():
            yield cupy.linalg, name, ours


def _bind():
    """Bind a dispatcher to each name that has none."""
    bound = {(place.module, place.name) for place in _places}
    for module, name, ours in _functions():
        if (module, name) not in bound:
            original = getattr(module, name)
            place = _Place(module, name, original, _dispatcher(module, name, original, ours))
            _places.append(place)
            setattr(module, name, place.dispatcher)


def _restore():
    """Put back the original functions, except where other code has bound the name since."""
    while _places:
        place = _places.pop()
        if getattr(place.module, place.name) is place.dispatcher:
            setattr(place.module, place.name, place.original)


def _dispatcher(module, name, original, ours):
    """Return a function that calls `ours` where it is wanted, and `original` elsewhere.

    It is pickled as the name to which it is bound.
    """

    @functools.wraps(original)
    def call(*args, **kwargs):
        wanted = "everywhere" in _users or any(block in _users for block in _blocks.get())
        if not wanted or _inside.get():
            return original(*args, **kwargs)
        token = _inside.set(True)
        try:
            return ours(*args, **kwargs)
        finally:
            _inside.reset(token)

    call.__module__, call.__qualname__ = module.__name__, name
    return call
