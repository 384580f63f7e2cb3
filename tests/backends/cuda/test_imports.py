"""The modules for a device can be imported on a machine that has CuPy and no CUDA libraries."""

import subprocess
import sys

from switches import skip_or_fail

# The CUDA libraries come with other wheels than CuPy.  Without them, any object stands for their functions.
PROGRAM = """
import importlib, pkgutil, sys
from unittest.mock import MagicMock

import cupy
from cupy_backends.cuda import libs
for name in ("cublas", "cusolver", "cusparse"):
    try:
        importlib.import_module(f"cupy_backends.cuda.libs.{name}")
    except ImportError:
        stub = sys.modules[f"cupy_backends.cuda.libs.{name}"] = MagicMock()
        setattr(libs, name, stub)
import tcsolve._backends.cuda as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print("imported", len([x for x in sys.modules if x.startswith(package.__name__)]))
"""


def test_every_module_for_a_device_can_be_imported():
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        skip_or_fail(f"CuPy cannot be imported: {error}", "TCSOLVE_REQUIRE_NVRTC")
    # -P: the installed package, not the working folder.
    command = [sys.executable, "-P", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 30
