"""A study: its rows, what is skipped, resuming after a kill, parallel processes, and study files."""

import ctypes
import gzip
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import scipy.linalg
from exact_solution import relative_error
from exact_solution import solution as exact_solution
from market import HEADER, write
from switches import import_or_skip

import tcsolve
from tcsolve import Plan, StudyTable, matrices, study
from tcsolve._study import threads
from tcsolve._study.reference import forward_error, reference_of
from tcsolve._study.rows import Settings, rows_of
from tcsolve._study.runs import model_of_updates
from tcsolve.cli import command as cli

PLANS = {"precision": ["fp16", "fp32"], "method": ["ir", "fgmres"], "block": 16}
FEW = "gen:svd_geo:n=40:cond=1e2,1e6"
# The columns in which two runs of the same case may differ.
OF_A_RUN = ("seconds", "factor_seconds", "solve_seconds", "blas_threads", "date", "versions")


def without_times(rows):
    return [{k: v for k, v in row.items() if k not in OF_A_RUN} for row in rows]


METHODS = ("ir", "fgmres", "gmres")


def quiet(*args, **options):
    return study(*args, show_progress=False, **options)


# ---- rows


def test_a_row_holds_what_was_measured():
    (row,) = quiet(
        "gen:svd_geo:n=60:cond=1e3", {"precision": "fp16", "block": 16}, rhs="random"
    ).rows
    problem = matrices.generate("svd_geo", 60, cond=1e3, rhs="random")
    solution = tcsolve.factor(
        problem.a, precision=Plan("fp16", block=16, fallback=False, max_steps=500)
    )
    solution = solution.solve_ex(problem.b)
    assert row["matrix"] == "svd_geo n=60 cond=1000" and row["plan"] == "fp16 block=16"
    assert (row["n"], row["nnz"], row["kappa"], row["kappa_norm"]) == (60, 3600, 1e3, "given")
    assert row["status"] == "CONVERGED" and row["converged"] is True
    assert row["steps"] == solution.iterations[0] > 0 and row["inner_steps"] == row["cycles"] == 0
    assert row["backward_error"] == solution.backward_error[0] <= row["bound"]
    exact = relative_error(solution.x, exact_solution(problem.a, problem.b))
    assert row["forward_error"] == pytest.approx(exact, rel=1e-6)
    assert row["panels"] == 4 and row["model"].startswith("updates of one product of fp16")
    assert row["versions"]["tcsolve"] == tcsolve.__version__ and row["seed"] == 0
    assert 0 < row["factor_seconds"] < row["seconds"]


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_forward_error_shows_what_double_double_residuals_gain(precision):
    grid = {"precision": precision, "residual": ["fp64", "double-double"], "fallback": True}
    plain, accurate = quiet("gen:svd_geo:n=60:cond=1e8", grid, rhs="random").rows
    assert plain["converged"] and accurate["converged"]
    assert plain["forward_error"] >= 1e4 * accurate["forward_error"]
    # The rounding of x to FP64 is the only error that is left.
    assert accurate["forward_error"] <= 2.0**-52


@pytest.mark.parametrize("cond", [1e2, 1e8, 1e14])
def test_the_forward_error_is_that_of_the_stored_system(cond):
    problem = matrices.generate("svd_geo", 24, cond=cond, rhs="random")
    x = np.linalg.solve(problem.a, problem.b)
    exact = relative_error(x, exact_solution(problem.a, problem.b))
    found = forward_error(x, reference_of(problem))
    # The reference itself has an error of about kappa 2^-106.
    assert found == pytest.approx(exact, rel=1e-6, abs=10 * cond * 2.0**-106)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_a_matrix_of_any_dtype_has_a_forward_error(dtype):
    problem = matrices.generate("svd_geo", 24, cond=1e3, dtype=dtype, rhs="random")
    wide = np.longdouble if dtype == "float32" else np.clongdouble
    high, low = reference_of(problem)
    r = problem.b.astype(wide) - problem.a.astype(wide) @ (high.astype(wide) + low.astype(wide))
    assert np.abs(r).max() <= 1e2 * np.finfo(np.longdouble).eps * np.abs(high).max()
    assert forward_error(high.astype(dtype), (reference_of(problem))) <= np.finfo(dtype).eps


def test_a_row_has_the_number_of_threads_of_blas(monkeypatch):
    for count in ("1", "2"):
        for name in threads.THREAD_VARIABLES:
            monkeypatch.setenv(name, count)
        code = "from tcsolve._study.threads import blas_threads; print(blas_threads())"
        told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
        assert int(told.stdout) == min(int(count), threads.cores())
    (row,) = quiet("gen:gauss:n=10", "fp32").rows
    assert row["blas_threads"] == threads.blas_threads() >= 1

    # A BLAS that cannot be asked: the variables tell, or the cores.
    def refuse(path):
        raise OSError(path)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads.blas_threads() == 5
    for name in threads.THREAD_VARIABLES:
        monkeypatch.delenv(name)
    assert threads.blas_threads() == threads.cores()


def test_an_unknown_solution_gives_no_forward_error():
    problem = matrices.generate("svd_geo", 50, cond=1e22)
    assert reference_of(problem) is None
    (row,) = quiet("gen:svd_geo:n=50:cond=1e22", "fp64").rows
    assert row["forward_error"] is None
    assert forward_error(np.array([np.nan]), None) is None


