"""The benchmarks' arithmetic and tables, of LUs and solves; nothing here needs a device."""

import ast
import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
from folders import BENCHMARKS
from pages import FACTS, is_figure, redraw, seconds

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._lu.elimination import factor_blocked

# Scripts that make pages instead of asking a question, and one that imports CuPy at once.
OTHERS = {"study", "tables", "solve"}
SCRIPTS = sorted({path.stem for path in BENCHMARKS.glob("[a-z]*.py")} - OTHERS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_without_cupy_and_asks_a_question(name):
    tree = ast.parse((BENCHMARKS / f"{name}.py").read_text())
    question = ast.get_docstring(tree).partition("\n\n")[0]
    imported = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in imported}

    assert question.endswith("?") and f"benchmarks/{name}.py" in ast.get_docstring(tree)
    assert not {n.partition(".")[0] for n in names} & {
        "cupy",
        "cupyx",
        "torch",
        "matplotlib",
        "solve",
    }


# ---- hpl_mxp -----------------------------------------------------------------------------------


def reference_system(n, multiplier):
    """Return A and b by the generator of the reference implementation, one number after the other."""
    state, numbers = 1, []
    for _ in range(n * n + n):
        state = state * multiplier % 2**64
        numbers.append((state >> 32) / (2**32 - 1) - 0.5)
    a = np.array(numbers[: n * n]).reshape(n, n).T
    np.fill_diagonal(a, np.abs(a).sum(axis=1) - np.abs(a.diagonal()))
    return a, np.array(numbers[n * n :])


def test_the_hpl_mxp_matrix_is_that_of_the_reference(script, monkeypatch):
    hpl, n = script("hpl_mxp"), 45
    monkeypatch.setattr(hpl, "BLOCK_ENTRIES", 4 * n)  # a last block of another height

    a, b = hpl.generate(np, n)

    wanted, wanted_b = reference_system(n, hpl.MULTIPLIER)
    off = ~np.eye(n, dtype=bool)
    assert np.array_equal(a[off], wanted[off]) and np.array_equal(b, wanted_b)
    assert np.abs(a.diagonal() / wanted.diagonal() - 1).max() <= n * 2.0**-53


def test_the_hpl_residual_accepts_a_solution_and_rejects_others(script):
    hpl = script("hpl_mxp")
    a, b = hpl.generate(np, 60)
    x = np.linalg.solve(a, b)
    r, size = np.abs(a @ x - b).max(), np.abs(a).sum(axis=1).max() * np.abs(x).max()

    assert hpl.scaled_residual(np, a, x, b) == r / (2.0**-53 * (size + np.abs(b).max()) * 60)
    assert hpl.passed(hpl.scaled_residual(np, a, x, b))
    assert not hpl.passed(hpl.scaled_residual(np, a, x * (1 + 1e-10), b))
    assert not hpl.passed(hpl.scaled_residual(np, a, np.full(60, np.nan), b))


def test_the_hpl_rates_count_the_benchmark_s_operations(script):
    hpl = script("hpl_mxp")

    assert hpl.solve_tflops(3000, 2.0) == pytest.approx((18e9 + 13.5e6) / 2e12)
    assert hpl.lu_tflops(3000, 2.0) == pytest.approx(9e-3)


def test_the_largest_n_is_the_last_that_fits(script):
    hpl = script("hpl_mxp")

    for available in (0, 12 * 1024**2, 10**9, 150 * 10**9):
        n = hpl.largest_fit(available, lambda n: 12 * n * n)
        assert n % hpl.STEP == 0
        assert 12 * n**2 <= available < 12 * (n + hpl.STEP) ** 2
    # The prediction itself: A, its FP32 factors, and less than a tenth of their bytes in addition.
    assert 12 < hpl.device_bytes("fp16", 65536, 512) / 65536**2 < 13.2


