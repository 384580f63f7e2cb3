"""Which clusters are launched: those that the driver allows and accepts, also in other contexts."""

import ctypes

import numpy as np
import pytest
from switches import skip_or_fail

import tcsolve
from tcsolve import matrices
from tcsolve._backends.cuda.runtime.launch_counter import counted


@pytest.fixture
def clusters(nvrtc):
    """The module that asks the driver; it needs CuPy, but no device."""
    from tcsolve._backends.cuda.runtime import cluster_launch

    return cluster_launch


def variant(clusters, cluster, kernel="panel"):
    return clusters.Variant(kernel, "entry", (("BLOCKS", cluster),), cluster, 256, 1 << 16)


def refusal(status):
    """Return an error of the driver with a status, of the class that CuPy raises."""
    from cupy_backends.cuda.api.driver import CUDADriverError

    error = CUDADriverError.__new__(CUDADriverError)
    error.status = status
    return error


def test_a_question_is_asked_once_for_a_variant_and_a_context(clusters):
    asked, context = [], ["first"]
    known = clusters.Clusters(
        lambda v: asked.append((context[0], v.cluster)) or v.cluster <= 8, lambda: context[0]
    )
    both = [variant(clusters, 16), variant(clusters, 8)]
    assert all(known.may_fit(v) for v in both) and not asked

    for name in ("first", "second", "first"):
        context[0] = name
        for _ in range(3):
            assert [known.fits(v) for v in both] == [False, True]
            assert [known.may_fit(v) for v in both] == [False, True]

    assert asked == [("first", 16), ("first", 8), ("second", 16), ("second", 8)]


@pytest.mark.parametrize("status", [701, 720, 912])
def test_a_launch_that_is_refused_falls_back_and_is_not_tried_again_there(status, clusters):
    tried, place = [], ["green"]
    known = clusters.Clusters(lambda v: 1, lambda: 0, lambda: place[0])

    def launch(shape):
        tried.append((place[0], shape))
        if place[0] == "green" and shape > 4:
            raise refusal(status)

    assert known.launch("panel", [16, 8, 4], launch) and known.launch("panel", [16, 8, 4], launch)
    place[0] = "all"
    assert known.launch("panel", [16, 8, 4], launch)
    place[0] = "green"
    assert not known.launch("panel", [16, 8], launch)
    assert not known.launch("panel", [], launch)

    assert tried == [("green", 16), ("green", 8), ("green", 4), ("green", 4), ("all", 16)]


@pytest.mark.parametrize("status", [1, 2, 700, 719])
def test_other_errors_of_a_launch_are_raised(status, clusters):
    from cupy_backends.cuda.api.driver import CUDADriverError

    known = clusters.Clusters(lambda v: 1, lambda: 0, lambda: 0)

    def launch(shape):
        raise refusal(status)

    with pytest.raises(CUDADriverError):
        known.launch("panel", [16, 8], launch)


# ---- on a device -----------------------------------------------------------------------------------------


def largest(clusters, size):
    """Return the `Clusters` of a device that runs no cluster of more than `size` blocks."""
    return clusters.Clusters(lambda v: int(v.cluster <= size))


def systems(cupy, n):
    for name in ("gauss", "svd_geo"):
        problem = matrices.generate(name, n, nrhs=2)
        yield cupy.asarray(problem.a), cupy.asarray(problem.b)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [8, 0])
@pytest.mark.parametrize("precision", ["auto", "fp16", "fp16x3"])
@pytest.mark.parametrize("n", [100, 700, 2000, 5000])
def test_a_device_with_smaller_clusters_gives_the_same_answers(n, precision, size, cupy, clusters):
    for a, b in systems(cupy, n):
        tcsolve.clear_cache()
        expected = tcsolve.solve_ex(a, b, precision=precision)
        tcsolve.clear_cache()
        with clusters.answered_by(largest(clusters, size)):
            # Launches, and replays where the factorization is recorded.
            found = [tcsolve.solve_ex(a, b, precision=precision) for _ in range(4)]
        for x in found:
            assert x.status is expected.status and (x.backward_error <= x.bound).all()
            assert (x.x == found[0].x).all()  # the same input, the same bits
            if n <= 2000:  # with any cluster size, the strips have the same widths
                assert (x.x == expected.x).all()
    tcsolve.clear_cache()


