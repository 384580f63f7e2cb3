"""Our counts compared with published ones: the verdicts, and the factors and the counts of the papers."""

import json

import numpy as np
import pytest
from folders import BENCHMARKS

import tcsolve
from tcsolve import matrices
from tcsolve._study.cases import expand_cases
from tcsolve._study.plans import expand_plans
from tcsolve._study.spec import read_study_file


@pytest.fixture
def published(script):
    return script("published")


def test_fp16_cholesky_factors_are_as_exact_as_fp16(script):
    module = script("_fp16_cholesky")
    rng = np.random.default_rng(0)
    g = rng.standard_normal((40, 40))
    a = (g @ g.T / 40 + np.eye(40)).astype(np.float16)

    r = module.cholesky(a)

    assert r.dtype == np.float16 and not np.tril(r, -1).any()
    r = r.astype(float)
    assert 0 < np.abs(r.T @ r - a.astype(float)).max() <= 41 * 2.0**-11 * np.abs(a).max()
    assert module.cholesky(np.diag(np.float16([1, -1, 1]))) is None
    assert module.cholesky(np.float16([[1, 300], [300, 6e4]])) is None


def test_a_badly_scaled_definite_matrix_is_inverted_in_fp16(script):
    module = script("_fp16_cholesky")
    d = np.logspace(-8, 8, 30)
    a = (np.eye(30) + 0.01) * d[:, None] * d
    made = module.factor(a)
    assert made.shift == 2
    # A^-1 = D^-1 M^-1 D^-1, so the error of entry (i, j) grows with d_j / d_i.
    assert (np.abs(made.correct(a) - np.eye(30)) * d[:, None] / d).max() < 1e-2
    with pytest.raises(module.Breakdown, match="no shift"):
        module.factor(np.ones((30, 30)) - 0.9 * np.diag(np.arange(30) % 2) + np.diag(np.zeros(30)))


def test_without_scaling_the_factors_are_those_of_a_shifted_matrix(script):
    module = script("_fp16_cholesky")
    a = np.diag([1e8, 1e4, 1.0])
    made = module.factor_unscaled(a)
    # The smallest entry is far below the shift.
    shift = made.shift * 2.0**-11 * 1e8
    assert made.correct(np.eye(3)).diagonal() == pytest.approx(1 / (a.diagonal() + shift), rel=2e-3)
    assert made.correct(np.eye(3))[2, 2] < 0.01 * module.factor(a).correct(np.eye(3))[2, 2]


def test_the_first_x_has_the_precision_of_the_factors(script):
    module, x = script("_fp16_cholesky"), np.linspace(1, 2, 30)
    a = np.eye(30) + 0.01
    half, single = (made(a).start(a @ x) for made in (module.factor, module.factor_single))
    assert (half == half.astype(np.float16)).all() and np.abs(half - x).max() < 0.01
    assert (single == single.astype(np.float32)).all() and np.abs(single - x).max() < 1e-6
    with pytest.raises(module.Breakdown, match="not definite in FP32"):
        module.factor_single(np.ones((30, 30)) - 0.5 * np.eye(30))


def test_the_matrix_of_trefethen_has_the_condition_of_the_paper(published):
    a = published.trefethen(300)
    assert a[0, :5].tolist() == [2, 1, 1, 0, 1] and a[299, 299] == 1987
    assert np.linalg.cond(a) == pytest.approx(1.77e3, rel=0.01)


@pytest.fixture
def badly_scaled():
    rng = np.random.default_rng(0)
    rows, columns = (10.0 ** rng.uniform(-3, 3, 40) for _ in range(2))
    return matrices.generate("svd_geo", 40, cond=1e2).a * rows[:, None] * columns


