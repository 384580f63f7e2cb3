"""Variants of kernels, and the shapes of their launches, for every architecture."""

import itertools

import numpy as np
import pytest
from tcsolve.kernels.arch import ARCHS, LARGEST_SHARED_BYTES, arch_number, shared_bytes
from tcsolve.kernels.launch_shapes import (
    EMULATED_SUMS,
    emulated_sums,
    lower_shape,
    move_chunk,
    swap_shape,
    trsv_shapes,
)
from tcsolve.kernels.panel_shapes import PanelShape, panel_shape, panel_shapes
from tcsolve.kernels.product_shapes import split_shape
from tcsolve.kernels.registry import KERNELS
from tcsolve.kernels.square_shapes import (
    SQUARE_RING,
    largest_in_squares,
    square_solve_bytes,
    updated_squares,
)
from tcsolve.kernels.system_shapes import TOLD, across_shape, solve_shape

from tcsolve._arithmetic.formats import FORMATS
from tcsolve._arithmetic.tensor_cores import UNITS
from tcsolve._backends.cuda.runtime import compiler

# Kernels with formats that devices before compute capability 8 lack.
PRODUCTS = ("gemm_naive", "gemm_wmma", "gemm_batched")


@pytest.mark.parametrize(
    "arch, number", [("sm_75", 75), ("sm_90a", 90), ("sm_100f", 100), ("sm_120", 120)]
)
def test_arch_number(arch, number):
    assert arch_number(arch) == number


def test_every_kernel_but_five_runs_from_turing_on():
    later = {
        "cholesky_squares": 80,
        "solve_inverse": 80,
        "solve_definite": 80,
        "split_once": 90,
        "gemm_wgmma": 90,
    }
    for name in KERNELS:
        for arch in ("sm_75", "sm_80", "sm_89"):
            assert compiler.supported(name, arch) == (arch_number(arch) >= later.get(name, 75))
        assert compiler.supported(name, "sm_90a")
        assert not compiler.supported(name, "sm_70")


def test_the_sums_of_every_unit_are_compiled():
    needed = [
        emulated_sums(how.block, how.fraction, how.least, FORMATS[low].emin)
        for unit in UNITS.values()
        for low, how in unit.sums.items()
    ]
    assert all(defines in EMULATED_SUMS for defines in needed)
    assert all(defines in needed for defines in EMULATED_SUMS)


def test_wgmma_is_hoppers_alone():
    runs_on = [arch for arch in ARCHS if compiler.supported("gemm_wgmma", arch)]
    assert runs_on == ["sm_90a"]


def test_variants_are_those_an_architecture_runs():
    for name, spec in KERNELS.items():
        older, hopper = (
            [
                {macro: v[macro] for macro in v if macro != "DOMINANT"}
                for v in spec.variants_for(arch)
            ]
            for arch in ("sm_75", "sm_90a")
        )
        assert all(v in hopper for v in older)
        assert (len(older) < len(hopper)) == (name in ("panel", "triangular_solve", *PRODUCTS)), (
            name
        )
    for name in ("panel", "triangular_solve"):
        assert not any(v["BLOCKS"] for v in KERNELS[name].variants_for("sm_89")), name
    for arch, room in (("sm_80", 0), ("sm_90a", 1), ("sm_100a", 1), ("sm_120", 0)):
        assert {v["DOMINANT"] for v in KERNELS["panel"].variants_for(arch)} == {room}, arch


@pytest.mark.parametrize(
    "m, shape",
    [
        (1, (2, 128, 1, 32, 128, 128)),
        (256, (2, 128, 1, 32, 128, 128)),
        (257, (4, 128, 1, 32, 128, 128)),
        (512, (4, 128, 1, 32, 128, 128)),
        (513, (8, 128, 1, 32, 128, 128)),
        (1025, (16, 128, 1, 32, 128, 128)),
        (2048, (16, 128, 1, 32, 128, 128)),
        (2049, (16, 128, 2, 32, 128, 128)),
        (4096, (16, 128, 2, 32, 128, 128)),
        (4097, (16, 128, 3, 32, 128, 128)),
        (6144, (16, 128, 3, 32, 128, 128)),
        (6145, (16, 128, 4, 32, 128, 128)),
        (8192, (16, 128, 4, 32, 128, 128)),
        (8193, (16, 256, 3, 32, 128, 0)),
        (12288, (16, 256, 3, 32, 128, 0)),
        (12289, (16, 256, 4, 32, 128, 0)),
        (16384, (16, 256, 4, 32, 128, 0)),
        (16385, (16, 256, 6, 16, 64, 0)),
        (24576, (16, 256, 6, 16, 64, 0)),
        (24577, (16, 256, 8, 16, 64, 0)),
        (32768, (16, 256, 8, 16, 64, 0)),
    ],
)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_strip_is_factored_by_one_cluster_that_holds_it(arch, m, shape):
    assert panel_shape(m, arch, 132) == (True, *shape, True)