def test_the_hpl_page_marks_an_invalid_run(script, monkeypatch, tmp_path):
    hpl = script("hpl_mxp")
    row = {"n": 8192, "precision": "fp16", "steps": 2, "rungs": ["fp16"], "passed": True}
    row |= {"lu_tflops": 300.0, "solve_tflops": 200.0, "residual": 0.01}
    row |= {"solve_seconds": seconds(2e-3), "factor_seconds": seconds(1e-3)}
    bad = row | {"n": 1024, "passed": False, "residual": float("nan")}
    bad |= {"largest": True, "predicted_largest": 2048}

    text = redraw(hpl, monkeypatch, tmp_path / "hpl.json", [row, bad])

    assert "| 8192 | fp16 | 300 | 200 | 1.0 | 2.0 | 2 | 0.01 |" in text
    assert "| 1024 (largest) | fp16 | - | - |" in text and "nan (invalid)" in text
    assert "300.0 TFLOP/s" in hpl.line(row) and "INVALID" in hpl.line(bad)


# ---- lu ----------------------------------------------------------------------------------------


def test_factors_pass_for_their_own_precision_and_no_better_one(script, monkeypatch):
    n = 600
    lu, a = script("lu"), np.random.default_rng(5).standard_normal((n, n))
    monkeypatch.setattr(script("hpl_mxp"), "BLOCK_ENTRIES", 77 * n)

    def passing(lu_, order):
        error = lu.factor_error(np, a, order, lu_)
        return [p for p in ("fp16", "fp16x3", "fp64") if error <= lu.limit(p, n)]

    factors, ipiv = scipy.linalg.lu_factor(a)
    order = lu.order_of(ipiv)
    assert passing(factors, order) == ["fp16", "fp16x3", "fp64"]
    assert passing(factors.astype(np.float32), order) == ["fp16", "fp16x3"]
    assert passing(factors.astype(np.float16), order) == ["fp16"]
    for name, known in (("fp16", ["fp16"]), ("fp16x3", ["fp16", "fp16x3"])):
        found = factor_blocked(NumpyOps(), a.astype(np.float32), UPDATES[name], block=64)
        assert passing(found.lu, found.order) == known
    order[[3, 5]] = order[[5, 3]]
    assert passing(factors, order) == [] and passing(factors * np.nan, order) == []


def test_the_page_of_the_lu_gives_its_rate(script, monkeypatch, tmp_path):
    lu, row = script("lu"), {"n": 3000, "family": "gauss", "what": "fp16x3", "moved": 2990}
    row |= {"error": 1e-7, "limit": 2e-6}
    assert "TFLOP/s" not in lu.line(row)
    row["seconds"] = seconds(2e-3)

    profile = {"chain": {"inside": 1.2e-3, "between": 0.6e-3}, "alone": [1e-3, 1.5e-3]}
    rows = [row | profile, row | {"what": "sgetrf"}]

    text = redraw(lu, monkeypatch, tmp_path / "lu.json", rows)

    assert (
        "| gauss | 3000 | fp16x3 | 2990 | 2.00 | 9 | 1.2 + 0.6 | 1.5 | 1.0e-07 / 2.0e-06 |" in text
    )
    assert "| gauss | 3000 | sgetrf | 2990 | 2.00 | 9 | - | - | 1.0e-07 / 2.0e-06 |" in text
    assert "2990 rows moved" in lu.line(row) and "9.0 TFLOP/s" in lu.line(row)


# ---- stacks and small systems ------------------------------------------------------------------


def row_of(case, ours, peer, **facts):
    seconds = {"tcsolve": {"median": ours, "second": 2 * ours}, "peer": {"median": peer}}
    return case._asdict() | {"seconds": seconds, "errors": {}} | facts


def test_a_row_of_stacks_shows_the_ratio_to_the_fastest_peer_and_its_aim(script):
    stacks = script("stacks")
    every = list(stacks.cases())
    assert {c.n for c in every if c.char == "d"} == {n for n, _ in stacks.SIZES}
    assert max(c.n for c in every if c.char != "d") == stacks.MOST_OTHER
    case = stacks.Case("general", "d", 16, 65536)
    row = row_of(case, 1e-4, 5e-4, fraction=0.25)
    row["seconds"]["slow peer"] = {"median": 9e-4}
    cells = stacks.cells(row)
    assert cells[2:] == ["0.100", "0.500 (peer)", "5.0", "7", "0.25", "0.45"]
    assert "| 5.0 | 7 |" in stacks.page({"gpu": "a chip", "commit": "c", "date": "d"}, [row])


