"""Fixtures for tests on a device."""

import contextlib

import pytest

from tcsolve._paths import replaced


@pytest.fixture
def lu_sizes(cupy):
    """A function that lowers the thresholds of the special paths, so that small matrices take them."""
    with contextlib.ExitStack() as stack:
        yield lambda **sizes: stack.enter_context(replaced(**sizes))
