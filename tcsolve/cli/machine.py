"""What this machine has: software, a GPU, and kernels that compile."""

import os
import sys

from tcsolve._backends import select
from tcsolve._backends.cuda.runtime.compiler import target_arch
from tcsolve._solve.choice.cost_model import H200, rates_of
from tcsolve._solve.choice.placement import machine_rates
from tcsolve._study.versions import versions
from tcsolve.cli.kernels import outcomes
from tcsolve.cli.messages import print_aligned
from tcsolve.cli.rates import described
from tcsolve.matrices import _suitesparse

__all__ = ["info", "versions"]

INSTALL = "pip install 'tcsolve[cuda13]' (or [cuda12])"
# The architecture to compile kernels for on a machine without a GPU.
DEFAULT_ARCH = "sm_90a"


def info(_):
    """Run `tcsolve info`, and return its exit code."""
    try:
        reason = select.why_no_cuda()
    except ImportError as error:
        reason = f"CuPy cannot be imported ({error})"
    found = versions()
    folder = os.environ.get(_suitesparse.FOLDER_VARIABLE)
    lines = {name: version or f"none; {INSTALL}" for name, version in found.items()}
    lines |= _describe_gpu() if reason is None else _describe_no_gpu(reason)
    lines["matrices"] = folder or f"no folder; set {_suitesparse.FOLDER_VARIABLE} for ss:NAME"
    print_aligned(lines, sys.stdout)
    print("kernels")
    if found["nvrtc"] is None:
        print(f"  not compiled: CuPy with NVRTC is needed; {INSTALL}")
        return 0
    arch = target_arch() if reason is None else DEFAULT_ARCH
    for name, outcome in outcomes(arch).items():
        print(f"  {name:13} {outcome}")
    return 0


def _describe_no_gpu(reason):
    remedy = "" if INSTALL in reason else f"; a GPU needs NVIDIA's driver and {INSTALL}"
    return {"gpu": f"none: {reason}{remedy}", "cost model": "rates of a CPU"}


def _describe_gpu():
    from cupy.cuda import Device, runtime

    device = Device()
    name = runtime.getDeviceProperties(device.id)["name"].decode()
    free, total = device.mem_info
    rates = rates_of("cuda", select.ops_on("cuda").properties)
    return {
        "gpu": f"{name}, compute capability {int(device.compute_capability) / 10}, "
        f"{total / 2**30:.1f} GiB ({free / 2**30:.1f} free)",
        "cost model": "rates measured on an H200"
        + ("" if rates is H200 else ", scaled to this GPU"),
        **described(machine_rates(name)),
    }
