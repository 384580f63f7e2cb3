"""Fixtures for tests on a device."""

import pytest


@pytest.fixture
def lu_sizes(cupy, monkeypatch):
    """A function that sets from which sizes on the LU takes its other roads, so that small matrices do."""
    from tcsolve._backends.cuda.lu import look_ahead, ops

    places = {
        "least_columns": (ops, "LEAST_COLUMNS"),
        "wide": (ops, "WIDE"),
        "square_rows": (ops, "SQUARE_ROWS"),
        "beside_rows": (look_ahead, "BESIDE_ROWS"),
        "panel_rows": (look_ahead, "PANEL_ROWS"),
    }

    def start_from(**sizes):
        for name, size in sizes.items():
            monkeypatch.setattr(*places[name], size)

    return start_from