def test_a_row_of_one_small_system_shows_the_ratio_and_the_second_call(script):
    small = script("small")
    row = row_of(small.Case("general", "gauss", 64, 0, 1), 1e-4, 2e-4)
    assert small.cells(row)[3:] == ["0.100", "0.200", "0.200 (peer)", "2.00", "1.3"]
    wrong = row | {"seconds": {}, "errors": {"tcsolve": "backward error 1"}}
    assert small.cells(wrong)[3:] == ["tcsolve: backward error 1", "", "", "", ""]
    assert len(small.cells(wrong)) == len(small.HEAD)
    assert "| 2.00 | 1.3 |" in small.page({"gpu": "a chip", "commit": "c", "date": "d"}, [row])


# ---- roads -------------------------------------------------------------------------------------


def test_what_is_allowed_depends_on_size_and_kind(script):
    roads = script("roads")

    def allowed(kind, n, count=0, columns=1, family="gauss"):
        return roads.limit(roads.Case(kind, family, n, count, columns), 1.0, 0.5)

    assert allowed("general", 1024) == allowed("complex", 64, count=10) == 3.0
    assert roads.limit(roads.Case("general", "gauss", 16, 0, 1), 1e-5, 0) == pytest.approx(2.1e-4)
    assert allowed("general", 2048) == allowed("symmetric", 4096, columns=256) == 1.3
    assert allowed("general", 2048, columns=2048) == 1.8
    assert allowed("triangular", 2048) == 2.2 and allowed("triangular", 64) == 3.0
    assert allowed("general", 4096, family="condition 1e12") is None


def test_the_table_has_every_kind_and_the_quick_one_is_a_part(script):
    roads = script("roads")
    every, quick = list(roads.cases(False)), list(roads.cases(True))

    assert set(quick) <= set(every) and len(set(every)) == len(every) < 300
    for kind in roads.ASSUMED:
        for columns in (1, 16, 256):
            for family in ("gauss", "gauss + n I"):
                row = kind, family, 0, columns
                sizes = {c.n for c in every if (c.kind, c.family, c.count, c.columns) == row}
                assert {2048, 4096, 8192, 16384} <= sizes
    assert {c.kind for c in every if c.count} == {"general", "positive definite"}


def test_systems_of_every_kind_are_what_they_are_called(script, monkeypatch):
    roads = script("roads")
    monkeypatch.setitem(sys.modules, "cupy", np)
    for case in roads.cases(True):
        if case.n > 64 or case.count > 10**5:
            continue
        a, b = roads.system(case._replace(count=min(case.count, 50)))
        assert b.shape == (*a.shape[:-1], 1)
        assert (case.kind == "complex") == (a.dtype.kind == "c")
        if case.kind == "positive definite":
            assert np.linalg.eigvalsh(a).min() > 0.1
        if case.kind in ("symmetric", "positive definite"):
            assert np.array_equal(a, np.swapaxes(a, -1, -2))
        if case.kind == "triangular":
            assert np.array_equal(a, np.triu(a))
    for kind in ("general", "complex"):
        a, _ = roads.system(roads.Case(kind, "condition 1e12", 40, 0, 1))
        assert 5e11 < np.linalg.cond(a) < 2e12


def test_a_row_of_the_roads_is_ok_missed_or_failed(script, monkeypatch, tmp_path):
    roads = script("roads")
    case = roads.Case("general", "gauss", 2048, 0, 16)
    row = {**case._asdict(), "name": case.name, "fastest": "torch", "limit": 1.3e-3}
    row["peers"] = {"torch": seconds(1e-3), "cupy.linalg.solve": {"error": "no"}}
    rows = [row | {"tcsolve": seconds(1.2e-3)}, row | {"tcsolve": seconds(1.4e-3)}]
    rows.append(row | {"tcsolve": {"error": "ValueError: wrong"}})
    rows.append(row | {"tcsolve": seconds(9.0), "limit": None, "family": "condition 1e12"})

    assert [roads.verdict(row) for row in rows] == [
        "ok",
        "MISSED",
        "FAILED: ValueError: wrong",
        "-",
    ]
    text = redraw(roads, monkeypatch, tmp_path / "roads.json", rows)
    assert "| general, gauss | 2048 | 16 | 1.2 | 1 | torch | 0.83 | 1.3 | ok |" in text
    assert "1 of 3 rows are ok" in text and "once more" not in text


