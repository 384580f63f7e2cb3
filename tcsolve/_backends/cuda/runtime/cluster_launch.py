"""Clusters of thread blocks: ask whether the current context can run them, and launch kernels with them."""

import contextlib
import ctypes
import functools
from typing import NamedTuple

import cupy
from cupy_backends.cuda.api import driver

from tcsolve._backends.cuda.runtime import compiler

__all__ = ["Clusters", "Variant", "answered_by", "in_force"]

# The status codes of a launch that is too large for the device: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
# CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, CUDA_ERROR_INVALID_CLUSTER_SIZE.
TOO_LARGE = (701, 720, 912)
INVALID_CLUSTER_SIZE = 912
# CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
CLUSTER_DIMENSION = 4


class Variant(NamedTuple):
    """A kernel that is compiled for a cluster, with the threads and the shared memory of a block."""

    kernel: str
    entry: str
    defines: tuple
    cluster: int
    threads: int
    shared: int = 0


class Clusters:
    """The clusters that the devices and contexts of this process can run, as far as this is known.

    Parameters
    ----------
    ask : callable
        ask(variant) returns how many clusters of a `Variant` can run at the same time in the current context
        of the current device.  It is called once for each variant, device and context.
    context, place : callable
        context() returns a key of the current context.  place() returns a key of the context and of the green
        context of the current stream.
    """

    def __init__(self, ask, context=None, place=None):
        self._ask, self._answers, self._refused = ask, {}, set()
        self._context, self._place = context or present_context, place or present_place

    def fits(self, variant):
        """Tell whether a cluster of a `Variant` can run in the current context."""
        key = self._context(), variant
        if key not in self._answers:
            self._answers[key] = self._ask(variant) > 0
        return self._answers[key]

    def may_fit(self, variant):
        """Return the answer of `fits` if it is known already, else True."""
        return self._answers.get((self._context(), variant), True)

    def launch(self, kernel, shapes, launch):
        """Call launch(shape) for the first shape that the device accepts; return whether there was one.

        A launch may fail although `fits` is True.  A shape that was refused is not tried again in the same
        context and green context.
        """
        place = self._place() if self._refused else None
        for shape in shapes:
            if place is not None and (place, kernel, shape) in self._refused:
                continue
            try:
                launch(shape)
            except driver.CUDADriverError as error:
                if error.status not in TOO_LARGE:
                    raise
                self._refused.add((self._place(), kernel, shape))
            else:
                return True
        return False


def present_context():
    """Return the current device and the handle of the current context."""
    return cupy.cuda.runtime.getDevice(), driver.ctxGetCurrent()


def present_place():
    """Return the current context, and the green context of the current stream if it has one."""
    green = ctypes.c_void_p()
    find = _function("cuStreamGetGreenCtx")
    if find is not None:
        find(ctypes.c_void_p(cupy.cuda.get_current_stream().ptr), ctypes.byref(green))
    return present_context(), green.value


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute"""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class _Config(ctypes.Structure):
    """CUlaunchConfig"""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


def ask_driver(variant):
    """Return how many clusters of a `Variant` can run at the same time, by cuOccupancyMaxActiveClusters.

    Return 0 if the driver does not allow the size.  Return 1 if the driver does not have this function, or
    reports another error; then the launch shows whether a cluster can run.
    """
    ask = _function("cuOccupancyMaxActiveClusters")
    if ask is None:
        return 1
    kernel = compiler.kernel(variant.kernel, variant.entry, **dict(variant.defines))
    size = variant.cluster
    attribute = _Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(size, 1, 1))
    config = _Config((size, 1, 1), (variant.threads, 1, 1), variant.shared)
    config.attributes, config.count = ctypes.pointer(attribute), 1
    found = ctypes.c_int()
    function = ctypes.c_void_p(kernel.handle(variant.shared))
    status = ask(ctypes.byref(found), function, ctypes.byref(config))
    if status == INVALID_CLUSTER_SIZE:
        return 0
    return 1 if status else found.value


@functools.cache
def _function(name):
    """Return a function of the CUDA driver that CuPy does not wrap, or None if this driver lacks it."""
    try:
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_int
    return function


_in_force = Clusters(ask_driver)


def in_force():
    """Return the `Clusters` object that launches use."""
    return _in_force


@contextlib.contextmanager
def answered_by(clusters):
    """Let launches in the with block, in all threads, use other `Clusters`.

    So a device with fewer clusters can be simulated.
    """
    global _in_force
    before, _in_force = _in_force, clusters
    try:
        yield
    finally:
        _in_force = before