def test_the_scalings_do_what_the_paper_says(script, badly_scaled):
    a, scaled = badly_scaled, script("_fp16_scaling").scaled
    clamped, one = scaled(a, "clamped").w, scaled(1e4 * a, "one factor")
    small = np.abs(a) < 6550.4
    assert (clamped[small] == a[small]).all() and not small.all()
    assert clamped[~small] == pytest.approx(6550.4 * np.sign(a[~small]))
    assert np.abs(one.w).max() == pytest.approx(6550.4) and one.mu < 1
    assert scaled(a / np.abs(a).max(), "one factor").mu == 1
    for name in ("two-sided", "symmetric"):
        w, row, col, mu = scaled(a, name)
        assert w == pytest.approx(mu * row[:, None] * a * col) and w.max() == pytest.approx(6550.4)
        assert np.abs(w).max(axis=0) == pytest.approx(mu, rel=0.02)
    symmetric = scaled(a + a.T, "symmetric")
    assert symmetric.row == pytest.approx(symmetric.col)


@pytest.mark.parametrize("name", ["clamped", "one factor", "two-sided", "symmetric"])
def test_all_factors_are_as_exact_as_fp16(script, name, badly_scaled):
    module, b = script("_fp16_scaling"), np.linspace(1, 2, 40)
    a = badly_scaled if name in ("two-sided", "symmetric") else np.eye(40) + 0.01
    correct, start = module.rounded_once(a, name)
    x = np.linalg.solve(a, b)
    found = [correct(b), start(b)]
    for update in ("fp16@each", "fp16"):
        found.append(module.factors(a, name, update, 8)(b[:, None])[:, 0])
    most = 0.2 if a is badly_scaled else 1e-2
    for y in found:
        assert 0 < np.abs(y - x).max() < most * np.abs(x).max()


def test_without_a_pivot_there_are_no_factors(script):
    module, a = script("_fp16_scaling"), np.diag([1e9, 1.0, 1e-9])
    assert module.rounded_once(a, "one factor") is None
    assert module.rounded_once(a, "two-sided") is not None
    assert module.factors(np.zeros((3, 3)), "one factor", "fp16@each", 8) is None


@pytest.mark.parametrize("method", ["GMRES", "CG"])
def test_the_steps_of_all_cycles_are_counted(script, method):
    module, a = script("_counted_refinement"), np.diag([1.0, 1, 2, 2, 3, 3])
    nothing = lambda b: b  # noqa: E731
    how = {"method": method, "tol": 1e-8}
    assert set(module.counts(a, (nothing, np.zeros_like), bound=1e-7, **how)) == {3}
    exact = (lambda b: b / a.diagonal(),) * 2
    assert set(module.counts(a, exact, bound=1e-14, **how)) == {0}
    coarse = (lambda b: b / a.diagonal() / 1.01,) * 2
    assert set(module.counts(a, coarse, bound=1e-14, **how)) == {1}
    # Nine cycles that halve the residual are not enough.
    a, how = np.diag(np.logspace(0, 6, 30)), how | {"tol": 0.5}
    assert set(module.counts(a, (nothing, np.zeros_like), bound=1e-15, **how)) == {None}


def test_no_convergence_is_the_largest_count(script):
    module = script("_counted_refinement")
    assert module.middle([3, None, 2]) == 3 and module.middle([None, 4, None]) is None
    assert module.middle([7, 5]) == 6 and module.middle([4, 3, 9, 1]) == 3.5
    assert module.middle([7, None]) is None and module.middle([7, 7, 3, None]) == 7
    assert module.spread([3, None, 2]) == (2, None)


def test_ours_counts_the_steps_of_refine(script):
    module = script("_counted_refinement")
    a = np.diag([1.0, 1, 2, 2, 3, 3])
    assert module.our_steps(a, np.ones(6), lambda b: b, "fgmres") == 2
    assert module.our_steps(a, np.ones(6), lambda b: b / 1.5, "cg") == 3
    assert module.our_steps(a, np.ones(6), None, "cg") is None


def test_a_count_is_explained_only_by_a_run(published):
    def verdict(theirs, each, count, once):
        row = {"theirs": theirs, "every operation": each, "as they count": count}
        return published.verdict_scaling(row | {"rounded once": once})

    assert verdict(6, 5, [30], [30]) == published.AGREE
    assert verdict(6, 30, [6, 6, 30], [30]).startswith("with random b")
    assert verdict(6, 30, [30], [6]).startswith("with factors that are rounded once")
    assert verdict(17, 30, [17, 30, 30], [11, 11, 17]).startswith("the count depends on b")
    assert verdict(6, 30, [30], [20, 40]) == published.UNEXPLAINED
    assert verdict(None, 30, [30], [20, None, 20]).startswith("the count depends on b")
    assert verdict(6, 2, [2], [2]) == published.UNEXPLAINED


