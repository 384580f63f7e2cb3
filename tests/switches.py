"""Skips that a variable of the environment turns into failures."""

import importlib
import os

import pytest


def skip_or_fail(reason, switch):
    """Skip with a reason, or fail where the environment says that this machine must not skip."""
    if os.environ.get(switch) == "1":
        pytest.fail(f"{switch}=1, but {reason}")
    pytest.skip(reason)


def import_or_skip(name):
    """Return a module, or skip; if a switch such as TCSOLVE_REQUIRE_TQDM is set, fail without the module."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        skip_or_fail(f"{name} cannot be imported: {error}", f"TCSOLVE_REQUIRE_{name.upper()}")


def skip_on_other_chips(reason):
    """Skip with a reason, or fail on compute capability 9.0, which has all that the tests need."""
    import cupy

    if cupy.cuda.Device().compute_capability == "90":
        pytest.fail(f"on compute capability 9.0, {reason}")
    pytest.skip(reason)