def test_the_facts_of_a_matrix_are_its_condition_numbers():
    problem = matrices.generate("gauss", 50)
    a = problem.a * np.logspace(0, 8, 50)[:, None]

    (row,) = quiet({"mine": a}, "fp64").rows

    inverse = np.linalg.inv(a)
    assert row["kappa"] == pytest.approx(np.linalg.cond(a), rel=1e-6) and row["kappa_norm"] == "2"
    assert row["skeel"] == pytest.approx(
        np.linalg.norm(np.abs(inverse) @ np.abs(a), np.inf), rel=1e-6
    )
    assert row["kappa_scaled"] < 1e-4 * row["kappa"]
    size = np.abs(a)
    assert row["spread"] == size.max() / size.min()
    rest = size.sum(axis=1) - size.diagonal()
    assert row["dominance"] == pytest.approx((size.diagonal() / rest).min())


def test_the_growth_is_that_of_the_factors():
    (row,) = quiet("gen:wilkinson_growth:n=30", "fp64").rows
    a = matrices.generate("wilkinson_growth", 30).a
    u = scipy.linalg.lu(a.T)[2]  # LAPACK reads a matrix in C order as its transpose
    assert row["growth"] == np.abs(u).max() / np.abs(a).max()
    (row,) = quiet({"transposed": np.asfortranarray(a.T.copy())}, "fp64").rows
    assert row["growth"] >= 1


@pytest.mark.parametrize(
    "precision, model",
    [
        ("fp16", "shifted Cholesky; updates of one product of fp16"),
        ("bf16", "shifted Cholesky; updates of one product of bf16"),
        ("tf32", "shifted Cholesky; updates of one product of tf32"),
        ("fp16x3", "shifted Cholesky; updates of three products of fp16"),
        ("fp16@h200", "shifted Cholesky; updates of one product of fp16"),
        ("fp32", "shifted Cholesky in fp32, every operation rounded"),
        ("fp64", "LU in fp64"),
    ],
)
def test_conjugate_gradients_have_a_row_in_every_precision(precision, model):
    grid = {"precision": precision, "method": "cg", "block": 16}
    (row,) = quiet("gen:spd_geo:n=60:cond=1e4", grid).rows
    assert (row["status"], row.get("reason")) == ("CONVERGED", None)
    assert row["model"].startswith(model)
    # U of a positive definite matrix has no entry above the largest of the matrix; the shift is small.
    assert 0.1 < row["growth"] < 1.05


def test_steps_inside_of_fgmres_are_counted_and_in_the_history():
    table = quiet("gen:svd_geo:n=80:cond=1e6", PLANS, history=True)
    rows = {row["plan"]: row for row in table.rows}
    row = rows["fp16 fgmres block=16"]
    assert row["converged"] and row["steps"] == row["inner_steps"] > 5
    inner = [point for point in row["history"] if point[3]]
    assert len(inner) == row["inner_steps"]
    assert row["history"][-1][2] <= row["bound"]
    stalled = rows["fp16 ir block=16"]
    assert stalled["status"] == "STALLED" and stalled["inner_steps"] == 0


def test_a_matrix_in_one_panel_is_said_not_to_be_rounded():
    (row,) = quiet("gen:gauss:n=50", "fp16").rows
    assert row["panels"] == 1 and "fp32" in row["model"]


def test_the_spectrum_after_preconditioning_is_near_one():
    rows = quiet("gen:svd_geo:n=30,50:cond=1e2", "fp32", spectrum=40).rows
    assert "spectrum" not in rows[1]
    before, after = (np.array(rows[0]["spectrum"][key]) @ [1, 1j] for key in ("before", "after"))
    a = matrices.generate("svd_geo", 30, cond=1e2).a
    assert np.abs(before).max() == pytest.approx(np.abs(np.linalg.eigvals(a)).max())
    assert np.abs(after - 1).max() < 1e-3


def test_a_run_that_fails_has_a_row_and_the_others_go_on():
    table = quiet(["gen:nan_entry:n=20", "gen:gauss:n=20"], "fp32")
    assert [row["status"] for row in table.rows] == ["RAISED", "CONVERGED"]
    assert "NaN" in table.rows[0]["reason"]


def test_an_error_of_any_kind_is_in_its_row_and_the_others_go_on(monkeypatch):
    from tcsolve._study import runs

    factor = runs.factor
    monkeypatch.setattr(runs, "factor", lambda a, **how: 1 / 0 if len(a) == 6 else factor(a, **how))
    rows = quiet("gen:gauss:n=5,6,7", "fp32").rows
    assert [row["status"] for row in rows] == ["CONVERGED", "RAISED", "CONVERGED"]
    assert rows[1]["reason"] == "ZeroDivisionError: division by zero"


def test_factors_with_a_zero_pivot_stall_without_a_step():
    a = np.kron(np.eye(3), [[1.0, 1.0], [1.0, 1.0 + 1e-9]])
    (row,) = quiet({"a": a}, {"precision": "fp16", "block": 2, "scale": False}).rows
    assert row["status"] == "STALLED" and (row["steps"], row["cycles"]) == (0, 0)
    assert row["growth"] is None


def test_the_same_study_has_the_same_rows():
    first, again = (quiet(FEW, PLANS, history=True).rows for _ in range(2))
    assert without_times(first) == without_times(again)