@pytest.mark.parametrize("m, columns", [(6144, 128), (6145, 96), (8192, 96), (8193, 128)])
def test_a_narrow_strip_is_one_that_shared_memory_holds(m, columns):
    narrow, wide = (panel_shape(m, "sm_90a", 132, narrow=x) for x in (True, False))
    assert narrow.strip == columns and wide.strip == 128
    assert narrow.resident == (m <= 8192) and wide.resident == (m <= 6144)
    assert not panel_shape(m, "sm_120", 132, narrow=True).resident


@pytest.mark.parametrize("m", [1, 2048, 6145, 8193, 16384, 16385, 24577, 32768, 32769])
def test_a_strip_of_many_rows_is_wider_where_its_diagonal_dominates(m):
    searched, dominant = (panel_shape(m, "sm_90a", 132, dominant=x) for x in (False, True))
    if 16384 < m <= 32768:
        assert (searched.strip, dominant.strip) == (64, 128)
        dominant = dominant._replace(strip=64, rows=searched.rows)
    assert searched == dominant


@pytest.mark.parametrize(
    "m, shape",
    [
        (1, (2, 128, 1, 32, 128, 128)),
        (1024, (8, 128, 1, 32, 128, 128)),
        (1025, (8, 128, 2, 32, 128, 128)),
        (2049, (8, 128, 3, 32, 128, 128)),
        (4096, (8, 128, 4, 32, 128, 128)),
    ],
)
@pytest.mark.parametrize("arch, largest", [("sm_120", 16), ("sm_120", 8), ("sm_90a", 8)])
def test_a_portable_cluster_has_eight_blocks(arch, largest, m, shape):
    assert panel_shape(m, arch, 132, largest) == (True, *shape, arch == "sm_90a")


@pytest.mark.parametrize("m, rows, width", [(8192, 4, 32), (16384, 8, 16)])
def test_a_portable_cluster_holds_more_rows_where_memory_is_large(m, rows, width):
    shape = (True, 8, 256, rows, width, 4 * width, 0, True)
    assert panel_shape(m, "sm_90a", 132, 8) == shape


@pytest.mark.parametrize(
    "m, arch, multiprocessors, blocks, rows",
    [
        (1, "sm_80", 108, 1, 1),
        (12288, "sm_80", 108, 48, 1),
        (12289, "sm_80", 108, 25, 2),
        (24577, "sm_80", 108, 49, 2),
        (55296, "sm_80", 108, 108, 2),
        (20000, "sm_86", 84, 40, 2),
        (43008, "sm_86", 84, 84, 2),
        (65536, "sm_89", 128, 128, 2),
        (10240, "sm_75", 40, 40, 1),
        (18432, "sm_75", 72, 72, 1),
        (32769, "sm_90a", 132, 33, 4),
        (65536, "sm_90a", 132, 64, 4),
        (135168, "sm_90a", 132, 132, 4),
        (151552, "sm_100a", 148, 148, 4),
        (17000, "sm_120", 170, 34, 2),
        (87040, "sm_120", 170, 170, 2),
    ],
)
def test_a_grid_factors_what_no_cluster_holds(m, arch, multiprocessors, blocks, rows):
    shape = panel_shape(m, arch, multiprocessors)
    assert shape == (False, blocks, 256, rows, 32, 128, 0, arch in ("sm_90a", "sm_100a"))


