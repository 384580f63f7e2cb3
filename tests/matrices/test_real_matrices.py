"""The real matrices are those of the index."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.sparse

from tcsolve import matrices


@pytest.fixture(scope="module")
def real_matrices():
    """Return the folder of collection matrices."""
    path = os.environ.get("TCSOLVE_MATRICES")
    if path and (Path(path) / "index.csv").is_file():
        return Path(path)
    reason = f"TCSOLVE_MATRICES is {path!r}, not a folder of collection matrices with an index.csv"
    if os.environ.get("TCSOLVE_REQUIRE_MATRICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def test_every_real_matrix_has_the_indexed_order(real_matrices):
    rows = matrices.index()
    assert tuple(sorted(row["name"] for row in rows)) == matrices.names()
    for row in rows:
        header = scipy.io.mminfo(real_matrices / f"{row['name']}.mtx.gz")
        assert header[:2] == (row["n"], row["n"])


def test_every_small_real_matrix_loads(real_matrices):
    rows = [row for row in matrices.index() if row["n"] <= 2000]
    assert rows
    for row in rows:
        p = matrices.load(row["name"])
        assert p.n == row["n"]
        assert np.iscomplexobj(p.a) == row["kind"].startswith("complex")
        assert np.count_nonzero(p.a) <= row["nnz"]
        assert abs(np.abs(p.a).max() / row["max_abs"] - 1) <= 0.01
        if "symmetric" in row["kind"].split() and "real" in row["kind"]:
            assert (p.a == p.a.T).all()