# ---- matrices that are skipped


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TCSOLVE_MATRICES", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "text, reason",
    [
        (f"{HEADER} real general\n2 3 1\n1 1 1.0\n", "2 by 3"),
        (f"{HEADER} pattern general\n2 2 2\n1 1\n2 2\n", "pattern"),
        (f"{HEADER} real general\n2 2 2\n1 1 1.0\n", "not a readable Matrix Market file"),
        (f"{HEADER} real general\n2 2 2\n1 1 1.0\n1 2 2.0\n", "to working precision: pivot 2"),
        (f"{HEADER} real general\n0 0 0\n", "empty"),
    ],
)
def test_a_matrix_that_is_no_system_is_skipped_with_its_reason(folder, text, reason):
    path = write(folder / "bad.mtx", text)

    table = quiet([str(path), "gen:gauss:n=10"], ["fp32", "fp64"])

    bad, *good = table.rows
    assert bad["status"] == "SKIPPED" and reason in bad["reason"]
    assert [row["status"] for row in good] == ["CONVERGED"] * 2
    assert len(table.ran) == 2 and table.rows[0]["matrix"] == "bad.mtx"


def test_a_regular_matrix_with_a_zero_pivot_is_not_called_singular(tmp_path):
    """Elimination makes two rows equal: 1 and 2 are below the rounding of 2**59."""
    path = tmp_path / "absorbed.mtx"
    scipy.io.mmwrite(path, np.array([[1, 2.0**60, 0], [0.5, 1, 1], [0.5, 2, 1]]))
    (row,) = quiet({"file": str(path)}, "fp32").rows
    assert row["status"] == "SKIPPED"
    assert row["reason"] == "it is singular to working precision: pivot 3 is zero in FP64"


@pytest.mark.parametrize(
    "filters, kept",
    [
        ({"max_n": 10}, {"spd", "skew"}),
        ({"min_n": 11}, {"large"}),
        ({"kind": "spd"}, {"spd"}),
        ({"kind": "symmetric"}, {"spd"}),
        ({"kind": "unsymmetric"}, {"skew", "large"}),
        ({"kind": "complex"}, set()),
        ({"kappa": "1e2:1e9"}, {"large"}),
        ({"kappa": (None, 1e2)}, {"spd", "skew"}),
    ],
)
def test_filters_leave_out_matrices_and_say_so(folder, filters, kept):
    found = {
        "spd": np.diag([1.0, 2, 3]),
        "skew": np.array([[1.0, 2], [-2, 1]]),
        "large": np.triu(np.ones((12, 12))) * np.logspace(0, 4, 12),
    }
    for name, a in found.items():
        entries = "\n".join(map(repr, a.T.ravel().tolist()))
        text = f"%%MatrixMarket matrix array real general\n{len(a)} {len(a)}\n{entries}\n"
        write(folder / f"{name}.mtx", text)

    table = quiet({"file": str(folder / "*.mtx"), **filters}, "fp64")

    assert {row["matrix"].removesuffix(".mtx") for row in table.ran} == kept
    assert all(row["reason"] for row in table.rows if row["status"] == "SKIPPED")
    assert len(table) == 3


# Name, group, kind, condition number and the diagonal of the matrices of a folder.
FOLDER = (
    ("easy", "HB", "real symmetric positive definite", 2.0, [1.0, 2]),
    ("hard", "HB", "real symmetric", 1e9, [1.0, -1e9, 1]),
    ("large", "HB", "real symmetric positive definite", 5.0, [1.0, 5, *[2] * 10]),
    ("other", "Bai", "real symmetric positive definite", 3.0, [1.0, 3]),
)


@pytest.fixture
def collection(folder, monkeypatch):
    """A folder with some matrices of the collection and its index."""
    index = "name,group,n,nnz,kind,cond_2norm\n"
    for name, group, kind, cond, diagonal in FOLDER:
        n = len(diagonal)
        index += f"{name},{group},{n},{n},{kind},{cond}\n"
        entries = "".join(f"{i} {i} {value}\n" for i, value in enumerate(diagonal, 1))
        write(folder / f"{name}.mtx", f"{HEADER} real general\n{n} {n} {n}\n{entries}")
    (folder / "index.csv").write_text(index)
    monkeypatch.setenv("TCSOLVE_MATRICES", str(folder))
    return folder


# (matrices, filters, names that are run, reasons of those that are skipped).
SELECTED = [
    ("ss:HB/*", {}, ["easy", "hard", "large"], {}),
    ("ss:HB/*", {"kappa": "1:1e3"}, ["easy", "large"], {"HB/hard": "kappa is 1.00e+09, out"}),
    (
        "ss:HB/*",
        {"kappa": "1:1e3", "max_n": 5},
        ["easy"],
        {"HB/hard": "kappa is 1.00e+09", "HB/*": "(max_n = 5) exclude 1 of the 3 matrices"},
    ),
    (
        "ss:*",
        {"kind": "spd", "max_n": 5},
        ["easy", "other"],
        {"*": "kind = spd) exclude 2 of the 4"},
    ),
    ("ss:*", {"group": "Bai"}, ["other"], {}),
    (
        "gen:hilbert:n=3",
        {"group": "HB"},
        [],
        {"hilbert n=3": "no group of the collection, and HB is"},
    ),
    ("ss:HB/*", {"max_n": 1}, [], {"HB/*": "(max_n = 1) exclude 3 of the 3"}),
    ("ss:large", {"max_n": 5}, [], {"large": "n = 12 is above max_n = 5"}),
]


