"""The real matrices are those of the index."""

from pathlib import Path

import numpy as np
import scipy.io
import scipy.linalg
import scipy.sparse

from tcsolve import matrices


def test_every_real_matrix_has_the_indexed_order(matrices_folder):
    rows = matrices.index()
    assert tuple(sorted(row["name"] for row in rows)) == matrices.names()
    for row in rows:
        header = scipy.io.mminfo(Path(matrices_folder) / f"{row['name']}.mtx.gz")
        assert header[:2] == (row["n"], row["n"])


def test_every_small_real_matrix_loads(matrices_folder):
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