def test_a_count_of_the_bf16_table_is_explained_only_by_a_run(published):
    kappas = {"kappa": 3.0, "theirs kappa": 3.1, "kappa scaled": 2.0, "theirs scaled": 2.0}

    def verdict(theirs, ours, count, plain, zeros=0):
        row = kappas | {"theirs": theirs, "as they count": count, "multiplier 1": plain}
        row |= {
            "method": "ir",
            "n": 9,
            "every operation": ours,
            "tensor cores": -1,
            "zero pivots": zeros,
        }
        large = row | {"n": 9000, "every operation": None, "tensor cores": ours}
        found = published.verdict_bf16(row)
        assert found == published.verdict_bf16(large)  # there is no count of every operation
        return found

    assert verdict(26, 28, [50], [50]) == published.AGREE
    assert verdict(83, 105, [86, 88, 150], [150]).endswith("their bounds the count agrees")
    assert verdict(70, None, [63, 67, 62], [63], 16).endswith(
        "if 16 zero pivots of the factors are replaced"
    )
    assert verdict(114, 18, [26], [115, 115, 30]).startswith(
        "counted as they do, but with the multiplier 1"
    )
    assert verdict(31, 68, [85], [89]) == published.UNEXPLAINED
    assert verdict(None, None, [50], [50]) == published.AGREE
    assert verdict(None, 50, [None], [None]).startswith("with their factors")
    assert verdict(20, None, [None], [None]) == published.UNEXPLAINED
    known = {"theirs": 28, "as they count": [27], "multiplier 1": [30], "n": 9, "zero pivots": 0}
    row = kappas | known | {"method": "BBS", "every operation": 28, "tensor cores": None}
    assert published.verdict_bf16(row).startswith("with their factors")  # tcsolve has no BF16 GMRES
    other = row | {"as they count": [90], "multiplier 1": [90]}
    assert published.verdict_bf16(other) == published.UNEXPLAINED
    for key, kappa in (("kappa", 3e2), ("kappa scaled", 0.5)):
        assert "is of another one" in published.verdict_bf16(other | {key: kappa})


def test_the_table_of_bf16_factors_is_made(published, monkeypatch, tmp_path):
    made = type(published.BF16[0])("made", 1e2, 2e2, *[9] * 7)
    monkeypatch.setattr(published, "BF16", (made, made._replace(matrix="absent")))
    problem = matrices.generate("svd_geo", 40, cond=1e2)
    monkeypatch.setattr(published.matrices, "load", lambda name: problem)
    monkeypatch.setattr(published.matrices, "names", lambda: ("made", "another"))

    def runs_of(given, plan, **options):
        assert len(given) == 1  # a matrix that is not in the folder is left out
        run = {"n": 40, "steps": 7, "converged": plan["precision"] == "bf16"}
        return {"made": {f"{plan['precision']} {method}": run for method in plan["method"]}}

    monkeypatch.setattr(published, "runs_of", runs_of)
    path = tmp_path / "bf16.json"
    monkeypatch.setattr("sys.argv", ["published", "bf16", "--json", str(path), "--commit", "c"])
    assert published.main() == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["method"] for row in rows] == ["ir", "BBS", "BBD", "BSS", "BSD", "BDD", "BDQ"]
    for row in rows:
        ours = 8 if row["method"] in ("ir", "BDD") else None
        assert (row["tensor cores"], row["every operation"]) == (ours, None)
        assert row["zero pivots"] == 0 and 50 < row["kappa scaled"] < 500
        assert row["kappa"] == pytest.approx(1e2) and row["theirs scaled"] == 2e2
    best, plain = rows[5]["as they count"], rows[5]["multiplier 1"]
    assert all(3 <= u <= v for u, v in zip(best, plain, strict=True))
    assert (
        "In the column 'as they count' the median agrees with their count in"
        in path.with_suffix(".md").read_text()
    )