@pytest.mark.parametrize(
    "text, filters, ran, skipped, jobs",
    [*((*case, 1) for case in SELECTED), (*SELECTED[2], 2), (*SELECTED[5], 2)],
)
def test_no_matrix_of_the_collection_vanishes(collection, text, filters, ran, skipped, jobs):
    table = quiet(["gen:gauss:n=1", {"text": text, **filters}], ["fp32", "fp64"], jobs=jobs)
    found = [row["matrix"].rpartition("/")[2] for row in table.ran[2:]]
    assert found == [name for name in ran for _ in range(2)]
    left = {row["matrix"]: row["reason"] for row in table.rows if row["status"] == "SKIPPED"}
    assert left.keys() == skipped.keys()
    assert all(skipped[name] in reason for name, reason in left.items())


def test_other_filters_are_asked_again_when_a_study_is_resumed(collection, tmp_path):
    path = tmp_path / "runs.jsonl"
    entry = {"suitesparse": "HB/*"}
    first = quiet(entry | {"kappa": "1:1e3"}, "fp64", path=path)
    assert [row["status"] for row in first.rows] == ["CONVERGED", "SKIPPED", "CONVERGED"]
    again = quiet(entry | {"kappa": "1:1e12"}, "fp64", path=path, resume=True)
    assert [row["status"] for row in again.rows] == ["CONVERGED"] * 3


def test_matrices_that_are_left_out_by_the_list_do_not_change_the_study(collection):
    entry = {"suitesparse": "HB/*", "max_n": 5}
    first = quiet(entry, "fp64").rows[0]["study"]
    (collection / "large.mtx").unlink()
    assert quiet(entry, "fp64").rows[0]["study"] == first


@pytest.mark.parametrize(
    "text, told",
    [
        ("ss:absent", "no matrix absent in"),
        ("ss:a/b/c", "'a/b/c' is not the name of a matrix"),
        (
            "ss:XX/*",
            "no matrix of the collection is 'XX/\\*'; a local folder has the groups .* in index.csv",
        ),
        ("ss:absent*", "no matrix of the collection is 'absent\\*'$"),
        ({"suitesparse": "*", "group": "XX"}, "no matrix of the group XX of the collection"),
        ("absent.mtx", "there is no file absent.mtx"),
        ("absent*.mtx", "there is no file absent\\*.mtx"),
    ],
)
def test_a_name_that_no_matrix_has_is_refused_before_the_first_run(collection, text, told):
    path = collection / "runs.jsonl"
    with pytest.raises(tcsolve.InputError, match=told):
        quiet(["gen:gauss:n=4", text], "fp16", path=path)
    assert not path.exists()