@pytest.mark.parametrize(
    "m, arch, blocks",
    [
        (256, "sm_90a", [2, 0]),
        (1025, "sm_90a", [16, 8, 0]),
        (5000, "sm_90a", [16, 8, 0]),
        (16384, "sm_90a", [16, 8, 0]),
        (16385, "sm_90a", [16, 0]),
        (32769, "sm_90a", [0]),
        (1025, "sm_120", [8, 0]),
        (1025, "sm_80", [0]),
        (10**6, "sm_90a", []),
    ],
)
def test_smaller_clusters_and_then_a_grid_follow_the_first_choice(m, arch, blocks):
    shapes = panel_shapes(m, arch, 132)

    assert [shape.blocks if shape.cluster else 0 for shape in shapes] == blocks
    assert shapes[:1] == tuple(s for s in [panel_shape(m, arch, 132)] if s)
    assert all(s.blocks * s.threads * s.rows >= m for s in shapes)
    # A strip may be as wide as the first shape allows; each shape for dominant strips must allow this width.
    dominant = panel_shapes(m, arch, 132, dominant=True)
    assert all(s.strip >= shapes[0].strip for s in dominant)


def test_without_clusters_a_grid_factors_every_strip():
    for m in (1, 256, 5000, 30000):
        assert not panel_shape(m, "sm_90a", 132, largest_cluster=0).cluster


@pytest.mark.parametrize(
    "m, arch, multiprocessors",
    [
        *((135169, "sm_90a", 132), (55297, "sm_80", 108), (43009, "sm_86", 84)),
        *((10241, "sm_75", 40), (87041, "sm_120", 170)),
    ],
)
def test_no_shape_holds_more_rows_than_the_device(m, arch, multiprocessors):
    assert panel_shape(m - 1, arch, multiprocessors) is not None
    assert panel_shape(m, arch, multiprocessors) is None


# Shared memory a block can ask for, in KB (CUDA C++ Programming Guide, technical specifications).
SHARED_KB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}
# Static shared memory of panel.cu; a test of its compilation checks this number.
STATIC_KB = 24


@pytest.mark.parametrize("dominant", [True, False])
@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("largest", [16, 8, 0])
@pytest.mark.parametrize("arch", [*ARCHS, "sm_87"])
def test_every_panel_shape_holds_its_rows_fits_the_device_and_is_compiled(
    arch, largest, narrow, dominant
):
    variants = KERNELS["panel"].variants_for(arch)
    sizes = sorted({max(1, 2**i + d) for i in range(19) for d in (-1, 0, 1)} | {3000, 50000})
    for multiprocessors in (1, 20, 40, 68, 84, 108, 132, 144, 188, 300):
        args = (multiprocessors, largest, narrow, dominant)
        shapes = [panel_shape(m, arch, *args) for m in sizes]
        held = [shape is not None for shape in shapes]
        assert held == sorted(held, reverse=True)
        for m, shape in zip(sizes, shapes, strict=True):
            if shape is None:
                continue
            assert shape.blocks * shape.threads * shape.rows >= m
            assert shape.defines in variants
            most = SHARED_KB[arch_number(arch)] - STATIC_KB
            assert shape.shared_bytes <= most << 10, (m, shape)
            if shape.cluster:
                assert arch_number(arch) >= 90
                assert 2 <= shape.blocks <= largest
            else:
                assert shape.blocks <= min(multiprocessors, 256)


def test_the_macros_of_a_shape_tell_a_cluster_from_a_grid():
    cluster, grid = (PanelShape(kind, 8, 256, 2, 32, 128, dominant=kind) for kind in (True, False))
    rest = {"THREADS": 256, "HELPERS": 0, "ROWS": 2, "WIDTH": 32, "STRIP": 128, "RESIDENT": 0}
    assert cluster.defines == {"BLOCKS": 8, **rest, "DOMINANT": 1}
    assert grid.defines == {"BLOCKS": 0, **rest, "DOMINANT": 0}


@pytest.mark.parametrize("n", [1, 255, 256, 511, 512, 1024, 2048, 10**5])
def test_staged_rows_fit_in_shared_memory_of_many_blocks(n):
    for count in (1, 64, 512, 513, 1024, 1025, 2048, 2049, 4096):
        chunk = move_chunk(count, n)
        assert 4 * count * chunk <= 64 << 10
        assert {"CHUNK": chunk} in KERNELS["move_rows"].variants
        assert chunk == 4 or n // chunk >= 64
        assert chunk == 32 or 4 * count * 2 * chunk > 64 << 10 or n < 64 * 2 * chunk
    with pytest.raises(ValueError, match="4097"):
        move_chunk(4097, n)


