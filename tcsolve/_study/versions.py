"""The versions of the software that affects results."""

import importlib.metadata
import platform
import sys

import numpy as np
import scipy

__all__ = ["told_versions", "versions"]

# The software whose versions a table names.
TOLD = ("tcsolve", "numpy", "scipy", "cupy")


def versions():
    """Return the versions of the software that affects results; CuPy and NVRTC are None if not loaded.

    Returns
    -------
    dict of str to str or None
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    cupy = sys.modules.get("cupy")
    return {
        "tcsolve": importlib.metadata.version("tcsolve"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "cupy": cupy and cupy.__version__,
        "nvrtc": cupy and _nvrtc_version(),
    }


def told_versions(rows):
    """Return the versions of all rows in one line for a table, such as 'tcsolve 0.1.0, numpy 2.4.6'."""
    told = []
    for name in TOLD:
        found = dict.fromkeys((row.get("versions") or {}).get(name) for row in rows)
        if known := [version for version in found if version]:
            told.append(f"{name} {' and '.join(known)}")
    return ", ".join(told)


def _nvrtc_version():
    """Return the version of NVRTC, or None if CuPy does not find it."""
    try:
        from cupy.cuda import nvrtc

        return ".".join(map(str, nvrtc.getVersion()))
    except (ImportError, RuntimeError):
        return None