def test_a_row_that_misses_its_limit_is_measured_once_more_and_the_page_has_both(
    script, monkeypatch, tmp_path
):
    roads = script("roads")
    case = roads.Case("general", "gauss", 2048, 0, 16)
    row = {**case._asdict(), "name": case.name, "fastest": "torch", "limit": 1.3e-3}
    row |= {"peers": {"torch": seconds(1e-3)}, "tcsolve": seconds(1.4e-3)}
    asked = []

    def measure(case, repeats):
        asked.append((case, repeats))
        return row | {"tcsolve": seconds(1.1e-3)}

    monkeypatch.setattr(roads, "measure", measure)
    monkeypatch.setattr(roads, "free_memory", lambda: None)
    rows = [roads.again(row, 7)]

    assert asked == [(case, 7)] and roads.verdict(rows[0]) == "ok"
    text = redraw(roads, monkeypatch, tmp_path / "roads.json", rows)
    assert "general, gauss, n = 2048, 16 right-hand sides: 1.4 of 1.3 ms" in text


def test_the_solvers_of_a_road_take_turns(script, monkeypatch):
    roads, calls, waits = script("roads"), [], []
    device = SimpleNamespace(synchronize=lambda: waits.append(len(calls)))
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device))
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def solver(name, duration):
        def call():
            calls.append(name)
            time.sleep(duration)

        return call

    fast, slow = roads.in_turns([solver("fast", 0.002), solver("slow", 0.01)], 4)

    assert fast == sorted(fast) and slow == sorted(slow) and fast[0] >= 0.002 and slow[0] >= 0.01
    assert len(slow) == calls.count("slow") - 2 >= 4 and sum(fast) >= roads.LEAST_SECONDS
    assert "".join(name[0] for name in calls[4:]).count("fs") >= 4  # several turns
    assert len(waits) == len(calls) - 3  # after each sample, and once before them


# ---- many_rhs, rungs, memory -------------------------------------------------------------------


def test_the_worst_column_is_the_backward_error(script):
    many = script("many_rhs")
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((50, 50)), np.ones((50, 3))
    b = a @ x
    x[0, 1] += 1e-3
    x[0, 2] += 1e-6

    error = many.backward_error(np, a, x, b)

    worst = np.abs(b - a @ x)[:, 1].max() / np.abs(a).sum(axis=1).max() / (1 + 1e-3)
    assert error == pytest.approx(worst)
    assert np.isnan(many.backward_error(np, a, x * np.inf, b))


def many_rhs_row(n, nrhs):
    one = n**2 / 1e10
    row = {"n": n, "nrhs": nrhs, "single": seconds(one), "further_single": seconds(one / 4)}
    ours = {"steps": 4, "rungs": ["fp16x3"], "backward_error": 1e-16}
    row |= {"tcsolve": ours | seconds(one * (1 + nrhs / 100)), "cupy": seconds(3 * one)}
    return row | {"tcsolve_again": seconds(one / 4 * (1 + nrhs / 20))}


def test_single_solves_are_counted_as_often_as_there_are_right_hand_sides(script):
    times = script("many_rhs").times(many_rhs_row(10_000, 16))

    assert times["singles"] == pytest.approx(160) and times["further"] == pytest.approx(40)
    assert times["cupy"] == pytest.approx(30)


def test_the_curve_of_many_right_hand_sides_is_drawn(script, monkeypatch, tmp_path, matplotlib):
    many = script("many_rhs")
    rows = [many_rhs_row(n, k) for n in (8192, 16384) for k in (1, 2, 4, 16, 64, 256)]

    text = redraw(many, monkeypatch, tmp_path / "many.json", rows)

    assert is_figure(tmp_path / "many_rhs.png")
    assert text.count("| 8192 |") == text.count("| 16384 |") == 6
    assert "nrhs   16" in many.line(rows[3])