def test_a_count_of_the_definite_table_is_explained_only_by_a_run(published):
    def verdict(theirs, ours, count):
        return published.verdict_spd({"theirs": theirs, "ours": ours, "as they count": count})

    assert verdict(6, 5, [30]) == published.AGREE
    assert verdict(18, 12, [18]).startswith("with their cycles")
    assert verdict(26, 12, [26, 40, 40]).startswith("the count depends on b")
    assert verdict(26, 12, [40]) == published.UNEXPLAINED


@pytest.mark.parametrize(
    "ours, theirs, agree",
    [
        (None, None, True),
        (3, None, False),
        (None, 3, False),
        (5, 3, True),
        (6, 3, False),
        (80, 100, True),
    ],
)
def test_counts_agree_within_two_steps_or_a_fifth(published, ours, theirs, agree):
    assert published.close(ours, theirs) is agree


def test_a_limit_contradicts_a_theorem_only_where_it_is_smaller(published):
    def verdict(ours, method="fgmres", zero_pivot=False):
        row = {"ours": ours, "proved up to": 1e3, "with products in FP64": 100.0}
        row |= {"error": "forward", "method": method, "zero pivot": zero_pivot}
        return published.verdict_limits(row)

    assert verdict(1e3) == verdict(1e4) == published.AGREE
    assert verdict(990.0).startswith("the factors are applied in FP64")
    assert verdict(990.0, "gmres") == published.UNEXPLAINED  # GMRES applies them in double-double
    assert verdict(990.0, zero_pivot=True).startswith("the next factors have a zero pivot")
    assert verdict(1e6).startswith("the theorem gives a sufficient condition")
    assert verdict(10.0) == verdict(None) == published.UNEXPLAINED


def test_a_forward_limit_needs_accurate_answers(published):
    runs = [
        {"kappa": kappa, "converged": True, "forward_error": error, "steps": 60, "n": 100}
        | {"backward_error": 1e-17}
        for kappa, error in ((1e2, 1e-16), (1e3, 2e-16), (1e4, 3e-16))
    ]

    def row(error):
        return published.limit_row("fp16", error, "ir", (1e3, None), runs, [1e2, 1e3, 1e4])

    assert (row("forward")["ours"], row("forward")["fails at"]) == (1e3, 1e4)
    assert (row("backward")["ours"], row("backward")["fails at"]) == (1e4, None)
    assert row("forward")["in n/2 steps"] is None  # each run took 60 steps, and n / 2 is 50
    runs[1]["forward_error"] = None  # as where the exact x is not known
    assert (row("forward")["ours"], row("forward")["fails at"]) == (1e2, 1e3)
    assert row("backward")["ours"] == 1e4
    assert not row("forward")["zero pivot"]
    runs[1]["backward_error"] = float("nan")  # no x, because the factors have a zero pivot
    assert row("forward")["zero pivot"] and not row("backward")["zero pivot"]


def test_the_limits_are_measured_at_the_proved_ones_too(published, monkeypatch):
    proved, asked = published.LIMITS[0].ir, []

    def study(given, grid, seed, device):
        asked.extend(given[0]["cond"])
        runs = [
            {"update": u, "method": m, "kappa": k, "n": 100, "steps": 9, "forward_error": 0.0}
            | {"converged": k <= proved or (m != "ir" and k < 1e17), "backward_error": 1e-3}
            for u in grid["precision"]
            for m in grid["method"]
            for k in given[0]["cond"]
        ]
        return tcsolve.StudyTable(runs)

    monkeypatch.setattr(published, "study", study)
    rows = published.limits()
    assert {limit for row in published.LIMITS for limit in row[2:]} <= set(asked)
    assert [row["error"] for row in rows] == ["backward"] * 18 + ["forward"] * 18
    assert {row["factors"] for row in rows} >= {"tf32@each", "fp32"}
    left, right = (r for r in rows[:3] if r["method"] != "ir")
    assert left | {"method": ""} == right | {"method": ""}
    first = rows[0]
    assert (first["factors"], first["method"]) == ("bf16@each", "ir")
    assert first["ours"] == proved and first["fails at"] == pytest.approx(10**2.5)
    assert first["verdict"] == published.AGREE and rows[1]["fails at"] is None
    facts = {"cpu": "a CPU", "numpy": "2", "scipy": "1", "commit": "c", "date": "d"}
    text = published.page("limits", facts, rows)
    assert (
        "agree, " in text
        and "at least the proved one, and at most 10 times the proved one." in text
    )
    assert "within two steps" not in text


