"""Clusters of thread blocks: whether the device runs them in the present context, and what is done if not."""

import contextlib
import ctypes
import functools
from typing import NamedTuple

import cupy
from cupy_backends.cuda.api import driver

from tcsolve._backends.cuda.runtime import compiler

__all__ = ["Clusters", "Variant", "answered_by", "in_force"]

# Statuses of a launch that needs more at a time than there is: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
# CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, CUDA_ERROR_INVALID_CLUSTER_SIZE.
TOO_LARGE = (701, 720, 912)
INVALID_CLUSTER_SIZE = 912
# CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
CLUSTER_DIMENSION = 4


class Variant(NamedTuple):
    """A kernel that is compiled for a cluster, and what a block of it needs."""

    kernel: str
    entry: str
    defines: tuple
    cluster: int
    threads: int
    shared: int = 0


class Clusters:
    """What is known of clusters on the devices and in the contexts of this process.

    Parameters
    ----------
    ask : callable
        ask(variant) returns how many clusters of a `Variant` run at a time on the current device, in the
        current context.  It is asked once for each variant, device and context.
    context, place : callable
        Return what tells the current context from others, and from other streams with contexts of their own.
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
        """The same without asking: True if nothing is known."""
        return self._answers.get((self._context(), variant), True)

    def launch(self, kernel, shapes, launch):
        """Call launch(shape) for the first shape of a kernel that the device takes; tell if there was one.

        The driver's answer is no promise: what it refuses to launch in the current context, or in the green
        context of the current stream, is not tried again there.
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
    """Return the current device and a number for the current context."""
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
    """Return how many clusters of a `Variant` run at a time, by cuOccupancyMaxActiveClusters.

    One where the driver cannot tell: the launch will.
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
    """Return a function of the driver that CuPy does not have, or None if this driver has it neither."""
    try:
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_int
    return function


_in_force = Clusters(ask_driver)


def in_force():
    """Return the `Clusters` that launches ask."""
    return _in_force


@contextlib.contextmanager
def answered_by(clusters):
    """Let launches inside, of all threads, ask other `Clusters`: to try what a device does that has fewer."""
    global _in_force
    before, _in_force = _in_force, clusters
    try:
        yield
    finally:
        _in_force = before