@pytest.mark.parametrize(
    "arguments, told",
    [
        (dict(matrices=[], plans="fp16"), "no matrices are given"),
        (dict(matrices={}, plans="fp16"), "no matrices are given"),
        (dict(matrices="gen:gauss:n=4"), "no plans are given"),
        (dict(matrices="gen:gauss:n=4", plans="fp8"), "update is 'fp8', needs one of"),
        (dict(matrices="gen:gauss:n=4", plans=[3]), "the plan is 3; it must be a name"),
        (dict(matrices="gen:gauss:n=4", plans={"speed": 3}), "a plan has no speed; it has update"),
        (dict(matrices="gen:gauss:n=4", plans={"residual": "fp32"}), "residual is 'fp32', needs"),
        (dict(matrices="gen:gauss:n=4", plans={"update": ["fp8"]}), "update is 'fp8'"),
        (dict(matrices="gen:gauss", plans="fp16"), "needs its order"),
        (dict(matrices="gen:gauss:n", plans="fp16"), "write key=value"),
        (dict(matrices="gen:gaus:n=4", plans="fp16"), "did you mean gauss"),
        (dict(matrices="gen:svd_geo:n=9:cond=abc", plans="fp16"), "cond is 'abc', needs a finite"),
        (dict(matrices="gen:svd_geo:n=9:cond=nan", plans="fp16"), "cond is nan, needs a finite"),
        (dict(matrices="gen:svd_geo:n=9:cond=0.5", plans="fp16"), "cond is 0.5; it must be"),
        (dict(matrices="gen:svd_geo:n=9:orthogonal=x", plans="fp16"), "orthogonal is 'x'; it must"),
        (dict(matrices="gen:gauss:n=9:dtype=float33", plans="fp16"), "data type 'float33' not"),
        (dict(matrices="gen:gauss:n=9:nrhs=abc", plans="fp16"), "nrhs is 'abc', needs a positive"),
        (
            dict(matrices="gen:gauss:n=9:cond=3", plans="fp16"),
            "gen:gauss has no option cond; it has",
        ),
        (dict(matrices="gen:*:n=9:speed=3", plans="fp16"), "has no option speed; it has n"),
        (dict(matrices="gen:gauss:n=9:seed=3", plans="fp16"), "seed is set once for the whole"),
        (dict(matrices="gen:gauss:n=9:n=3", plans="fp16"), "has n twice"),
        (dict(matrices="gen:gauss:file=3", plans="fp16"), "has file=, which is not an option"),
        (dict(matrices="gen:gauss:n=9:min_n=x", plans="fp16"), "min_n is 'x', needs a positive"),
        (dict(matrices="gen:gauss:n=9:kappa=nan:", plans="fp16"), "write key=value"),
        *[
            (
                dict(matrices=f"gen:gauss:n={n}", plans="fp16"),
                f"n is {told}, needs an integer from 1",
            )
            for n, told in {
                **{"0": "0", "-3": "-3", "1e99": r"1e\+99", "": "''", "abc": "'abc'"},
                **{"2.5": "2.5", "nan": "nan", "inf": "inf", "9" * 30: "9" * 30},
            }.items()
        ],
        (dict(matrices={"generate": "gauss", "n": []}, plans="fp16"), "n is an empty list"),
        (dict(matrices={"generate": "gauss", "n": True}, plans="fp16"), "n is True, needs an int"),
        (dict(matrices={"generate": 3, "n": 9}, plans="fp16"), "'generate' is 3; it needs a name"),
        (dict(matrices={"file": "x", "kappa": "nan:9"}, plans="fp16"), "smaller number first"),
        (dict(matrices={"file": "x", "kappa": 3}, plans="fp16"), "kappa is 3; write it as"),
        (dict(matrices="ss:", plans="fp16"), "'suitesparse' is ''; it needs a name"),
        (dict(matrices=[3], plans="fp16"), "the matrix is 3; it must be a name"),
        (dict(matrices=3, plans="fp16"), "the matrix is 3; it must be a name"),
        (
            dict(matrices=[{"mine": np.eye(2)}], plans="fp16"),
            "the keys 'mine' need exactly one of generate, .*a dict of arrays must be the whole argument",
        ),
        (dict(matrices="gen:gauss:n=4", plans={"precision": []}), "precision is an empty list"),
        (dict(matrices="gen:gauss:n=4", plans={"precision": "fp16", "update": "fp32"}), "the same"),
        (dict(matrices="gen:gauss:n=4", plans={"": 3}), "a plan has no ''; it has"),
        (dict(matrices={"generate": "gauss", "file": "x"}, plans="fp16"), "exactly one of"),
        (dict(matrices={"file": "x", "n": 3}, plans="fp16"), "the file x takes no n"),
        (dict(matrices={"file": "x", "kind": "odd"}, plans="fp16"), "kind is 'odd'"),
        (dict(matrices={"file": "x", "kappa": "1e3"}, plans="fp16"), "kappa is '1e3'"),
        (dict(matrices={"mine": np.ones(3)}, plans="fp16"), r"mine has shape \(3,\)"),
        (dict(matrices="gen:gauss:n=4", plans="fp16", rhs="twos"), "rhs is 'twos'"),
        (dict(matrices="gen:gauss:n=4", plans="fp16", device="tpu"), "device is 'tpu'"),
        (dict(matrices="gen:gauss:n=4", plans="fp16", seed=-1), "seed is -1"),
        (dict(matrices="gen:gauss:n=4", plans="fp16", jobs=0), "jobs is 0"),
        (dict(matrices="gen:gauss:n=4", plans="fp16", resume=True), "needs path="),
        (dict(matrices="gen:gauss:n=4", plans="fp16", path="no/where.jsonl"), "no folder no"),
        (dict(matrices="absent.toml"), "absent.toml cannot be read"),
    ],
)
def test_what_cannot_be_studied_is_refused_before_the_first_run(arguments, told):
    with pytest.raises(ValueError, match=told):
        quiet(**arguments)


# ---- the file of rows


def test_rows_are_kept_and_resuming_repeats_none(tmp_path):
    path = tmp_path / "runs.jsonl"
    table = quiet(FEW, PLANS, path=path, history=True)
    text = path.read_text()
    assert StudyTable.read(path).rows == table.rows
    packed = tmp_path / "runs.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert StudyTable.read(packed).rows == table.rows
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(tcsolve.InputError, match=r"runs.jsonl.gz cannot be read"):
        StudyTable.read(packed)
    again = quiet(FEW, PLANS, path=path, history=True, resume=True)
    assert path.read_text() == text and len(again) == len(table) == 8

    more = quiet([FEW, "gen:gauss:n=20"], PLANS, path=path, resume=True)

    assert path.read_text().startswith(text) and len(more) == 12
    assert len({row["study"] for row in more.rows}) == 2
    with pytest.raises(ValueError, match="is not empty; resume its study"):
        quiet(FEW, PLANS, path=path)


@pytest.mark.parametrize(
    "asked, made_again",
    [({"history": True}, 4), ({"energy": True}, 4), ({"spectrum": 10}, 2), ({"spectrum": 9}, 0)],
)
def test_rows_that_lack_what_is_asked_for_are_made_again(tmp_path, asked, made_again):
    path, (name,) = tmp_path / "runs.jsonl", asked
    given = ["gen:gauss:n=10,20", "gen:nan_entry:n=8", "gen:zero_column_first:n=5"]
    how = {"plans": ["fp32", "fp64"], "path": path, "resume": True, "device": "cpu"}
    first, text = quiet(given, **how), path.read_text()

    again = quiet(given, **how, **asked)

    assert [name in row for row in again.rows].count(True) == made_again
    assert [row["key"] for row in again.rows] == [row["key"] for row in first.rows]
    # The file keeps both rows of a run, and the later one is read.
    assert path.read_text().startswith(text) and lines(path) == len(first) + made_again
    assert StudyTable.read(path).rows == again.rows
    for options in (
        asked,
        {},
    ):  # no run is done twice, and what a row has more than is asked is kept
        assert quiet(given, **how, **options).rows == again.rows
    assert lines(path) == len(first) + made_again