def test_a_page_is_judged_again_without_a_run(published, monkeypatch, tmp_path):
    path = tmp_path / "spd.json"
    facts = {"cpu": "a CPU", "numpy": "2", "scipy": "1", "commit": "c", "date": "d"}
    row = {"matrix": "one", "theirs": 32, "ours": 22, "as they count": [29, 38, 39, 43]}
    published.save(path, facts, [row | {"verdict": "an old one"}])
    monkeypatch.setattr("sys.argv", ["published", "spd", "--json", str(path), "--draw"])
    monkeypatch.setitem(published.TABLES, "spd", None)
    assert published.main() == 0
    found = json.loads(path.read_text())
    assert found["machine"] == facts
    assert found["rows"][0]["verdict"].endswith("counted as they do, theirs is within the range")
    page = path.with_suffix(".md").read_text()
    assert "| one | 32 | 22 | 38.5 (29 to 43) | the count depends on b" in page
    assert "their count in 0 rows, and their count is within the range in 1 rows" in page


def test_the_page_counts_what_no_rule_explains(published):
    facts = {"cpu": "a CPU", "numpy": "2", "scipy": "1", "commit": "c", "date": "d"}
    rows = [
        {"matrix": "one", "theirs": 3, "ours": 3, "verdict": published.AGREE},
        {"matrix": "two", "theirs": 3, "ours": None, "verdict": published.UNEXPLAINED},
        {"matrix": "three", "theirs": None, "ours": 9, "verdict": "a reason"},
    ]
    text = published.page("spd", facts, rows)
    assert "3 rows: 1 agree (within two steps or a fifth), 1 differ for the reason" in text
    assert "not explained: 1." in text and "| two | 3 | – | not explained |" in text


def test_the_range_of_several_counts_is_told(script):
    page = script("_published_page")
    cell = page.cell
    assert cell([3, 3]) == "3" and cell([2, 5, 3]) == "3 (2 to 5)"
    assert cell([2, None]) == "– (2 to –)" and cell([None]) == "–"
    rows = [{"theirs": 3, "some": [3, 9, 3]}, {"theirs": 3, "some": [9]}]
    assert page.of_medians(rows) == (
        " In the column 'some' the median agrees with their count in 1 rows, and their count is within the "
        "range in 1 rows."
    )


def test_the_table_of_scalings_is_made(published, monkeypatch, tmp_path):
    row = published.SCALING[0]._replace(matrix="made", double=(6, 5, 2, 900))
    monkeypatch.setattr(published, "FLUSHED", {"made": (0.0, 0.0)})
    monkeypatch.setattr(published, "SCALING", (row, row._replace(matrix="absent")))

    def load(name, rhs):
        if name == "absent":
            raise FileNotFoundError
        return matrices.generate("svd_geo", 40, cond=1e4, rhs=rhs)

    monkeypatch.setattr(published.matrices, "load", load)
    path = tmp_path / "scaling.json"
    monkeypatch.setattr("sys.argv", ["published", "scaling", "--json", str(path), "--commit", "c"])
    assert published.main() == 0
    *rows, lost = json.loads(path.read_text())["rows"]
    assert lost["verdict"] == published.AGREE and lost["flushed, xmax"] == 0
    four = ["clamped", "one factor", "two-sided", "symmetric"]
    assert [row["scaling"] for row in rows] == four + four[:2]
    assert [row["x"] for row in rows] == ["FP64"] * 4 + ["FP32"] * 2
    assert rows[3]["verdict"] == published.UNEXPLAINED
    assert [row["theirs kappa"] for row in rows] == [1.05e12] * 6
    assert [row["theirs scaled"] for row in rows[:4]] == [None, None, 9.59e6, 3.01e6]
    for row in rows[:4]:
        assert 2 <= row["tensor cores"] <= row["every operation"] <= 40
        assert all(2 <= count <= 60 for count in row["as they count"] + row["rounded once"])
    for double, single in zip(rows, rows[4:], strict=False):  # FP32 needs fewer steps
        assert single["every operation"] < double["every operation"]
        assert max(single["rounded once"]) < min(double["rounded once"])
    text = path.with_suffix(".md").read_text()
    assert "In the column 'rounded once' the median agrees with" in text and "\n6 rows: " in text
    assert "1 of 1 rows agree in both decimal places" in text
    assert "| made | 40 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | agree |" in text


