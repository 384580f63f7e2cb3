"""The benchmarks' arithmetic, tables and figures; nothing here needs a device or takes a time."""

import argparse
import ast
import importlib
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from conftest import skip_or_fail

from tcsolve._formats import UPDATES
from tcsolve._lu import factor_blocked
from tcsolve._ops_numpy import NumpyOps

FOLDER = Path(__file__).parents[1] / "benchmarks"
SUITESPARSE = {
    "fine": "2 2 3\n1 1 4\n2 1 1\n2 2 3\n",
    "singular": "2 2 1\n1 1 1\n",
    "wide": "2 3 1\n1 1 1\n",
    "broken": "2 2 1\n1 1 x\n",
}
SCRIPTS = ("corrections", "hpl_mxp", "lu", "many_rhs", "memory", "roofline", "rungs", "sanitize")
SCRIPTS += (
    "clocks",
    "contention",
    "gemm",
    "gemm_batched",
    "gemm_error",
    "mma_rate",
    "common_bits",
    "boris_push",
    "gemm_page",
)
FACTS = {"commit": "abc", "date": "2026-01-01", "cpu": "a CPU", "gpu": "a GPU"}
RATES = {"copy_bytes": 4e12, "fp16_flops": 7e14, "fp32_flops": 5e13}


@pytest.fixture
def script(monkeypatch):
    """Import a script of benchmarks/ as Python would when it is started."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def matplotlib():
    try:
        import matplotlib
    except ImportError as error:
        skip_or_fail(f"matplotlib cannot be imported: {error}", "TCSOLVE_REQUIRE_MATPLOTLIB")
    return matplotlib


def seconds(median):
    return {"median": median, "quartiles": [median, median], "samples": 3}


def is_figure(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def redraw(module, monkeypatch, path, rows, facts=FACTS):
    """Run `module --draw` on rows; return the page."""
    path.write_text(json.dumps({"machine": facts, "rows": rows}))
    monkeypatch.setattr(sys, "argv", [module.__name__, "--draw", "--json", str(path)])
    module.main()
    return path.with_suffix(".md").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_without_cupy_and_asks_a_question(name):
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
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
    """The reference implementation's generator, one number after the other."""
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
    # The prediction itself: A and FP32 factors, and less than a tenth of that beside them.
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


# ---- roofline ----------------------------------------------------------------------------------


KERNEL_NAMES = {
    "tcs_panel": "panel",
    "tcs_panel_grid": "panel",
    "tcs_move_rows": "row moves",
    "tcs_swap_solve": "block row (trsm)",
    "tcs_lower_solve": "block row (trsm)",
    "tcs_pack_u": "packing of operands",
    "tcs_update_scale": "packing of operands",
    "tcs_split_by": "packing of operands",
    "tcs_gemm_wgmma": "update GEMM",
    "tcs_short_update": "short GEMM of panels",
    "tcs_gate": "small kernels of the LU",
    "tcs_survey": "norms and FP32 copy of A",
    "tcs_add_chunks": "norms and FP32 copy of A",
    "tcs_extremes": "norms and FP32 copy of A",
    "tcs_cast_scaled": "norms and FP32 copy of A",
    "cupy_copy__int32_int32": "small kernels of the LU",
    "Memset (Device)": "small kernels of the LU",
    "nvjet_sm90_hss_320x128_64x3_1x2_h_bz_coopB_NNT": "update GEMM",
    "nvjet_hsh_256x128_64x4_1x2_h_bz_splitK_TNT": "update GEMM",
    "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x256x64_cublas": "update GEMM",
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn": "update GEMM",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32": "update GEMM",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)": "short GEMM of panels",
    "ampere_sgemm_128x64_nn": "short GEMM of panels",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8": "short GEMM of panels",
    "void trsm_right_kernel<float, 256, 4, false>(cublasTrsmParams<float>)": "block row (trsm)",
    "void batch_trsm_left_kernel<float, 64, 4>(float)": "inverses of diagonal blocks",
    "some_new_kernel": "other",
}


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_a_kernel_of_the_factorization_gets_its_category(script, name):
    assert script("_profile").category_of(name, solving=False) == KERNEL_NAMES[name]


def test_categories_change_with_the_first_triangular_solve(script):
    profile = script("_profile")
    gemv = "void gemv2T_kernel_val<int, int, double, double, double, double, 128, 16, 4>(double)"
    names = [gemv, "cupy_max", "tcs_solve_triangle", gemv, "cupy_max", "tcs_panel"]
    names += ["nvjet_sm90_hss_1x1", "void cublasLt::splitKreduce_kernel<32, 16, int, float>()"]

    spans = profile.classify([profile.Kernel(name, 7, i, i + 1) for i, name in enumerate(names)])

    found = [span.category for span in spans]
    assert found[:3] == [profile.INVERSES, profile.INDEX, profile.TRIANGLES]
    assert found[3:6] == [profile.RESIDUAL, profile.VECTORS, profile.PANEL]
    assert found[6:] == [profile.UPDATE, profile.UPDATE]