@pytest.mark.gpu
def test_products_split_in_two_passes_where_there_are_no_clusters(hopper, clusters):
    rng = hopper.random.default_rng(1)
    a, b = (rng.standard_normal((311, 311)).astype(np.float32) for _ in range(2))

    def product():
        with counted() as launches:
            return tcsolve.gemm(a, b, precision="fp16", refine="ab"), launches["tcs_split_once"]

    # First without clusters: with them, a second product would repeat the launches of the first.
    with clusters.answered_by(largest(clusters, 0)):
        found, in_one_pass = product()
    expected, with_clusters = product()

    assert (in_one_pass, with_clusters) == (0, 1) and (found == expected).all()


@pytest.mark.gpu
def test_the_driver_has_room_for_the_clusters_that_are_used(hopper, clusters):
    """On a whole device, without partitions; the driver is asked only once for each variant."""
    asked = []
    known = clusters.Clusters(lambda v: asked.append(v) or clusters.ask_driver(v))
    with clusters.answered_by(known):
        for a, b in systems(hopper, 3000):
            for _ in range(2):
                tcsolve.solve(a, b, precision="fp16x3")
    assert {16, 8} <= {v.cluster for v in asked} and len(set(asked)) == len(asked)
    assert all(known.fits(v) for v in asked)


# A context of few multiprocessors, made by the driver's own functions: CuPy has none for it.


NOT_SUPPORTED = 801  # CUDA_ERROR_NOT_SUPPORTED


def called(driver, name, *args):
    status = getattr(driver, name)(*args)
    if status == NOT_SUPPORTED:
        skip_or_fail(f"{name}: no green contexts on this device", "TCSOLVE_REQUIRE_GREEN_CONTEXTS")
    assert status == 0, f"{name} fails with CUresult {status}"


class Foreign:
    """A stream by its address, as another library hands it over."""

    def __init__(self, address):
        self._address = address

    def __cuda_stream__(self):
        return 0, self._address


@pytest.fixture
def green_stream(cupy):
    """Return a function count -> stream of a green context with `count` multiprocessors."""
    driver = ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "cuGreenCtxStreamCreate"):
        skip_or_fail("this driver has no green contexts", "TCSOLVE_REQUIRE_GREEN_CONTEXTS")
    kept, device = [], cupy.cuda.runtime.getDevice()
    cupy.cuda.runtime.free(0)  # creates the primary context

    def make(count):
        whole, part, rest = (ctypes.create_string_buffer(256) for _ in range(3))
        number, description = ctypes.c_uint(1), ctypes.c_void_p()
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        called(driver, "cuDeviceGetDevResource", device, whole, 1)  # CU_DEV_RESOURCE_TYPE_SM
        split = (part, ctypes.byref(number), whole, rest, 0, count)
        called(driver, "cuDevSmResourceSplitByCount", *split)
        called(driver, "cuDevResourceGenerateDesc", ctypes.byref(description), part, 1)
        create = (ctypes.byref(context), description, device, 1)  # CU_GREEN_CTX_DEFAULT_STREAM
        called(driver, "cuGreenCtxCreate", *create)
        called(driver, "cuGreenCtxStreamCreate", ctypes.byref(stream), context, 1, 0)
        kept.append((context, stream))
        return cupy.cuda.Stream.from_external(Foreign(stream.value))

    yield make
    cupy.cuda.Device().synchronize()
    for context, stream in kept:
        driver.cuStreamDestroy_v2(stream)
        driver.cuGreenCtxDestroy(context)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [8, 16, 32, 64])
def test_a_green_context_of_few_multiprocessors_gives_the_same_bits(count, cupy, green_stream):
    n = 2000
    for a, b in systems(cupy, n):
        tcsolve.clear_cache()
        expected = tcsolve.solve_ex(a, b, precision="fp16x3")
        cupy.cuda.Device().synchronize()
        with green_stream(count) as stream:
            for _ in range(4):
                found = tcsolve.solve_ex(a, b, precision="fp16x3")
                assert (found.x == expected.x).all() and found.rungs == expected.rungs
            stream.synchronize()
    # The whole device goes on as before.
    again = tcsolve.solve_ex(a, b, precision="fp16x3")
    assert (again.x == expected.x).all()
