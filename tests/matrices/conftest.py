"""Fixtures of the tests of folders and of downloads."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder that TCSOLVE_MATRICES names."""
    path = tmp_path / "matrices"
    path.mkdir()
    monkeypatch.setenv("TCSOLVE_MATRICES", str(path))
    return path
