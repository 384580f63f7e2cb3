"""Fixtures for tests on a device."""

import dataclasses

import pytest


@pytest.fixture
def lu_sizes(cupy, monkeypatch):
    """A function that sets from which sizes on the LU takes its other roads, so that small matrices do."""
    from tcsolve._backends.cuda.lu import rules

    def start_from(**sizes):
        monkeypatch.setattr(rules, "LIMITS", dataclasses.replace(rules.LIMITS, **sizes))

    return start_from
