"""The page of the roofline, from made-up profiles: categories, floors, chains of panels and figures."""

import pytest
from pages import FACTS, RATES, is_figure, redraw, seconds

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
    """Return spans of a made-up factorization: panels of 2 + 1 + 2 ms, and updates of 10 ms and less."""
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


def test_the_excerpt_lasts_from_the_start_of_an_update_to_that_of_another(script):
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
    assert "saves 20.00 ms (20 %). The factors have the same bits" in text
    assert "- `mystery<int>`: 1 x, 0.100 ms" in text
    step = "A refinement step (residual, both triangular solves, norms) takes 1.000 ms"
    assert step in text
    assert "The chain of panels: 16 launches, one after the other, take 32.00 ms" in text
    assert "at 4096 rows" in text and "taken as 0.5 us (assumed, not measured)" in text
    facts = FACTS | {"rates": RATES | {"exchange_seconds": 3.2e-7}}
    text = redraw(roofline, monkeypatch, tmp_path / "roofline_fp16.json", [row], facts)
    assert "0.32 us (measured alone: exchange.cu)" in text and "assumed" not in text
    for category in ("panel", "update GEMM", "residual (gemv)", "triangular solves", "idle"):
        assert f"| {category} |" in text