@pytest.mark.parametrize(
    "count, arch, multiprocessors, blocks, cluster",
    [
        (64, "sm_80", 108, 64, 0),
        (512, "sm_89", 142, 142, 0),
        (1, "sm_90a", 132, 8, 8),
        (8, "sm_90a", 132, 8, 8),
        (9, "sm_90a", 132, 16, 8),
        (256, "sm_90a", 132, 128, 8),
        (256, "sm_90a", 7, 7, 0),
        (64, "sm_120", 170, 64, 8),
    ],
)
def test_a_triangle_is_solved_by_whole_clusters_where_there_are_any(
    count, arch, multiprocessors, blocks, cluster
):
    first, *others = shapes = trsv_shapes(count, arch, multiprocessors)

    assert first == (blocks, cluster)
    # The last shape has no cluster, for devices that refuse to launch one.
    assert [shape.cluster for shape in others] == ([0] if cluster else [])
    variants = KERNELS["triangular_solve"].variants_for(arch)
    for shape in shapes:
        assert 1 <= shape.blocks <= multiprocessors
        assert any(shape.defines.items() <= v.items() for v in variants)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("rows", [2, 128, 256])
def test_swap_shapes_fit_and_take_more_columns_where_there_are_more(rows, arch):
    limit = (64 if arch == "sm_75" else 99) << 10
    shapes = [swap_shape(n, rows, arch) for n in (1, 512, 1536, 1537, 6144, 6145, 10**6)]
    assert all(shape.shared_bytes(rows) + 1024 <= limit for shape in shapes)
    columns = [shape.columns for shape in shapes]
    assert columns == sorted(columns) and columns[0] == 8 and columns[3] == 16
    assert columns[-1] == (64 if rows <= 128 and arch != "sm_75" or rows == 2 else 16)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("k", [1, 176, 177, 256, 257, 288, 289, 512, 513])
def test_a_lower_shape_fits_or_there_is_none(k, arch):
    shape = lower_shape(k, arch)
    large = arch in ("sm_90a", "sm_100a")
    most = 176 if arch == "sm_75" else 512 if large else 288
    assert (shape is not None) == (k <= most)
    if shape:
        limit = {"sm_75": 64}.get(arch, 227 if large else 99) << 10
        assert k <= shape.most and shape.shared_bytes(k) + 1040 <= limit
        assert shape.defines in KERNELS["lower_solve"].variants_for(arch)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89"])
def test_without_clusters_nothing_is_split_in_one_pass(arch):
    assert split_shape(((True, 1, 1), (False, 1, 1)), arch) is None