@pytest.mark.parametrize("kind", ["geo", "arith", "cluster1"])
def test_the_spectra_are_those_of_the_test_matrices(script, kind):
    from tcsolve.matrices import _spectrum

    wanted = getattr(_spectrum, kind)(20, 1e4, None)
    assert np.array_equal(script("rungs").spectrum(kind, 20, 1e4), wanted)


@pytest.mark.parametrize("name, most", [("int8", 1 / 127), ("fp8", 2.0**-4)])
@pytest.mark.parametrize("axis", [0, 1])
def test_rounding_to_eight_bits_is_to_nearest_with_a_scale_of_each_row_or_column(
    script, name, most, axis
):
    corrections = script("corrections")
    x = np.random.default_rng(3).standard_normal((40, 50)).astype(np.float32)
    x *= np.exp2(np.arange(40))[:, None] if axis else np.exp2(np.arange(50))
    x[:, 7] = x[5] = 0  # their largest entry, 0, must not be a divisor
    top = np.abs(x).max(axis=axis, keepdims=True)

    rounded = corrections.CORRECTIONS[name](x, axis)

    # INT8: the step is below 2/127 of the largest entry, so the error is at most 1/127 of that entry.  E4M3:
    # it is relative to each entry, except for the smallest ones.
    error = np.abs(rounded - x)
    assert (
        error <= most * (top if name == "int8" else np.maximum(np.abs(x), top * 2.0**-12))
    ).all()
    assert error.max() > 0 and np.array_equal(corrections.CORRECTIONS[name](rounded, axis), rounded)


def test_corrections_take_the_place_of_those_of_the_update_for_a_while(script):
    from tcsolve._backends.cpu.lu import HostLU

    corrections, usual = script("corrections"), HostLU.operand
    rows = [corrections.count_steps("svd geo 1e4", 300, name) for name in corrections.CORRECTIONS]

    assert HostLU.operand is usual
    steps = {row["corrections"]: row["steps"] for row in rows}
    assert {row["status"] for row in rows} == {"CONVERGED"}
    assert steps["fp16"] <= steps["int8"] <= steps["fp8"] < steps["none"]


def test_the_page_of_corrections_counts_two_of_three_products(script):
    corrections = script("corrections")
    row = {"family": "gauss", "n": 4096, "corrections": "fp16", "steps": 3, "bound": 7e-15}
    rows = [row | {"backward_error": 1e-16}, row | {"corrections": "none", "backward_error": 1e-9}]
    steps = {"machine": FACTS, "rows": rows}
    tflops = {"fp16": 600, "int8": 900, "fp8": 1200}
    rates = {"machine": FACTS, "rows": [{"n": 8192, "k": 1024, "tflops": tflops}]}

    text = corrections.page(steps, rates)

    assert "| gauss | 4096 | 3 | - | - | stalls |" in text
    assert "| 8192 | 1024 | 600 | 900 | 1200 | 0.78 | 0.67 |" in text


def rungs_rows():
    def ours(solver, median, rungs):
        facts = {"steps": 5, "rungs": rungs, "backward_error": 1e-16, "seconds": seconds(median)}
        return {"family": "gauss", "n": 8192, "solver": solver, **facts}

    peer = {"family": "gauss", "n": 8192, "solver": "cupy.linalg.solve", "backward_error": 2e-14}
    return [
        ours("auto", 0.011, ["fp16x3"]),
        ours("fp16", 0.030, ["fp16", "fp16x3"]),
        ours("fp16x3", 0.010, ["fp16x3"]),
        {"family": "gauss", "n": 8192, "solver": "fp64", "error": "DeviceMemoryError: full"},
        {**peer, "seconds": seconds(0.044)},
    ]


def test_auto_is_compared_with_the_best_fixed_precision(script):
    rungs = script("rungs")
    ((_, here),) = rungs.cases(rungs_rows()).items()

    best, ratio, speedup = rungs.verdict(here)

    assert best == "fp16x3" and ratio == pytest.approx(1.1) and speedup == pytest.approx(4)
    assert rungs.verdict({"cupy.linalg.solve": rungs_rows()[-1]})[0] == "-"