def test_another_seed_or_right_side_is_another_run(tmp_path):
    path = tmp_path / "runs.jsonl"
    for options in ({}, {"seed": 1}, {"rhs": "random"}, {"device": "cpu"}):
        quiet("gen:gauss:n=10", "fp32", path=path, resume=True, **options)
    assert len(path.read_text().splitlines()) == 4


def test_a_torn_last_line_is_done_again_wherever_it_is_torn(tmp_path):
    path = tmp_path / "runs.jsonl"
    quiet("gen:gauss:n=5,6", "fp64", path=path)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    rng = random.Random(0)
    for end in [first, first + 1, len(whole) - 1, *rng.sample(range(first, len(whole)), 20)]:
        path.write_bytes(whole[:end])
        assert len(StudyTable.read(path)) == 1
        assert len(quiet("gen:gauss:n=5,6", "fp64", path=path, resume=True)) == 2
        assert path.read_bytes()[:first] == whole[:first]
        assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [5, 6]


@pytest.mark.parametrize(
    "line",
    [b"{}\n", b"[1]\n", b"\n", b"not json\n", b'{"key": 1}x\n', b'{"key": [1]}\n', b"\xff\n"],
)
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, line):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(line)
    with pytest.raises(ValueError, match=r"line 1 of .*runs\.jsonl is not a row of a study"):
        quiet("gen:gauss:n=5", "fp64", path=path, resume=True)
    assert path.read_bytes() == line


def test_two_studies_do_not_write_to_one_file(tmp_path):
    import_or_skip("fcntl")  # files are locked where Python has it
    from tcsolve._study.journal import Journal

    with Journal.of(tmp_path / "runs.jsonl", resume=False):
        with pytest.raises(ValueError, match="another process writes"):
            quiet("gen:gauss:n=5", "fp64", path=tmp_path / "runs.jsonl", resume=True)


KILLS = 50


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks the process that is killed")
def test_a_study_survives_being_killed_at_any_instant(tmp_path, monkeypatch):
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # a process that is killed leaves its folder
    path = tmp_path / "runs.jsonl"
    given = f"gen:gauss:n={','.join(map(str, range(4, 68)))}", ["fp16", "bf16", "fp32", "fp64"]
    rng, kept = random.Random(1), []
    for _ in range(KILLS):
        child = os.fork()
        if child == 0:
            quiet(*given, path=path, resume=True)
            os._exit(0)
        goal, deadline = len(kept) + rng.randrange(3), time.monotonic() + 20
        while lines(path) < goal and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        rows = [row["key"] for row in StudyTable.read(path).rows] if path.exists() else []
        assert rows[: len(kept)] == kept  # no finished row is lost
        kept = rows
    assert 0 < len(kept) < 64 * 4, "the kills must come in the middle"

    table = quiet(*given, path=path, resume=True)

    keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
    assert len(keys) == len(set(keys)) == len(table) == 64 * 4  # no run was done twice
    assert keys[: len(kept)] == kept


# ---- processes


def test_processes_give_the_rows_of_one_process():
    given = [FEW, "gen:zero_column_first:n=10", "gen:gauss:n=30"], PLANS
    assert without_times(quiet(*given, jobs=3).rows) == without_times(quiet(*given).rows)


def test_processes_take_arrays_and_share_the_plans_of_one_matrix():
    a = matrices.generate("gauss", 30).a
    table = quiet({"mine": a}, PLANS, jobs=2)
    assert [row["plan"] for row in table.rows] == [
        f"{update} {method} block=16" for update in ("fp16", "fp32") for method in ("ir", "fgmres")
    ]
    assert {row["matrix"] for row in table.ran} == {"mine"}


def test_energy_is_refused_for_several_processes():
    with pytest.raises(tcsolve.InputError, match="energy=True needs jobs=1, got 2"):
        quiet("gen:gauss:n=20", "fp32", energy=True, jobs=2)


def test_plans_that_only_refine_differently_share_factors_and_keep_their_answers():
    plans = [
        {"precision": ["fp16", "fp32"], "method": ["ir", "fgmres", "gmres"]},
        {"precision": "fp32", "method": "cg"},
        {"precision": "fp32", "method": "fgmres", "inner_tol": 1e-2},
    ]
    rows = quiet("gen:spd_geo:n=150:cond=1e5", plans, history=True).rows
    alone = [quiet("gen:spd_geo:n=150:cond=1e5", [p], history=True).rows for p in plans[1:]]

    assert [row["method"] for row in rows] == [*METHODS, *METHODS, "cg", "fgmres"]
    seconds = [row["factor_seconds"] for row in rows]
    assert seconds[0] == seconds[1] == seconds[2] and seconds[3] == seconds[4] == seconds[5]
    assert len(set(seconds)) == 4
    for row, (own,) in zip(rows[-2:], alone, strict=True):
        same = ("status", "steps", "backward_error", "growth", "rcond", "model", "history")
        assert [row[name] for name in same] == [own[name] for name in same]
    kinds = {row["model"] for row in rows[3:]}
    assert len(kinds) == 2 and any("Cholesky" in kind for kind in kinds)


