"""Which devices are used, and when: old cards, missing libraries, CUDA graphs that the caller captures."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import tcsolve
from tcsolve import matrices
from tcsolve._backends.select import why_unsupported


def loads():
    pass


def fails():
    raise ImportError("libcublas.so.13: cannot open")


@pytest.mark.parametrize("capability", [35, 60, 61, 70, 72])
def test_a_device_that_is_too_old_for_the_kernels_is_not_used(capability):
    reason = why_unsupported(capability, loads)

    assert "7.5 or later" in reason and str(capability / 10) in reason


@pytest.mark.parametrize("capability", [75, 80, 86, 89, 90, 100, 120])
def test_a_device_needs_its_libraries_too(capability):
    assert why_unsupported(capability, loads) is None
    reason = why_unsupported(capability, fails)
    assert "libcublas.so.13" in reason and "pip install" in reason


# A pretended CuPy with one device.  It is used in another process, so that no cached answer affects other
# tests.
OTHER_DEVICE = """
    import sys
    from types import SimpleNamespace as Some

    class Device:
        def __init__(self, number):
            self.compute_capability = {capability!r}

    class CUDARuntimeError(RuntimeError):
        pass

    runtime = Some(getDeviceCount=lambda: 1, getDevice=lambda: 0, CUDARuntimeError=CUDARuntimeError)
    class ndarray:
        pass
    sys.modules["cupy"] = Some(
        __spec__=Some(), ndarray=ndarray, cuda=Some(runtime=runtime, Device=Device)
    )
    for name in {missing!r}:
        sys.modules[name] = None

    import numpy as np
    import tcsolve
    from tcsolve._backends.select import numpy_ops
    from tcsolve._solve.choice.placement import target_ops

    a = np.broadcast_to(0.0, (20000, 20000))  # a size for which a device is worth its transfers
    assert target_ops(numpy_ops, a, 1, "auto", "auto") is numpy_ops
    assert tcsolve.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0]).tolist() == [1.0, 1.0]
    try:
        tcsolve.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0], device="cuda")
    except tcsolve.DeviceError as error:
        print(error)
"""


@pytest.mark.parametrize(
    "capability, missing, told",
    [
        ("70", [], "7.5 or later, and this device has 7.0; device='cpu' needs no GPU"),
        ("60", [], "7.5 or later, and this device has 6.0; device='cpu' needs no GPU"),
        ("90", ["cupy_backends.cuda.libs.cublas"], "cannot load a CUDA library"),
    ],
)
def test_auto_solves_on_the_host_where_the_device_cannot(capability, missing, told):
    script = textwrap.dedent(OTHER_DEVICE).format(capability=capability, missing=missing)
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert told in done.stdout


def public_calls(cupy, a, b):
    """Return public calls that use the device, by name; their factors exist already."""
    f, inverse = tcsolve.factor(a), cupy.linalg.inv(a)
    stack = cupy.stack([a, a])
    of_stack = tcsolve.factor(stack)
    return {
        "solve": lambda: tcsolve.solve(a, b),
        "solve_ex": lambda: tcsolve.solve_ex(a, b),
        "factor": lambda: tcsolve.factor(a),
        "refine": lambda: tcsolve.refine(a, b, lambda r: inverse @ r),
        "Factorization.solve": lambda: f.solve(b),
        "Factorization.rcond": lambda: f.rcond(),
        "Factorization.slogdet": lambda: f.slogdet(),
        "factor, a stack": lambda: tcsolve.factor(stack),
        "StackFactorization.solve": lambda: of_stack.solve(b),
        "StackFactorization.rcond": lambda: of_stack.rcond(),
        "StackFactorization.slogdet": lambda: of_stack.slogdet(),
        "clear_cache": tcsolve.clear_cache,
        "device='cuda'": lambda: tcsolve.solve(np.eye(2), np.ones(2), device="cuda"),
    }


@pytest.mark.gpu
def test_a_capture_of_the_caller_is_refused_and_stays_valid(cupy):
    problem = matrices.generate("gauss", 300)
    a, b = cupy.asarray(problem.a), cupy.asarray(problem.b)
    calls = public_calls(cupy, a, b)
    count, stream = cupy.zeros(1), cupy.cuda.Stream(non_blocking=True)
    count += 1
    cupy.cuda.Device().synchronize()

    with stream:
        stream.begin_capture()
        count += 1
        for name, call in calls.items():
            with pytest.raises(tcsolve.DeviceError, match="is capturing a CUDA graph"):
                call()
            assert stream.is_capturing(), name
        count += 1
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()

    assert count.get() == 3  # both launches were captured, and no refused call broke the capture
    assert (tcsolve.solve_ex(a, b).backward_error <= tcsolve.solve_ex(a, b).bound).all()


@pytest.mark.gpu
def test_auto_solves_on_the_host_during_a_capture(cupy):
    a = np.broadcast_to(0.0, (20000, 20000))
    from tcsolve._backends.select import numpy_ops
    from tcsolve._solve.choice.placement import target_ops

    assert target_ops(numpy_ops, a, 1, "auto", "auto").device == "cuda"
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        assert target_ops(numpy_ops, a, 1, "auto", "auto") is numpy_ops
        stream.end_capture()