@pytest.mark.parametrize(
    "matrix, threads, share, blocks",
    [
        ((True, 100, 1), 256, 1, 16),
        ((True, 100, 2049), 256, 2, 32),
        ((True, 3, 16384), 256, 8, 8),
        ((True, 3, 16385), 512, 16, 8),
        ((False, 1, 70), 256, 32, 8),
        ((False, 1025, 70), 256, 16, 16),
        ((False, 4096, 70), 256, 8, 24),
        ((False, 4097, 70), 512, 8, 24),
        ((False, 16384, 70), 512, 4, 40),
    ],
)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120"])
def test_the_split_shape_holds_whole_rows_and_columns(matrix, threads, share, blocks, arch):
    by_row, rows, cols = matrix
    shape = split_shape((matrix, (True, 1, 1)), arch)

    assert shape == (threads, (share, 1), (blocks, 8))
    # A thread keeps 64 entries.  If rows are scaled, `share` warps hold a row.  If columns are scaled,
    # `share` lanes share a row, and each lane has 4 columns.
    if by_row:
        assert share * 32 * 64 >= cols and blocks * (threads // 32) >= rows * share
    else:
        assert 8 * threads // share * 16 >= rows and blocks // 8 * share * 4 >= cols


@pytest.mark.parametrize("matrix", [(True, 1, 32769), (False, 16385, 1)])
def test_what_no_cluster_holds_is_split_in_two_passes(matrix):
    assert split_shape(((True, 1, 1), matrix), "sm_90a") is None


# ---- small systems -----------------------------------------------------------------------------


SMALL_SYSTEMS = "solve_thread", "solve_team", "solve_inverse", "solve_jordan"
SMALL_SYSTEMS += "solve_cholesky", "solve_block"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", "fdFD")
def test_small_systems_have_a_launch_shape_that_is_compiled_and_fits(arch, dtype):
    dtype = np.dtype(dtype)
    number = {"T_A": "float" if dtype.char in "fF" else "double", "COMPLEX": int(dtype.kind == "c")}
    known = {
        name: {frozenset(v.items()) for v in KERNELS[name].variants_for(arch)}
        for name in SMALL_SYSTEMS
        if compiler.supported(name, arch)
    }
    limit = 227 << 10 if arch in ("sm_90a", "sm_100a") else shared_bytes(arch)
    largest, names = 0, set()
    bands = ((False, False), (True, False), (True, True))
    for n, k, (banded, definite) in itertools.product(
        range(1, 1100), (1, 2, 3, 6, 7, 20, 40), bands
    ):
        how = {"arch": arch, "multiprocessors": 132, "definite": definite}
        shape = solve_shape(1000, n, k, dtype, banded, **how)
        if shape is None:
            continue
        assert frozenset((number | shape.defines).items()) in known[shape.name]
        assert n <= shape.defines.get("MOST", 216) and 0 < shape.blocks <= 1000 * 32
        assert shape.shared <= limit and (shape.work > 0) == (shape.name == "solve_block")
        assert shape.probes >= (1 if dtype.char in "dD" else 2)
        if before := shape.before:
            assert frozenset((number | before.defines).items()) in known[before.name]
            assert n <= before.defines["MOST"] and before.shared <= limit
            systems = (
                before.threads // before.defines["LANES"] if before.name == "solve_team" else 1
            )
            assert (before.blocks - 1) * systems < 1000 <= before.blocks * systems
            assert k <= 2 and shape.name in ("solve_jordan", "solve_block")
            names.add(before.name)
        largest, names = max(largest, n if k == 1 else 0), names | {shape.name}
    assert names == set(known) - ({"solve_cholesky"} if dtype.kind == "c" else set())
    assert largest >= (1024 if limit > 200_000 else 88)


@pytest.mark.parametrize(
    "dtype, narrow, wide", [("d", 31, 63), ("f", 30, 62), ("D", 15, 31), ("F", 14, 30)]
)
def test_more_right_hand_sides_take_wider_block_columns(dtype, narrow, wide):
    """Up to `narrow` columns of b, the shape is that for 8; up to `wide`, block columns are twice as wide."""
    for n in (2, 64, 65, 128, 129, 256, 257):
        shapes = [
            solve_shape(50, n, k, np.dtype(dtype), False, arch="sm_90a", multiprocessors=132)
            for k in (8, narrow, narrow + 1, wide, wide + 1)
        ]
        assert all(
            (k + shape.probes) % 8 == 0 for k, shape in zip((8, narrow), shapes, strict=False)
        )
        shapes = [shape and shape._replace(probes=0) for shape in shapes]
        assert shapes[0] == shapes[1] and shapes[2] == shapes[3] and shapes[4] is None
        assert (shapes[2] is None) == (n > 256)
        if shapes[2]:
            assert shapes[2].defines["WIDTH"] == 2 * shapes[0].defines["WIDTH"]


@pytest.mark.parametrize(
    "dtype, most, columns", [("d", 96, 7), ("f", 96, 6), ("D", 64, 7), ("F", 64, 6)]
)
def test_few_columns_of_small_systems_are_eliminated_with_the_matrix(dtype, most, columns):
    """The random vectors fill the places that the right-hand sides leave."""

    def shape(n, k, count=9, alone=False):
        how = {"arch": "sm_90a", "multiprocessors": 132, "alone": alone}
        return solve_shape(count, n, k, np.dtype(dtype), False, **how)

    for n in (2, 17, 24, 33, most):
        for k in (2, columns):
            assert shape(n, k).name == "solve_jordan" and shape(n, k).probes == 8 - k
        assert shape(n, columns + 1).name == "solve_block"
    assert shape(most, 1).name == "solve_jordan" and shape(most + 1, 1).name == "solve_block"
    assert shape(2, 1).name == "solve_thread"
    args = 9, most, 2, np.dtype(dtype), True
    banded = solve_shape(*args, arch="sm_90a", multiprocessors=132)
    assert banded.name == ("solve_jordan" if most <= 64 else "solve_block")
    # The blocks of a single system share its right-hand sides.
    for k, blocks in ((columns, 1), (columns + 1, 2), (8 * columns, 8)):
        alone = shape(most, k, 1, alone=True)
        assert alone.name == "solve_jordan" and alone.blocks == blocks
        assert (blocks - 1) * alone.share < k <= blocks * alone.share
        assert alone.probes == 8 - alone.share
    more = shape(most, 8 * columns + 1, 1, alone=True)
    assert more is None or more.name == "solve_block"
    # A stack of one has the kernel of a longer stack, so it has the same bits.
    assert shape(most, columns + 1, 1).name == "solve_block"


@pytest.mark.parametrize("arch, most", [("sm_75", 112), ("sm_89", 144), ("sm_90a", 216)])
@pytest.mark.parametrize("dtype, columns", [("d", 7), ("f", 6)])
def test_real_positive_definite_systems_have_cholesky_factors(arch, most, dtype, columns):
    """Few columns of b take the memory of eight; the random vectors fill the places that are left."""

    def shape(n, k=1, **how):
        how = {"arch": arch, "multiprocessors": 9, "definite": True} | how
        return solve_shape(50, n, k, np.dtype(dtype), True, **how)

    by_inverse = {"d": 48, "f": 64}[dtype] if arch != "sm_75" else 32
    for n in (by_inverse + 1, 112, most):
        assert shape(n).name == "solve_cholesky" and shape(n).probes == 7
        assert shape(n, columns) == shape(n)._replace(probes=8 - columns)
        if n < most:
            assert shape(n, columns + 1).shared > shape(n).shared
        assert shape(n, definite=False).name != "solve_cholesky"
        assert shape(n, alone=True).threads >= 256
    assert shape(by_inverse).name != "solve_cholesky"
    assert (larger := shape(most + 1)) is None or larger.name == "solve_block"


@pytest.mark.parametrize("dtype", "fdFD")
def test_an_inverse_in_fp32_comes_before_a_kernel_that_solves_what_it_leaves(dtype):
    """Not for triangles or many right-hand sides; on Turing, only for the smallest ones."""

    def shape(n, k=1, count=9000, **how):
        how = {"arch": "sm_90a", "multiprocessors": 132} | how
        return solve_shape(count, n, k, np.dtype(dtype), how.pop("banded", False), **how)

    sizes = [n for n in range(1, 200) if shape(n).before]
    assert sizes[0] == (9 if dtype in "df" else 5) and sizes[-1] == 128
    of_team = [n for n in sizes if shape(n).before.name == "solve_team"]
    assert of_team == list(range(sizes[0], 25))
    assert all(shape(n, 2).before for n in range(1, sizes[-1]))
    for n in sizes:
        assert n in of_team or shape(n).before.name == "solve_inverse"
        assert shape(n).blocks <= 132 * shape(n).defines["RESIDENT"]
        assert shape(n, count=1).blocks == shape(n, count=1, alone=True).before.blocks == 1
        if (partly_read := shape(n, banded=True).before) and n not in of_team:
            assert partly_read.defines["CHUNK"] == partly_read.defines["MOST"]
        others = shape(n, 3), shape(n, banded=True, triangle=True)
        assert not any(other and other.before for other in others)
        on_turing = shape(n, arch="sm_75")
        assert bool(on_turing and on_turing.before) == (n in of_team)


@pytest.mark.parametrize("arch", ["sm_75", "sm_89"])
def test_wider_block_columns_fit_in_little_shared_memory_where_matrices_are_small(arch):
    def has_home(n, k, dtype):
        shape = solve_shape(50, n, k, np.dtype(dtype), True, arch=arch, multiprocessors=40)
        return shape is not None

    assert has_home(64, 30, "D") and has_home(48, 62, "d")
    assert not has_home(200, 30, "D") and not has_home(256, 62, "d")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", "fdFD")
def test_one_system_is_shared_out_among_blocks_where_fp64_is_fast(arch, dtype):
    dtype = np.dtype(dtype)
    number = {"T_A": "float" if dtype.char in "fF" else "double", "COMPLEX": int(dtype.kind == "c")}
    known = {frozenset(v.items()) for v in KERNELS["solve_across"].variants_for(arch)}
    used = set()
    most = 1024 if dtype.kind == "c" else 1536
    for n, columns in itertools.product(range(1, 1600), (3, 18, 300, 2500)):
        shape = across_shape(n, columns, dtype, arch=arch, multiprocessors=132)
        if arch not in ("sm_80", "sm_90a", "sm_100a") or n > most:
            assert shape is None
            continue
        width = 8 if dtype.kind == "c" or n > 1024 else 16
        blocks = -(-n // width) + -(-columns // width)
        assert (shape is None) == (blocks > 264)
        if shape:
            used.add(frozenset((number | shape.defines).items()))
            assert shape.name == "solve_across" and shape.shared == 0
            assert shape.blocks == blocks and n <= shape.defines["MOST"]
            assert shape.room == (n + n % 2) * shape.defines["MOST"]
    shapes = 6 if dtype.kind == "c" else 7
    assert used <= known and len(used) == (shapes if arch in ("sm_80", "sm_90a", "sm_100a") else 0)
    assert across_shape(1024, 3, dtype, arch=arch, multiprocessors=30) is None


@pytest.mark.parametrize("arch, most", [("sm_75", 0), ("sm_80", 728), ("sm_90a", 1752)])
@pytest.mark.parametrize("dtype", "fd")
def test_definite_systems_have_a_kernel_of_their_own_where_it_fits(arch, most, dtype):
    chip = {"arch": arch, "multiprocessors": 132}
    for n, columns in itertools.product(range(1, 1600), (3, 18, 2500)):
        shape = across_shape(n, columns, np.dtype(dtype), definite=True, **chip)
        squares = -(-n // 16)
        if 16 * squares > most:
            assert shape == across_shape(n, columns, np.dtype(dtype), **chip)
            continue
        blocks = squares + -(-columns // 16)
        assert (shape is None) == (blocks > 264)
        if shape:
            known = {"T_A": "float" if dtype == "f" else "double", "COMPLEX": 0} | shape.defines
            assert known in KERNELS["solve_definite"].variants_for(arch)
            assert shape.name == "solve_definite" and shape.blocks == blocks
            assert shape.room == 256 * squares * (squares + 1) + 2
            assert shape.shared + 8192 <= (227 << 10 if arch == "sm_90a" else 99 << 10)
    complex_shape = across_shape(100, 3, np.dtype("D"), definite=True, **chip)
    assert complex_shape == across_shape(100, 3, np.dtype("D"), **chip)


@pytest.mark.parametrize("period", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 33])
def test_each_square_is_updated_by_all_columns_of_l_before_its_own(rows, period):
    done = {(row, column): set() for row in range(rows) for column in range(row + 1)}
    for j in range(rows):
        squares = [(row, j, j - 1) for row in range(j + 1, rows)]
        for column in range(j + 1, rows, period):
            squares += [(row, column, max(0, j - period)) for row in range(column, rows)]
        assert updated_squares(rows, j, period) == (len(squares) if j else 0)
        for row, column, first in (*squares, (j, j, j - 1)):
            columns = set(range(max(0, first), j))
            assert not columns & done[row, column]
            done[row, column] |= columns
        assert all(done[row, j] == set(range(j)) for row in range(j, rows))


@pytest.mark.parametrize("arch, most", [("sm_80", 960), ("sm_90a", 2048), ("sm_100a", 2048)])
def test_factors_in_squares_fit_in_shared_memory(arch, most):
    limit = LARGEST_SHARED_BYTES if most == 2048 else shared_bytes(arch)
    assert largest_in_squares(arch) == most
    assert square_solve_bytes(most) <= limit and SQUARE_RING + 1024 <= limit


@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_89", "sm_120"])
def test_there_are_no_factors_in_squares_where_the_rate_in_fp64_is_low(arch):
    assert largest_in_squares(arch) == 0


def test_the_host_has_room_for_all_systems_that_a_kernel_tells():
    assert f"constexpr int TOLD = {TOLD};" in compiler.source("small_solve.cuh")