@pytest.fixture
def deadly(tmp_path, monkeypatch):
    """A module on the path of the workers that ends them for one matrix and plan, or makes them slow."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'tcsolve._study.worker' in ' '.join(sys.orig_argv):\n"
        "    from tcsolve._study import rows\n"
        "    run = rows.run_plan\n"
        "    def run_plan(problem, plan, *args, **options):\n"
        "        if problem.n == 13 and plan.update == 'bf16':\n"
        "            print('the end is near', file=sys.stderr, flush=True)\n"
        "            os.kill(os.getpid(), 9) if os.environ['DEADLY'] == 'kill' else time.sleep(60)\n"
        "        return run(problem, plan, *args, **options)\n"
        "    rows.run_plan = run_plan\n"
        "    facts = rows.facts_of\n"
        "    if os.environ['DEADLY'] == 'facts':\n"
        "        rows.facts_of = lambda problem: time.sleep(3) or facts(problem)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return monkeypatch


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    "how, told", [("kill", "signal 9: the end is near"), ("sleep", "more than 3 s")]
)
def test_a_process_that_dies_or_hangs_loses_one_run(deadly, how, told):
    deadly.setenv("DEADLY", how)
    limit = 3.0 if how == "sleep" else np.inf

    table = quiet("gen:gauss:n=12,13,14", ["fp16", "bf16", "fp32"], jobs=2, limit_seconds=limit)

    bad = [row for row in table.rows if row["status"] == "CRASHED"]
    assert [(row["matrix"], row["plan"]) for row in bad] == [("gauss n=13", "bf16")]
    assert told in bad[0]["reason"]
    assert [row["status"] for row in table.rows].count("CONVERGED") == 8
    assert table.summary()[1]["crashed"] == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_facts_of_a_matrix_are_no_part_of_its_first_run(deadly):
    deadly.setenv("DEADLY", "facts")

    table = quiet("gen:gauss:n=12", ["fp16", "bf16"], limit_seconds=1.5)

    assert [row["status"] for row in table.rows] == ["CONVERGED"] * 2


@pytest.mark.parametrize("shape", [(4,), (1, 2, 2), (), (1, 4)])
def test_an_array_of_another_shape_has_a_row_with_the_reason(tmp_path, shape):
    path, bad = tmp_path / "runs.jsonl", np.ones(shape)
    # `same` has the bytes of `bad`, as far as there are any.
    arrays = {"bad": bad, "good": np.eye(3), "same": np.ones((2, 2)) if bad.size == 4 else [[1.0]]}

    table = quiet(arrays, "fp32", path=path)

    found = {row["matrix"]: (row["status"], row.get("reason", "")) for row in table.rows}
    assert found["good"] == ("CONVERGED", "") and found["bad"][0] == "SKIPPED"
    told = "1 by 4" if shape == (1, 4) else f"shape {shape}; a linear system needs shape (n, n)"
    assert told in found["bad"][1] and told not in found["same"][1]
    # The same bytes in another shape are another matrix.
    again = quiet({"bad": np.ones((2, 2)) + np.eye(2), "good": np.eye(3)}, "fp32")
    assert [row["status"] for row in again.rows] == ["CONVERGED"] * 2


def test_an_array_that_is_mended_is_run_when_the_study_is_resumed(tmp_path):
    path, a = tmp_path / "runs.jsonl", np.array([2.0, 0, 0, 3])
    for wrong, reason in ((a, "it has shape (4,)"), (a.reshape(1, 4), "it is 1 by 4")):
        skipped = quiet({"a": wrong, "b": [[1.0]]}, "fp32", path=path, resume=True).rows[0]
        assert skipped["status"] == "SKIPPED" and reason in skipped["reason"]
    (row,) = quiet({"a": a.reshape(2, 2)}, "fp32", path=path, resume=True).rows
    assert row["status"] == "CONVERGED"


def test_arrays_may_have_any_name():
    table = quiet({"array": np.eye(3), "file": [[2.0, 0], [0, 3]]}, "fp32")
    assert [(row["matrix"], row["n"]) for row in table.rows] == [("array", 3), ("file", 2)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the test looks for processes in /proc")
def test_processes_end_with_the_study_that_is_killed(tmp_path):
    matrices = "gen:gauss:n=" + ",".join(map(str, range(200, 400)))
    command = [sys.executable, "-P", "-m", "tcsolve", "study", matrices]
    command += ["--precision", "fp16", "--jobs", "2", "-o", str(tmp_path / "runs.jsonl")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(workers := children(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(workers) == 2
    process.kill()
    process.wait()
    while any(is_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in workers)


def children(pid):
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- study files


STUDY = """
title = "fp16 on easy and hard matrices"
seed = 3
rhs = "random"
device = "cpu"
history = true

[[matrices]]
generate = "svd_geo"
n = [20, 30]
cond = 1e3

[[matrices]]
file = "data/*.mtx"
max_n = 5

