"""Skips that a variable of the environment turns into failures."""

import os

import pytest


def skip_or_fail(reason, switch):
    """Skip with a reason, or fail where the environment says that this machine must not skip."""
    if os.environ.get(switch) == "1":
        pytest.fail(f"{switch}=1, but {reason}")
    pytest.skip(reason)