def test_only_the_device_s_events_of_a_trace_are_kernels(script):
    common = {"ph": "X", "dur": 2.5, "args": {"stream": 13}}
    events = [
        {**common, "cat": "kernel", "name": "b", "ts": 20.0},
        {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1.0},
        {**common, "cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 10.5},
        {"ph": "M", "name": "process_name", "args": {}},
    ]

    kernels = script("_profile").kernels_of({"traceEvents": events})

    assert [tuple(k) for k in kernels] == [("Memcpy DtoH", 13, 10.5, 13.0), ("b", 13, 20.0, 22.5)]


def test_exposed_time_is_what_no_other_category_covers(script):
    profile = script("_profile")
    spans = [
        profile.Span("panel", 1, 0.0, 4.0),
        profile.Span("update GEMM", 2, 2.0, 10.0),
        profile.Span("update GEMM", 3, 3.0, 5.0),  # the same category twice at once counts once
        profile.Span("panel", 1, 12.0, 13.0),
    ]

    busy, alone, union = profile.sweep(spans)

    assert busy == {"panel": 5.0, "update GEMM": 8.0}
    assert alone == {"panel": 3.0, "update GEMM": 6.0}
    assert union == 11.0


def test_the_wall_time_is_split_without_rest(script):
    profile, floors = script("_profile"), script("_floors")
    spans = [profile.Span("panel", 1, 0.0, 4e3), profile.Span("update GEMM", 2, 2e3, 9e3)]

    parts = floors.tally(spans, 10e-3, {"panel": 1e-3, "row moves": 0.0})

    exposed = sum(c["exposed"] for c in parts["categories"])
    assert exposed + parts["overlapped"] + parts["idle"] == pytest.approx(10e-3)
    assert [c["category"] for c in parts["categories"]] == ["panel", "update GEMM"]


def test_floors_follow_from_flops_and_bytes(script):
    floors, n, block = script("_floors"), 4096, 512
    slow = {"copy_bytes": 1e30, "fp16_flops": 1e12, "fp32_flops": 1e12}
    thin = {"copy_bytes": 1e12, "fp16_flops": 1e30, "fp32_flops": 1e30}

    panels = [(j, j + block) for j in range(0, n, block)]
    flops = floors.floors(panels, 3, slow, residuals=2, triangles=4)
    bytes_ = floors.floors(panels, 3, thin, residuals=2, triangles=4, inverse_bytes=10**6)

    trailing = [n - j - block for j in range(0, n, block)]
    assert flops["update GEMM"] == pytest.approx(
        3 * 2 * block * sum(r * r for r in trailing) / 1e12
    )
    assert flops["panel"] == pytest.approx(n * floors.EXCHANGE_SECONDS)
    measured = floors.floors(panels, 3, slow | {"exchange_seconds": 3e-7})
    assert measured["panel"] == pytest.approx(n * 3e-7)
    # All of an LU but the update is in panels and block rows.
    others = flops["short GEMM of panels"] + flops["block row (trsm)"]
    assert flops["update GEMM"] / 3 + others == pytest.approx(2 / 3 * n**3 / 1e12, rel=1e-3)
    assert bytes_["update GEMM"] == pytest.approx(8 * sum(r * r for r in trailing) / 1e12)
    assert bytes_["residual (gemv)"] == pytest.approx(2 * 8 * n * n / 1e12)
    assert bytes_["triangular solves"] == pytest.approx(4 * 2 * n * n / 1e12)
    assert bytes_["inverses of diagonal blocks"] == pytest.approx(2e-6)
    assert floors.floors(panels, 1, thin, pivoting=False)["row moves"] == 0
    assert set(flops) == set(floors.FLOORS)


def factorization(profile, panels, look_ahead):
    """Spans of a made-up factorization: panels of 2 + 2 ms and 1 ms of GEMM, updates of 10 ms and less."""
    spans, at = [], 0.0
    for i in range(panels):
        stream = 19 if look_ahead and i else 7
        start = at if not look_ahead or i == 0 else at - 5e3
        pieces = [(profile.PANEL, 2e3), (profile.INNER, 1e3), (profile.PANEL, 2e3)]
        for category, length in pieces:
            spans.append(profile.Span(category, stream, start, start + length))
            start += length
        at = max(at, start)
        if i < panels - 1:
            for category, length in (
                (profile.MOVES, 5e2),
                (profile.BLOCK_ROW, 5e2),
                (profile.PACK, 3e2),
                (profile.UPDATE, 1e4 - 5e2 * i),
            ):
                spans.append(profile.Span(category, 7, at, at + length))
                at += length
    return sorted(spans, key=lambda span: span.start)


def test_panels_are_told_apart_by_how_many_strips_they_have(script):
    profile = script("_profile")

    panels = [(0, 512), (512, 1024), (1024, 1280), (1280, 1408)]
    found = profile.panel_times(factorization(profile, 4, look_ahead=False), panels, [2] * 4)

    assert [rows for rows, *_ in found] == [1408, 896, 384, 128]
    assert found[0][1:] == [4e3 / 512, 5e3 / 512]
    assert found[-1][1:] == [4e3 / 128, 5e3 / 128]
    assert profile.panel_times([], panels, [2] * 4) == []
    assert profile.alone_times(found) == pytest.approx([16e-3, 20e-3])
    assert profile.alone_times([]) is None


def test_the_chain_of_panels_is_in_them_and_between_them(script):
    profile = script("_profile")

    found = profile.chain(factorization(profile, 2, look_ahead=False))

    # Two panels of 2 + 1 + 2 ms, and 0.5 + 0.5 + 0.3 + 10 ms of the step that lies between them.
    assert found == pytest.approx({"launches": 4, "inside": 8e-3, "between": 13.3e-3})
    assert profile.chain([]) is None


def test_the_excerpt_starts_and_ends_with_an_update(script):
    profile = script("_profile")
    spans = factorization(profile, 8, look_ahead=False)

    bars = profile.excerpt(spans, 8, shown=(1, 3))

    assert bars[0] == [profile.UPDATE, 7, 0.0, 9.5]
    assert sum(bar[0] == profile.UPDATE for bar in bars) == 2
    updates = [span.start for span in spans if span.category == profile.UPDATE]
    assert max(start + length for *_, start, length in bars) == (updates[3] - updates[1]) / 1e3


def roofline_row(profile, floors, n=4096, block=512):
    profiles = {
        key: factorization(profile, n // block, key == "look_ahead")
        for key in ("look_ahead", "serial")
    }
    kernels = [profile.Kernel("mystery<int>", 7, 0.0, 100.0)]
    panels = [(j, j + block) for j in range(0, n, block)]
    least = floors.floors(panels, 3, RATES, residuals=4, triangles=8, inverse_bytes=n * 1024)
    stop = max(span.stop for span in profiles["look_ahead"])
    solve = [profile.Span(profile.TRIANGLES, 7, stop, stop + 1e3)]
    solve += [profile.Span(profile.RESIDUAL, 7, stop + 1e3, stop + 3e3)]
    solve += [profile.Span(profile.OTHER, 7, stop + 3e3, stop + 3.1e3)]
    return {
        "n": n,
        "family": "gauss",
        "precision": "fp16x3",
        "blocks": [block],
        "backward_error": 1e-16,
        "steps": 3,
        "rungs": ["fp16x3"],
        "solve": seconds(0.09),
        "phases": {"factor": 0.08, "refine": 0.004, "total": 0.09},
        **floors.tally(profiles["look_ahead"] + solve, 0.09, least),
        "others": profile.others(kernels, [profile.Span(profile.OTHER, 7, 0.0, 100.0)]),
        "chain": profile.chain(profiles["look_ahead"]),
        "step": 1e-3,
        "refinement_floor": floors.step_floor(n, RATES),
        "same_bits": True,
        "look_ahead": seconds(0.08),
        "serial": seconds(0.1),
        "panel": profile.panel_times(profiles["serial"], panels, [2] * len(panels)),
        "timeline": {key: profile.excerpt(value, len(panels)) for key, value in profiles.items()},
    }


def test_the_roofline_page_and_figure_come_from_the_json(script, monkeypatch, tmp_path, matplotlib):
    roofline = script("roofline")
    row = roofline_row(script("_profile"), script("_floors"))

    text = redraw(
        roofline, monkeypatch, tmp_path / "roofline_fp16.json", [row], FACTS | {"rates": RATES}
    )

    assert is_figure(tmp_path / "lookahead_fp16.png") and "(lookahead_fp16.png)" in text
    assert "20.00 ms, 20 %, saved, with the same bits" in text
    assert "- `mystery<int>`: 1 x, 0.100 ms" in text
    step = "A refinement step (residual, both triangular solves, norms), the condition known, takes 1.000 ms"
    assert step in text
    assert "The chain of panels: 16 launches, one after the other, take 32.00 ms" in text
    assert "at 4096 rows" in text and "taken as 0.5 us (assumed, not measured)" in text
    facts = FACTS | {"rates": RATES | {"exchange_seconds": 3.2e-7}}
    text = redraw(roofline, monkeypatch, tmp_path / "roofline_fp16.json", [row], facts)
    assert "0.32 us (measured alone: exchange.cu)" in text and "assumed" not in text
    for category in ("panel", "update GEMM", "residual (gemv)", "triangular solves", "idle"):
        assert f"| {category} |" in text


# ---- many_rhs, rungs, memory -------------------------------------------------------------------


def test_the_worst_column_is_the_backward_error(script):
    many = script("many_rhs")
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((50, 50)), np.ones((50, 3))
    b = a @ x
    x[0, 1] += 1e-3
    x[0, 2] += 1e-6

    error = many.worst_backward_error(np, a, x, b)

    worst = np.abs(b - a @ x)[:, 1].max() / np.abs(a).sum(axis=1).max() / (1 + 1e-3)
    assert error == pytest.approx(worst)
    assert np.isnan(many.worst_backward_error(np, a, x * np.inf, b))


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
def test_eight_bits_are_rounded_to_nearest_of_each_row_or_column(script, name, most, axis):
    corrections = script("corrections")
    x = np.random.default_rng(3).standard_normal((40, 50)).astype(np.float32)
    x *= np.exp2(np.arange(40))[:, None] if axis else np.exp2(np.arange(50))
    x[:, 7] = x[5] = 0  # no row or column of zeros is divided by
    top = np.abs(x).max(axis=axis, keepdims=True)

    rounded = corrections.CORRECTIONS[name](x, axis)

    # INT8: of the largest, and up to twice as much above a power of two; E4M3: of each, but for the least.
    error = np.abs(rounded - x)
    assert (
        error <= most * (top if name == "int8" else np.maximum(np.abs(x), top * 2.0**-12))
    ).all()
    assert error.max() > 0 and np.array_equal(corrections.CORRECTIONS[name](rounded, axis), rounded)


def test_corrections_take_the_place_of_those_of_the_update_for_a_while(script):
    from tcsolve._ops_numpy import NumpyOps

    corrections, usual = script("corrections"), NumpyOps.subtract_product
    rows = [corrections.count_steps("svd geo 1e4", 300, name) for name in corrections.CORRECTIONS]

    assert NumpyOps.subtract_product is usual
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
    row |= {"bytes_planned": 105 << 20, "bytes_used": 100 << 20, "bytes_reserved": 120 << 20}
    row |= {"bytes_a": 128 << 20, "bytes_idle": 64 << 20}
    failed = {k: row[k] for k in ("call", "n", "precision", "nrhs")} | {"error": "too large"}

    text = redraw(memory, monkeypatch, tmp_path / "memory.json", [row, failed])

    assert (
        "| solve | 4096 | fp16x3 | 1 | 105.0 | 100.0 | 120.0 | 1.050 | 0.781 | 64.0 | fp16x3 |"
        in text
    )
    assert "| solve | 4096 | fp16x3 | 1 | fails | - |" in text
    assert "between 1.050 and 1.050" in text
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
    assert "1.800 us a column  3.21 TB/s" in contention.line(rows[1])


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
        "/bin/cs", "synccheck", 700, ["fp16x3"], ["--print-limit", "7"]
    )

    assert line[:3] == ["/bin/cs", "--tool", "synccheck"] and "4096" in line
    assert line.index("--print-limit") < line.index(sys.executable)
    assert line[-5:] == ["--solve", "--n", "700", "--precision", "fp16x3"]


@pytest.mark.parametrize(
    "told, version",
    [("NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1.0 (build 1)", "2025.3.1.0"), ("odd", "odd")],
)
def test_the_page_names_the_version_of_the_tool(script, told, version, tmp_path):
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{told}\nEND\n")
    tool.chmod(0o755)

    assert script("sanitize").version_of(str(tool)) == version


def test_a_missing_tool_ends_with_its_remedy(script, monkeypatch):
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


# ---- products ----------------------------------------------------------------------------------


def redraw_from(module, monkeypatch, folder, rows, facts=FACTS):
    """Run `module --from` on rows; return the folder, with the JSON and the figures."""
    path = folder / f"{module.__name__}.json"
    path.write_text(json.dumps({"machine": facts, "rows": rows}))
    figure = folder / f"{module.__name__}.png"
    monkeypatch.setattr(sys, "argv", ["_", "--from", str(path), "--figure", str(figure)])
    module.main()
    return folder


def gemm_rows():
    """Rates as if FP16 on wgmma were 10 times SGEMM, and 'ab' a third of that."""
    rows = []
    for n in (1024, 2048):
        sgemm = {"sgemm_max_error": 4e-4, "sgemm_mean_error": 2e-5}
        for dtype, refine in (("float16", "none"), ("float32", "none"), ("float32", "ab")):
            head = {"what": "square", "n": n, "dtype": dtype, "refine": refine, "of_bound": 0.1}
            error = {"max_error": 2e-4, "mean_error": 1e-5}
            for engine, rate in (("wmma", 200.0), ("wgmma", 400.0), ("cublas", 500.0)):
                rate = rate / 3 if refine == "ab" else rate
                rows.append(head | {"engine": engine, "tflops": rate} | error | sgemm)
            if refine == "none":
                error = {"max_error": 4e-4, "mean_error": 2e-5}
                rows.append(head | {"engine": "sgemm", "tflops": 40.0} | error)
    for k, rate in ((64, 40.0), (128, 80.0)):
        head = {"what": "rank-k", "m": 4096, "k": k, "dtype": "float16"}
        rows += [head | {"engine": e, "tflops": rate} for e in ("wmma", "wgmma", "cublas")]
    for dtype in ("float16", "int8"):
        head = {"what": "transposes", "n": 1024, "dtype": dtype, "engine": "wmma"}
        rows += [
            head | {"trans": t, "tflops": 50.0 + i} for i, t in enumerate(("NN", "NT", "TN", "TT"))
        ]
    head = {"what": "swizzle", "n": 4096, "dtype": "float16", "engine": "wmma"}
    rows += [head | {"swizzled": s, "tflops": 100.0 * (1 + s)} for s in (0, 1)]
    failed = {"what": "square", "n": 4096, "dtype": "float16", "engine": "wmma", "refine": "none"}
    return rows + [failed | {"failed": "no memory"}]


def error_rows():
    levels = {"none": 1e-2, "a": 5e-3, "ab": 1e-5, "full": 1e-5, "fp32": 1e-4}
    return [
        {"n": n, "range": top, "level": level, "max_error": error * n, "mean_error": error * n / 10}
        | {"of_bound": 0.1, "within": True, "seconds": seconds(n / 1e6 / error**0.1)}
        for top in (1, 16)
        for n in (512, 1024)
        for level, error in levels.items()
    ]


def batched_rows():
    rows = []
    for case in ("FP16 -> FP32", "FP16 -> FP16", "FP32", "INT8"):
        for n, batch in ((8, 1 << 16), (16, 1 << 14), (16, 100)):
            for who, rate in (("tcsolve", 2e12), ("cuBLAS", 1e12), ("copy", 4e12)):
                row = {
                    "case": case,
                    "n": n,
                    "batch": batch,
                    "who": who,
                    "seconds": seconds(1 / rate),
                }
                rows.append(row | {"bytes_per_second": rate, "tflops": rate / 1e12 * n / 8})
    return rows + [{"case": "INT8", "n": 8, "batch": 100, "who": "cuBLAS", "failed": "no"}]


MMA_FACTS = FACTS | {"compute_capability": "90", "multiprocessors": 132, "clock_hz": 1.83e9}


def mma_rows(mma_rate):
    return [
        {
            "what": name,
            "warps": warps,
            "ilp": ilp,
            "tflops": 10.0 * warps * ilp,
            "seconds": seconds(1),
        }
        for name in mma_rate.KINDS
        for ilp in mma_rate.KINDS[name][-1]
        for warps in mma_rate.KINDS[name][-2]
    ]


def test_the_figures_of_gemm_are_drawn(script, monkeypatch, tmp_path, matplotlib):
    folder = redraw_from(script("gemm"), monkeypatch, tmp_path, gemm_rows())
    assert all(is_figure(folder / f"gemm{part}.png") for part in ("", "_rank_k", "_transposes"))


def test_the_figures_of_errors_are_drawn(script, monkeypatch, tmp_path, matplotlib):
    folder = redraw_from(script("gemm_error"), monkeypatch, tmp_path, error_rows())
    assert is_figure(folder / "gemm_error.png") and is_figure(folder / "gemm_error_time.png")


def test_the_figures_of_batches_are_drawn(script, monkeypatch, tmp_path, matplotlib):
    folder = redraw_from(script("gemm_batched"), monkeypatch, tmp_path, batched_rows())
    assert is_figure(folder / "gemm_batched.png") and is_figure(folder / "gemm_batched_length.png")


def test_the_figure_of_the_mma_rate_is_drawn(script, monkeypatch, tmp_path, matplotlib):
    mma_rate = script("mma_rate")
    folder = redraw_from(mma_rate, monkeypatch, tmp_path, mma_rows(mma_rate), MMA_FACTS)
    assert is_figure(folder / "mma_rate.png")


def product(k, dtype=np.float32):
    rng = np.random.default_rng(k)
    return [rng.standard_normal(shape).astype(dtype) for shape in ((150, k), (k, 90))]


@pytest.mark.parametrize("refine", ["none", "a", "ab", "full"])
def test_right_answers_are_within_the_bound_of_the_benchmark_and_wrong_ones_beyond(script, refine):
    from tcsolve import gemm

    bench = script("gemm")
    a, b = product(2000)
    how = {"precision": "fp16", "refine": refine}
    check = bench.checked(bench.Reference(a, b), a, b, **how)
    result = gemm(a, b, **how)
    right, wrong = check(result), check(result + np.float32(2000 * bench_unit(refine)))

    assert right["of_bound"] <= 1 < wrong["of_bound"]
    assert 0 < right["mean_error"] < right["max_error"] < wrong["max_error"]


def bench_unit(refine):
    return 2.0**-9 if refine in ("none", "a") else 2.0**-12


def test_sums_that_truncate_are_no_failure(script):
    # Errors that all go one way grow like k: 4.9e-3 at k = 8192 are right, and so are SGEMM's 1.7e-3.
    bench = script("gemm")
    a, b = product(8192, np.float16)
    reference = bench.Reference(a, b)
    bound = reference.bound(bench.gemm_bound(a, b, engine="cublas").bound)

    assert bench.judged(4.9e-3 + 0 * reference.exact, bound)["of_bound"] < 1
    assert bench.judged(1.7e-3 + 0 * reference.exact, reference.textbook_bound())["of_bound"] < 1
    assert not bench.judged(np.nan * reference.exact, bound)["of_bound"] <= 1


def test_integers_must_be_exact(script):
    bench = script("gemm")
    a, b = (np.ones(shape, np.int8) for shape in ((100, 50), (50, 70)))
    check = bench.checked(bench.Reference(a, b), a, b)

    assert check(np.full((100, 70), 50))["of_bound"] == 0
    assert check(np.full((100, 70), 51))["of_bound"] > 1


def test_rows_from_everywhere_in_a_tile_are_compared(script):
    bench = script("gemm")
    for m in (1, 63, 1024, 16384):
        rows = np.arange(m)[bench.Reference(np.ones((m, 1)), np.ones((1, 1))).rows]
        assert min(m, bench.CHECKED_ROWS) <= len(rows) <= 2 * bench.CHECKED_ROWS
        assert m < 128 or len(set(rows % 128)) > 60


@pytest.mark.parametrize("case", ["FP16 -> FP32", "FP16 -> FP16", "FP32", "INT8"])
def test_batches_are_held_to_their_bound(script, case):
    from tcsolve import gemm_batched

    bench = script("gemm_batched")
    dtype, stored, unit = bench.CASES[case]
    rng = np.random.default_rng(1)
    a, b = (10 * rng.standard_normal((80, 16, 16)) for _ in range(2))
    a, b = a.astype(dtype), b.astype(dtype)
    out = np.empty((80, 16, 16), stored)
    right = gemm_batched(a, b, out=out)
    for who in ("tcsolve", "cuBLAS"):
        factor = bench.bound_factor(a, b, who)
        assert bench.part_of_bound(right, a, b, factor, unit) <= 1
        wrong = right.copy()
        wrong[79, 3, 5] += 7
        assert bench.part_of_bound(wrong, a, b, factor, unit) > 1


def test_the_mma_rate_counts_what_the_tensor_cores_do(script):
    mma_rate = script("mma_rate")
    each = 132 * 8 * mma_rate.COUNT

    assert mma_rate.operations("mma.sync FP16", 132, 8, 2) == 2 * each * 2 * 16 * 8 * 16
    assert mma_rate.operations("wgmma FP16", 132, 8, 1) == each / 4 * 2 * 64 * 256 * 16
    # The data sheet of the H100 SXM says 989 TFLOP/s, and 1979 TOP/s in INT8.
    assert mma_rate.nominal_peak(MMA_FACTS, "mma.sync FP16") == pytest.approx(989.4e12, rel=1e-3)
    assert mma_rate.nominal_peak(MMA_FACTS, "mma.sync INT8") == pytest.approx(1979e12, rel=1e-3)
    assert mma_rate.nominal_peak(MMA_FACTS | {"compute_capability": "89"}, "mma.sync FP16") is None
    # FP32 holds every sum on the way.
    assert all(mma_rate.COUNT * k <= 2**24 for _, k, *_ in mma_rate.KINDS.values())


def test_a_wrong_sum_or_a_shared_multiprocessor_is_no_rate(script):
    mma_rate = script("mma_rate")
    sums, where = np.full(64, 16.0 * mma_rate.COUNT), np.arange(4)
    mma_rate.check(sums, where, "wgmma FP16", 4)

    with pytest.raises(AssertionError, match="1 of 64 sums"):
        mma_rate.check(np.append(sums[1:], 0), where, "wgmma FP16", 4)
    with pytest.raises(AssertionError, match="3 of 4 multiprocessors"):
        mma_rate.check(sums, np.array([0, 1, 2, 2]), "wgmma FP16", 4)


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_the_kernel_of_the_mma_rate_compiles(script, arch, nvrtc):
    mma_rate, kernels = script("mma_rate"), script("_kernels")
    for name in mma_rate.kinds(arch):
        number, *_, sums = mma_rate.KINDS[name]
        for ilp in sums:
            cubin = kernels.compile_cubin(mma_rate.SOURCE, arch, **mma_rate.defines_of(number, ilp))
            assert cubin.startswith(b"\x7fELF")
    assert ("wgmma FP16" in mma_rate.kinds(arch)) == (arch == "sm_90a")


@pytest.mark.nvrtc
def test_the_kernel_of_the_exchange_compiles(script, nvrtc):
    cubin = script("_kernels").compile_cubin("exchange.cu", "sm_90a", BLOCKS=16, WARPS=4)
    assert cubin.startswith(b"\x7fELF")


@pytest.mark.nvrtc
def test_a_kernel_that_does_not_compile_says_why(script, nvrtc):
    with pytest.raises(RuntimeError, match="BLOCKS"):
        script("_kernels").compile_cubin("exchange.cu", "sm_90a", WARPS=4)


def test_a_sample_of_short_work_has_many_calls(script):
    calls_needed = script("_steady").calls_needed

    assert calls_needed(1e-4, 0.01) == 100
    assert calls_needed(1.0, 0.01) == 1
    assert calls_needed(0.0, 0.01) == 200


def test_common_bits_are_exact_up_to_the_edge(script):
    bits = script("common_bits")
    bits.check_the_edge(np)
    rng = np.random.default_rng(1)
    x = (rng.random((40, 500)) < 0.3).astype(np.float16)
    counts = bits.common_bits(x)

    bits.check_against_popcount(np, x, counts)
    assert (counts == x.astype(int) @ x.T.astype(int)).all()
    with pytest.raises(AssertionError, match="common bits"):
        bits.check_against_popcount(np, x, counts + 1)


def test_the_boris_push_by_products_is_that_of_particle_codes(script):
    boris = script("boris_push")
    boris.check(np, cells=20, steps=50)


@pytest.mark.parametrize(
    "name, options",
    [
        ("common_bits", ["--vectors", "50", "--bits", "300"]),
        ("boris_push", ["--particles", "2000"]),
        ("gemm_error", ["--n", "32", "64"]),
    ],
)
def test_a_script_runs_on_a_cpu(script, monkeypatch, tmp_path, matplotlib, name, options):
    path = tmp_path / f"{name}.json"
    options += ["--device", "cpu", "--repeats", "1", "--json", str(path)]
    if name == "gemm_error":
        options += ["--figure", str(tmp_path / "gemm_error.png")]
    monkeypatch.setattr(sys, "argv", [name, *options])
    script(name).main()

    rows = json.loads(path.read_text())["rows"]
    assert rows and all(row["seconds"]["median"] > 0 for row in rows)


def test_results_of_a_cpu_do_not_take_the_place_of_a_gpu_s(script, tmp_path):
    figures, results = script("_figures"), script("_harness").RESULTS
    options = argparse.Namespace(device="cpu", json=results / "x.json", figure=tmp_path / "x.png")
    figures.beside_the_gpu(options)
    assert options.json == results / "x_cpu.json" and options.figure == tmp_path / "x.png"


def page_of(script, monkeypatch, folder, **results):
    """Run gemm_page on results by the name of their script; return the page."""
    for name, rows in results.items():
        facts = MMA_FACTS if name == "mma_rate" else FACTS
        (folder / f"{name}.json").write_text(json.dumps({"machine": facts, "rows": rows}))
    monkeypatch.setattr(sys, "argv", ["gemm_page", "--folder", str(folder)])
    script("gemm_page").main()
    return (folder / "gemm.md").read_text()


def test_the_page_of_products_is_made_of_the_json_and_of_quotes(
    script, monkeypatch, tmp_path, matplotlib
):
    text = page_of(
        script,
        monkeypatch,
        tmp_path,
        gemm=gemm_rows(),
        gemm_error=error_rows(),
        gemm_batched=batched_rows(),
        mma_rate=mma_rows(script("mma_rate")),
        common_bits=[
            {"how": "gemm", "vectors": 8, "bits": 9, "seconds": seconds(1e-3)}
            | {"bits_compared_per_second": 1e9}
        ],
        boris_push=[
            {
                "how": how,
                "particles": 64,
                "seconds": seconds(time),
                "particles_per_second": 64 / time,
            }
            for how, time in (("gemm_batched", 1e-3), ("arrays", 3e-3))
        ],
    )

    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert len(set(pictures)) == 8 and all(is_figure(tmp_path / name) for name in pictures)
    assert (
        "| 1024 | 200 | 400 | 500 | 133 | 40 | 3.33 | 2.0e-04 | 4.0e-04 | 1.0e-05 | 2.0e-05 |"
        in text
    )
    assert "7 times as fast as single precision holds: 500 TFLOP/s in FP16" in text
    assert "would be 4.2 times SGEMM at n = 1024 (80% of it)" in text
    assert "12 times the rate of SGEMM" in text and "6 times the 83 of the V100" in text
    assert "k = 64 reaches 50 % of the rate of k = 128" in text
    assert "| float16, wmma | 50 | 51 | 52 | 53 |" in text
    assert "the wmma engine is 2 times as fast" in text
    assert "2 times smaller with 'a' and 1000 times with 'ab'" in text
    assert "kernel of their own holds: ours reaches 4.0 TFLOP/s, 2 times the best of cuBLAS" in text
    assert "50 % of the speed of a copy" in text
    assert "The nominal peak here is 989 TFLOP/s: 132 multiprocessors at 1.83 GHz" in text
    assert "| mma.sync INT8 | 4 | 40 | 80 |" in text
    assert "All pairs of 8 vectors of 9 bits" in text and "64 particles, one step" in text
    assert "'gemm_batched' is 3 times as fast as 'arrays'." in text
    assert all(f"({quote.source.name})" in text for quote in script("_papers").QUOTES["square"])


def test_a_sentence_of_the_page_follows_the_numbers(script, monkeypatch, tmp_path, matplotlib):
    rows = [row | {"tflops": 100.0} if row["engine"] == "sgemm" else row for row in gemm_rows()]
    rows = [row | {"max_error": 9e-4} if row.get("refine") == "ab" else row for row in rows]
    rows = [row | {"tflops": 100.0} if row["what"] == "swizzle" else row for row in rows]

    text = page_of(script, monkeypatch, tmp_path, gemm=rows)

    assert "7 times as fast as single precision no longer holds" in text
    assert "with an error that is larger (9.0e-04 beside 4.0e-04" in text
    assert "That bank conflicts cost much does not hold for this kernel" in text
    assert "Tensor cores without memory" not in text


def test_results_of_a_run_that_is_not_over_make_a_page(script, monkeypatch, tmp_path, matplotlib):
    failed = {"what": "square", "n": 1024, "dtype": "float16", "engine": "wmma", "refine": "none"}
    text = page_of(script, monkeypatch, tmp_path, gemm=[failed | {"failed": "x"}], gemm_error=[])
    assert "| 1024 | fails | - |" in text


def test_every_number_of_the_papers_has_a_source(script):
    papers = script("_papers")
    quotes = [quote for figure in papers.QUOTES.values() for quote in figure]

    assert all(quote.what and quote.value and quote.source.name for quote in quotes)
    abstract = " ".join(q.value for q in quotes if q.source is papers.MARKIDIS)
    assert all(re.search(rf"\b{value}\b", abstract) for value in papers.V100.values())


def test_the_readme_has_a_table_of_products_before_and_after_they_are_measured(
    script, monkeypatch, tmp_path
):
    tables = script("tables")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert "Not measured yet" in tables.products_table()

    results = {"machine": FACTS | {"numpy": "2"}, "rows": gemm_rows()}
    (tmp_path / "gemm.json").write_text(json.dumps(results))
    text = tables.products_table()
    assert "| 2048 | 200 | 400 | 500 | 133 | 40 | 3.33 |" in text
    assert "| 4096 | fails | - |" in text and "benchmarks/gemm.py` on a GPU" in text


def test_the_readme_is_what_the_results_give(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables", "--check"])
    script("tables").main()


def test_numbers_are_kept_where_there_is_no_matplotlib(script, capsys):
    def draw(path):
        raise ImportError("No module named 'matplotlib'")

    script("_figures").try_to_draw(draw, "x.png")
    assert "install matplotlib" in capsys.readouterr().out


# ---- the SuiteSparse study


@pytest.fixture
def collection(tmp_path):
    """A folder of matrices, one of them singular and two that cannot be solved."""
    folder = tmp_path / "matrices"
    folder.mkdir()
    for name, text in SUITESPARSE.items():
        (folder / f"{name}.mtx").write_text(
            f"%%MatrixMarket matrix coordinate real general\n{text}"
        )
    return folder


@pytest.mark.parametrize("indexed", [False, True])
def test_the_study_runs_on_a_folder_and_its_table_can_be_written_again(
    script, collection, tmp_path, capsys, indexed
):
    study, report, page = script("suitesparse"), tmp_path / "s.json", tmp_path / "s.md"
    if indexed:
        rows = "".join(f"{name},none\n" for name in SUITESPARSE)
        (collection / "index.csv").write_text(f"name,group\n{rows}")
    folder = ["--folder", str(collection), "--device", "cpu"]

    status = study.main([*folder, "--json", str(report), "--markdown", str(page)])

    out, rows = capsys.readouterr().out, json.loads(report.read_text())["rows"]
    assert status == 1 and "left out: broken, wide" in out
    assert {row["matrix"]: row["verdict"] for row in rows} == {"fine": "ok", "singular": "ok"}
    assert [row["scipy"]["outcome"] for row in rows] == ["ok", "singular"]
    text = page.read_text()
    assert "| fine | 2 |" in text and "| singular | 2 |" in text
    assert study.main([*folder, "--again", str(report), "--markdown", str(page)]) == 0
    assert page.read_text() == text


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--again", "s.json"], "--again needs --markdown"),
        (["--json", "nowhere/s.json"], "no folder nowhere"),
        (["--max-n", "1"], "no matrix of n <= 1"),
        (["--names", "absent"], "no matrix absent"),
    ],
)
def test_the_study_refuses_what_it_cannot_do_before_it_begins(
    script, collection, monkeypatch, capsys, argv, message
):
    monkeypatch.chdir(collection.parent)
    with pytest.raises(SystemExit) as caught:
        script("suitesparse").main(["--folder", str(collection), "--device", "cpu", *argv])
    assert message in f"{caught.value} {capsys.readouterr().err}"