[[plans]]
precision = ["fp16", "fp32"]
method = "fgmres"
"""


def test_a_study_file_makes_a_study_that_can_be_repeated(tmp_path, monkeypatch):
    for place in ("here", "there"):
        (tmp_path / place / "data").mkdir(parents=True)
        write(
            tmp_path / place / "data" / "one.mtx", f"{HEADER} real general\n2 2 2\n1 1 1\n2 2 2\n"
        )
        (tmp_path / place / "study.toml").write_text(STUDY)
    first = quiet(tmp_path / "here" / "study.toml")
    monkeypatch.chdir(tmp_path / "there")
    second = quiet("study.toml")

    assert without_times(first.rows) == without_times(second.rows)
    assert len(first) == 6 and len({row["study"] for row in first.rows}) == 1
    row = first.rows[0]
    assert (row["seed"], row["rhs"], row["method"]) == (3, "random", "fgmres") and row["history"]
    Path("study.toml").write_text(STUDY.replace("1e3", "1e4"))
    assert quiet("study.toml").rows[0]["study"] != row["study"]


@pytest.mark.parametrize(
    "text, told",
    [
        ("x = ", "is not a TOML file"),
        ("speed = 1", "has speed; it may have matrices, plans"),
        ("plans = ['fp16']", "needs a list of matrices"),
        ("matrices = ['gen:gauss:n=4']", "needs a list of plans"),
        ("matrices = ['gen:gauss:n=4']\nplans = ['fp16']\nrhs = 3", "rhs is 3"),
    ],
)
def test_a_study_file_that_is_wrong_is_refused(tmp_path, text, told):
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(ValueError, match=told):
        quiet(tmp_path / "study.toml")


@pytest.mark.parametrize("data", [b"# r\xe9sum\xe9\n", b"\xff\xfem\x00", b"title = '\x80'\n"])
def test_a_study_file_in_another_encoding_is_refused(tmp_path, capsys, data):
    path = tmp_path / "study.toml"
    path.write_bytes(data)
    with pytest.raises(tcsolve.InputError, match="is not a TOML file"):
        quiet(path)
    assert cli.main(["study", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_study_file_with_an_empty_plan_runs_the_usual_one(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text("matrices = ['gen:gauss:n=8']\n[[plans]]\n")
    assert [row["plan"] for row in quiet(path).rows] == [Plan().update] == ["fp16x3"]


def test_the_plans_of_a_study_file_are_not_given_twice(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    with pytest.raises(ValueError, match="has the plans"):
        quiet(tmp_path / "study.toml", "fp16")


# ---- plans


def test_a_plan_of_the_caller_is_taken_as_it_is():
    (row,) = quiet("gen:gauss:n=10", Plan("fp16", max_steps=7)).rows
    assert row["fallback"] is True and row["max_steps"] == 7


def test_fields_of_a_plan_can_be_swept():
    grid = {"precision": "fp16", "scale": [True, False], "basis": [5, 9], "contraction": 0.9}
    rows = quiet("gen:gauss:n=10", grid).rows
    assert {(row["scale"], row["basis"]) for row in rows} == {
        (scale, basis) for scale in (True, False) for basis in (5, 9)
    }
    assert {row["contraction"] for row in rows} == {0.9} and math.isfinite(rows[0]["growth"])


def test_settings_that_do_not_change_a_run_do_not_change_its_key():
    from tcsolve._study.spec import Spec

    usual = dict(device="cpu", seed=0, rhs="ones", history=False, spectrum=0, energy=False)
    one, other = (
        Spec.of(["gen:gauss:n=5"], ["fp32"], **usual | {"history": history})
        for history in (True, False)
    )
    assert isinstance(one.settings, Settings)
    rows = [next(rows_of(s.cases[0], s.plans, s.settings)) for s in (one, other)]
    assert rows[0]["key"] == rows[1]["key"] and rows[0]["study"] == rows[1]["study"]


def test_the_precision_of_the_residuals_can_be_swept():
    grid = {"precision": "fp16x3", "residual": ["fp64", "double-double"], "block": 16}
    rows = quiet("gen:svd_geo:n=60:cond=1e5", grid, rhs="random").rows
    assert [row["residual"] for row in rows] == ["fp64", "double-double"]
    assert rows[1]["plan"] == f"{rows[0]['plan']} residual=double-double"
    assert rows[0]["key"] != rows[1]["key"] and rows[1]["converged"]


@pytest.mark.parametrize(
    "update, told",
    [
        ("fp16@h200", "sums of the tensor cores of h200; panels"),
        ("fp16@v100", "sums of the tensor cores of v100, from the literature; panels"),
        ("bf16@a100", "sums of the tensor cores of a100, from the literature; panels"),
        ("bf16@each", "every operation"),
    ],
)
def test_models_of_the_arithmetic_are_told_in_the_row(update, told):
    (row,) = quiet("gen:svd_geo:n=40:cond=10", {"precision": update, "block": 16}).rows
    assert row["converged"] and told in row["model"] and row["panels"] == 3


def test_a_row_of_a_gpu_names_its_own_sums():
    how = SimpleNamespace(
        native=False, name="fp16", products=1, format=SimpleNamespace(name="fp16")
    )
    for device, sums in (("cpu", "FP32 sums"), ("cuda", "sums of the GPU")):
        found = model_of_updates(how, 4, device)
        assert found["panels"] == 4 and f"operands, {sums}; panels in FP32" in found["model"]
