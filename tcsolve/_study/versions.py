"""The versions of the software that affects results."""

import importlib.metadata
import platform
import sys

import numpy as np
import scipy

__all__ = ["versions"]


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


def _nvrtc_version():
    """Return the version of NVRTC, or None if CuPy does not find it."""
    try:
        from cupy.cuda import nvrtc

        return ".".join(map(str, nvrtc.getVersion()))
    except (ImportError, RuntimeError):
        return None