def test_the_nonzeros_that_fp16_loses_are_counted(script, published):
    a = np.array([[1.0, 2.0**-24, 0], [2.0**-26, 1, 1], [0, 0, 4]])
    flushed = script("_fp16_scaling").flushed
    # Half of the smallest number of FP16 is rounded to zero, and the number itself is not.
    assert flushed(a, 1.0) == pytest.approx(100 / 6) and flushed(a, 65504.0) == 0
    row = {"flushed, 1": 2.851, "theirs, 1": 2.85, "flushed, xmax": 0.0, "theirs, xmax": 0.0}
    assert published.verdict_scaling(row) == published.AGREE
    assert published.verdict_scaling(row | {"flushed, xmax": 0.01}) == published.UNEXPLAINED


def test_the_table_of_definite_matrices_is_made(published, monkeypatch, tmp_path):
    row = type(published.SPD[0])("Trefethen_40", 173.0, 4, 4, 3, 3, 1, 1)
    monkeypatch.setattr(published, "SPD", (row, row._replace(matrix="absent")))
    monkeypatch.setattr(published, "SPD_UNSCALED", {"Trefethen_40": (5, 5), "absent": (1, 1)})
    path = tmp_path / "spd.json"
    monkeypatch.setattr("sys.argv", ["published", "spd", "--json", str(path), "--commit", "c"])
    assert published.main() == 0
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 8 and {row["verdict"] for row in rows} == {"agree"}
    assert [row["method"] for row in rows] == ["GMRES", "CG"] * 4
    assert [row["theirs"] for row in rows] == [*row[2:], 5, 5]
    assert all(row["shift / u"] == 2 for row in rows)
    kappa = np.linalg.cond(published.trefethen(40))
    for found in rows:
        assert found["kappa"] == pytest.approx(kappa) and found["theirs kappa"] == 173.0
    assert path.with_suffix(".md").read_text().startswith("# GMRES and CG steps with Cholesky")


def test_a_matrix_without_factors_is_not_explained(published):
    row = type(published.SPD[0])("singular", 9.0, 4, 4, 3, 3, 1, 1)
    rows = published.spd_rows(np.ones((30, 30)) - 0.5 * np.eye(30), row)
    assert len(rows) == 6 and {row["verdict"] for row in rows} == {published.UNEXPLAINED}
    assert {row["shift / u"] for row in rows} == {None}


# ---- the study of convergence


def test_the_study_of_convergence_makes_its_page(script, monkeypatch, tmp_path, matplotlib):
    from tcsolve import study

    module, tables = script("convergence"), script("_convergence_page")
    grid = {"precision": list(tables.UPDATES), "method": list(tables.ALL_METHODS), "block": 16}
    given = ["gen:svd_geo:n=300:cond=1e2,1e7", "gen:svd_geo:n=40:cond=1e1,1e5,1e12"]
    rows = tmp_path / "rows.jsonl"
    table = study(
        given, grid | {"scale": [True, False]}, path=rows, history=True, show_progress=False
    )
    text = rows.read_text().replace('"source": "generate"', '"source": "suitesparse"', 30)
    rows.write_text(text)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["convergence", "--draw", "--rows", str(rows), "--commit", "c"])

    assert module.main() == 0

    page = (tmp_path / "convergence.md").read_text()
    assert "| bf16 | ir |" in page and f"settings is {table.rows[0]['study']}." in page
    assert len(list(tmp_path.glob("convergence_*.png"))) == 5
    rows.unlink()  # the rows that are kept in the folder of the page make the same page
    assert module.main() == 0
    assert (tmp_path / "convergence.md").read_text() == page


