"""The scripts of products, with their pages and figures; nothing here needs a device."""

import argparse
import json
import re
import sys

import numpy as np
import pytest
from pages import FACTS, is_figure, seconds


def redraw_from(module, monkeypatch, folder, rows, facts=FACTS):
    """Run `module --from` on rows; return the folder, with the JSON and the figures."""
    path = folder / f"{module.__name__}.json"
    path.write_text(json.dumps({"machine": facts, "rows": rows}))
    figure = folder / f"{module.__name__}.png"
    monkeypatch.setattr(sys, "argv", ["_", "--from", str(path), "--figure", str(figure)])
    module.main()
    return folder


def gemm_rows():
    """Return rates as if FP16 on wgmma were 10 times SGEMM, and 'ab' a third of that."""
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
    # Errors of one sign grow like k, so an error of 4.9e-3 at k = 8192 is allowed, and SGEMM's 1.7e-3, too.
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
    # FP32 holds every partial sum exactly.
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
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_the_kernel_of_the_mma_rate_compiles(script, arch, nvrtc):
    mma_rate, kernels = script("mma_rate"), script("_kernels")
    for name in mma_rate.kinds(arch):
        number, *_, sums = mma_rate.KINDS[name]
        # The number of sums is a bound of loops; one architecture compiles all numbers.
        for ilp in sums if arch == "sm_90a" else sums[-1:]:
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
    assert "are at least 7 times as fast as single precision: FP16 reaches 500 TFLOP/s" in text
    assert "would reach 4.2 times the rate of SGEMM at n = 1024 (80%)" in text
    assert "12 times the rate of SGEMM" in text and "6 times the 83 TFLOP/s of the V100" in text
    assert "k = 64 reaches 50 % of the rate of k = 128" in text
    assert "| float16, wmma | 50 | 51 | 52 | 53 |" in text
    assert "the wmma engine is 2 times as fast" in text
    assert "2 times smaller with 'a' and 1000 times with 'ab'" in text
    assert "is worthwhile: ours reaches 4.0 TFLOP/s, 2 times the best rate of cuBLAS" in text
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

    assert "are not at least 7 times as fast as single precision" in text
    assert "its error is larger than that of SGEMM (9.0e-04 and 4.0e-04" in text
    assert "Bank conflicts do not cost much time in this kernel" in text
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


def test_without_matplotlib_the_remedy_is_printed(script, capsys):
    def draw(path):
        raise ImportError("No module named 'matplotlib'")

    script("_figures").try_to_draw(draw, "x.png")
    assert "install matplotlib" in capsys.readouterr().out
