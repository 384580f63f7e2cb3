"""Fixtures for tests on a device."""

import contextlib

import pytest

from tcsolve._paths import replaced


@pytest.fixture
def lu_sizes(cupy):
    """A function that sets from which sizes on the LU takes its other roads, so that small matrices do."""
    with contextlib.ExitStack() as stack:
        yield lambda **sizes: stack.enter_context(replaced(**sizes))