def test_the_table_of_rungs_shows_every_precision(script, monkeypatch, tmp_path):
    text = redraw(script("rungs"), monkeypatch, tmp_path / "rungs.json", rungs_rows())

    wanted = "| gauss | 8192 | 11.0 (fp16x3, 5) | 30.0 (fp16>fp16x3, 5) | 10.0 (fp16x3, 5) | fails | 44.0 |"
    assert f"{wanted} 1.10 (fp16x3) | 4.00 | 1e-16 / 2e-14 |" in text
    assert "Worst auto / best fixed: 1.10." in text


def test_the_table_of_memory_gives_both_ratios(script, monkeypatch, tmp_path):
    memory = script("memory")
    row = {"call": "solve", "n": 4096, "precision": "fp16x3", "nrhs": 1, "rungs": ["fp16x3"]}
    row |= {"family": "gauss"}
    row |= {"bytes_planned": 105 << 20, "bytes_used": 100 << 20, "bytes_reserved": 120 << 20}
    row |= {"bytes_a": 128 << 20, "bytes_idle": 64 << 20}
    failed = {k: row[k] for k in ("call", "n", "family", "precision", "nrhs")}
    failed |= {"error": "too large"}

    slow = row | {"family": "svd_geo 1e10", "bytes_used": 84 << 20}

    text = redraw(memory, monkeypatch, tmp_path / "memory.json", [row, slow, failed])

    assert (
        "| solve | 4096 | gauss | fp16x3 | 1 | 105.0 | 100.0 | 120.0 | 1.050 | 0.781 | 64.0 | fp16x3 |"
        in text
    )
    assert "| solve | 4096 | gauss | fp16x3 | 1 | fails | - |" in text
    assert "complete before the start: between 1.050 and 1.050" in text
    assert "stored by columns): between 1.250 and 1.250" in text
    assert "used / A 0.781" in memory.line(row) and "failed" in memory.line(failed)


def test_the_page_of_clocks_gives_the_rate_at_that_clock(script, monkeypatch, tmp_path):
    clocks = script("clocks")
    row = {"seconds": 2e-3, "mhz": 1400.0, "watts": 700.0, "most_mhz": 1980.0, "most_watts": 710.0}
    rows = [row | {"what": "FP32, 'ab'", "n": 6000, "flops": 6 * 6000**3}]
    rows += [row | {"what": "SGEMM", "n": 6000, "flops": 0, "seconds": 9e-3}]
    rows += [row | {"what": "solve, gauss", "n": 16384, "flops": 0}]

    text = redraw(
        clocks, monkeypatch, tmp_path / "clocks.json", rows, FACTS | {"multiprocessors": 132}
    )

    # 6 * 6000**3 / 2 ms, over 132 * 4096 * 1.4 GHz
    assert "| FP32, 'ab' | 6000 | 2 | 648 | 1400 | 86% | 700 |" in text
    assert "| solve, gauss | 16384 | 2 | - | 1400 | - | 700 |" in text
    assert "1980 MHz" in text and "710 W" in text and "4.50 at n = 6000" in text
    assert "648 TFLOP/s  1400 MHz" in clocks.line(rows[0]) and "TFLOP" not in clocks.line(rows[2])


def test_the_page_of_contention_compares_with_the_panel_alone(script, monkeypatch, tmp_path):
    contention = script("contention")
    row = {"m": 16384, "columns": 100, "rate": None}
    rows = [row | {"beside": contention.ALONE, "seconds": seconds(150e-6)}]
    rows += [row | {"beside": "memory", "rate": [3.21, "TB/s"], "seconds": seconds(180e-6)}]

    text = redraw(contention, monkeypatch, tmp_path / "contention.json", rows)

    assert "| 16384 | 100 | nothing | - | 1.500 | 1.00 |" in text
    assert "| 16384 | 100 | memory | 3.21 TB/s | 1.800 | 1.20 |" in text
    assert "1.800 us per column  3.21 TB/s" in contention.line(rows[1])


@pytest.mark.nvrtc
def test_the_kernels_of_contention_compile(script, nvrtc):
    for number, *_ in script("contention").WORK.values():
        cubin = script("_kernels").compile_cubin("contention.cu", "sm_90a", KIND=number)
        assert b"contention" in cubin