def test_the_row_of_all_matrices_that_are_too_large_is_not_counted_as_one(script):
    rows = [{"matrix": "*", "status": "SKIPPED"}, {"matrix": "HB/a", "status": "SKIPPED"}]
    rows += [{"matrix": "HB/b", "status": "CONVERGED"}]
    assert script("_convergence_page").left_out(rows) == [rows[1]]


SMALL = """
rhs = "random"
device = "cpu"
history = true
[[matrices]]
generate = "svd_geo"
n = 300
cond = [1e2, 1e4]
[[plans]]
precision = ["fp16", "bf16", "fp16x3", "fp32"]
method = ["ir", "fgmres", "gmres"]
"""


def test_the_study_for_a_gpu_keeps_its_rows_when_the_time_is_over(
    script, monkeypatch, tmp_path, capsys, matplotlib
):
    module, rows = script("convergence"), tmp_path / "rows.jsonl"
    (tmp_path / "small.toml").write_text(SMALL)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    command = ["convergence", "--device", "cuda", "--study", str(tmp_path / "small.toml")]
    command += ["--rows", str(rows), "--commit", "c", "--jobs", "2"]
    monkeypatch.setattr("sys.argv", [*command, "--seconds", "0.01"])
    with pytest.raises(SystemExit, match="no run was finished"):
        module.main()

    monkeypatch.setattr("sys.argv", command)
    assert module.main() == 0

    page = (tmp_path / "convergence_cuda.md").read_text()
    assert "and 2 generated ones; 24 runs" in page and "Runs are CPU emulations" in page
    assert "- fp16: updates of one product of fp16 operands, FP32 sums; panels in FP32." in page
    assert "What scaling changes" not in page
    assert "no picture profile: " in capsys.readouterr().out  # no matrix of the collection
    known = rows.read_text()
    rows.write_text("".join(known.splitlines(True)[:9]))  # as after a kill
    assert module.main() == 0
    assert rows.read_text().splitlines()[:9] == known.splitlines()[:9]
    assert len(rows.read_text().splitlines()) == 24
    monkeypatch.setattr("sys.argv", [*command, "--draw", "--rows", str(tmp_path / "none.jsonl")])
    assert module.main() == 0 and (tmp_path / "convergence_cuda.md").read_text() == page


@pytest.mark.parametrize(
    "name, plans", [("convergence", 24), ("convergence_cuda", 24), ("convergence_exact", 36)]
)
def test_the_study_files_are_studies(name, plans):
    given = read_study_file(BENCHMARKS / f"{name}.toml")
    assert len(expand_plans(given["plans"])) == plans
    made = [entry for entry in given["matrices"] if "generate" in entry]
    assert len(expand_cases(made)) > 40


def test_a_matrix_whose_first_x_is_not_finite_has_no_first_step(script):
    rows = [
        {"matrix": name, "update": "fp16", "scale": True, "method": "ir", "history": points}
        for name, points in {
            "good": [["fp16", 0, 1e-3, False], ["fp16", 1, 1e-5, False]],
            "bad": [["fp16", 0, None, False]],
        }.items()
    ]
    assert script("_convergence_page").first_steps(rows) == {
        ("good", "fp16", True): (1e-3, pytest.approx(1e-2))
    }


def test_the_area_is_that_under_the_roc_curve(script):
    area = script("_convergence_page").area
    assert area([(1, True), (2, True), (3, True), (4, False), (5, False), (6, False)]) == "1.00"
    assert area([(6, True), (5, True), (4, True), (3, False), (2, False), (1, False)]) == "0.00"
    assert area([(1, True)] * 3 + [(1, False)] * 3) == "0.50"
    assert area([(1, True)] * 3 + [(1, False)] * 2) == "–"
