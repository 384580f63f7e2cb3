"""A plugin of pytest: tcsolve's functions in the places of SciPy's, before SciPy's tests are imported.

TCSOLVE_SWAP names the functions, separated by commas.  Without it, nothing is swapped.
"""

import os

import scipy.linalg
import scipy.linalg.lapack  # noqa: F401

import tcsolve

for name in filter(None, os.environ.get("TCSOLVE_SWAP", "").split(",")):
    setattr(scipy.linalg, name, getattr(tcsolve, name))
