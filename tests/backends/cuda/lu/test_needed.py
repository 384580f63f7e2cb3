"""The list of kernels that are compiled before they are launched; no device is needed for it."""

import pytest
from tcsolve.kernels.arch import ARCHS
from tcsolve.kernels.registry import KERNELS

from tcsolve._backends.cuda.lu.needed import kernels_of

SIZES = (1, 100, 600, 1024, 2048, 4096, 8192, 16384, 32768)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("char, factors", [("d", "f"), ("f", "f"), ("d", None), ("f", None)])
def test_every_kernel_of_the_list_is_one_that_the_device_runs(arch, char, factors):
    for n in SIZES:
        for name, macros in kernels_of(n, char, factors, arch, 132):
            assert macros in KERNELS[name].variants_for(arch), (n, name)


def test_a_first_solve_compiles_few_variants():
    counts = [len(kernels_of(n, "d", "f", "sm_90a", 132)) for n in SIZES]
    assert counts == sorted(counts)
    assert counts[SIZES.index(2048)] <= 26 and counts[SIZES.index(8192)] <= 37
    assert len(kernels_of(8192, "d", None, "sm_90a", 132)) <= 12
    assert kernels_of(8192, "D", "F", "sm_90a", 132) == []


def test_what_is_launched_first_is_compiled_first():
    names = [name for name, _ in kernels_of(8192, "d", "f", "sm_90a", 132)]
    order = ("survey", "panel", "swap_solve", "gemm_wgmma", "refinement_vectors")
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)


@pytest.mark.parametrize("arch, has_clusters", [("sm_80", False), ("sm_90a", True)])
def test_a_device_compiles_for_what_it_has(arch, has_clusters):
    found = kernels_of(4096, "d", "f", arch, 108)
    assert any(macros.get("BLOCKS") for _, macros in found) == has_clusters
    assert any(name == "gemm_wgmma" for name, _ in found) == has_clusters
    assert any(name == "pack_operands" for name, _ in found) != has_clusters