def test_what_nvidia_smi_cuts_off_is_left_out(script):
    text = "1400, 700.5, 1980, 700.00\n[N/A], 1, 2, 3\n1395, 71"
    assert script("clocks").parse(text) == [[1400.0, 700.5, 1980.0, 700.0]]


# ---- sanitize ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status, output, verdict",
    [
        (0, "========= ERROR SUMMARY: 0 errors", "clean"),
        (0, "== RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", "clean"),
        (99, "== RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)", "2 found"),
        (0, "== RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)", "1 found"),
        (99, "========= ERROR SUMMARY: 1 error", "1 found"),
        (
            99,
            "= ERROR SUMMARY: 608 errors\n= ERROR SUMMARY: 508 errors were not printed. Use --print-limit",
            "608 found",
        ),
        (1, "========= ERROR SUMMARY: 0 errors", "exit status 1"),
        (None, "========= COMPUTE-SANITIZER", "took too long"),
        (
            None,
            "========= Error: Race reported between\n=========     and\n========= Error: Race\n",
            "took too long, 2 found until then",
        ),
        (0, "converged", "no summary"),
    ],
)
def test_only_a_summary_without_errors_is_clean(script, status, output, verdict):
    assert script("sanitize").judge(status, output) == verdict


def test_an_overflow_of_the_tool_is_not_clean(script):
    output = (
        "Warning: Detected overflow of tracked cuda::barrier\n========= ERROR SUMMARY: 0 errors"
    )
    assert "lost track" in script("sanitize").judge(0, output)


def test_the_tool_watches_the_script_itself(script):
    line = script("sanitize").command(
        "/bin/cs", "synccheck", "lu", 700, ["fp16x3"], ["--print-limit", "7"]
    )

    assert line[:3] == ["/bin/cs", "--tool", "synccheck"] and "4096" in line
    assert line.index("--print-limit") < line.index(sys.executable)
    assert line[-7:] == ["--solve", "--part", "lu", "--n", "700", "--precision", "fp16x3"]


@pytest.mark.parametrize(
    "told, version",
    [("NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1.0 (build 1)", "2025.3.1.0"), ("odd", "odd")],
)
def test_the_version_of_a_tool_is_read_from_what_it_prints(script, told, version, tmp_path):
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{told}\nEND\n")
    tool.chmod(0o755)

    assert script("sanitize").version_of(str(tool)) == version


def test_a_missing_tool_ends_with_its_remedy(script):
    sanitize = script("sanitize")
    with pytest.raises(SystemExit, match="--sanitizer PATH"):
        sanitize.find_sanitizer("/nowhere/compute-sanitizer")


def test_a_run_that_takes_too_long_is_ended_with_its_children(script, tmp_path):
    # The grandchild holds the pipe: if it lived on, its end would be waited for.
    code = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '60'])"
    start = time.monotonic()

    status, output = script("sanitize").watch([sys.executable, "-c", code], 2.0, tmp_path)

    assert status is None and output == "begun\n"
    assert time.monotonic() - start < 30


def test_ratios_on_the_cpu_are_measured_and_drawn(script, tmp_path, monkeypatch):
    cpu, path = script("cpu"), tmp_path / "x.json"
    monkeypatch.setattr(cpu, "SAMPLE_SECONDS", 0.002)
    monkeypatch.setattr(sys, "argv", ["cpu.py", "--ratios", "--most", "4", "--json", str(path)])

    cpu.main()

    rows = json.loads(path.read_text())["rows"]
    assert {row["group"] for row in rows} == {"small", "stacks", "forced low rung, 5 n columns"}
    assert all(row["n"] <= 4 for row in rows)
    for row in rows:
        assert row["ratio"] == row["tcsolve"]["median"] / row["peer_seconds"]["median"]
        wanted = row["wanted_excess"] or row["wanted"]
        assert row["met"] == ((row["excess"] if row["wanted_excess"] else row["ratio"]) <= wanted)
    page = path.with_suffix(".md").read_text()
    assert page.count("| small | ") == 4 and "+25 us" in page
