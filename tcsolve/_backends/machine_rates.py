"""The times of solves and transfers on this machine, to choose the host or a GPU; a file keeps them.

Only the choice of a device for NumPy arrays depends on these rates.  Precision and blocks do not depend on
them.  So on a given device, the bits of an answer do not depend on them.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from tcsolve._backends.cuda.runtime import cubin_cache
from tcsolve._hardware import cores, cpu_name

__all__ = ["SHIPPED", "MachineRates", "hardware", "parsed", "path", "read", "written"]

FORMAT = 1


@dataclass(frozen=True)
class MachineRates:
    """Times and rates of a machine with one GPU.

    Attributes
    ----------
    host, device : tuple of (int, float)
        Orders n, increasing, and the seconds of `solve` for a general FP64 matrix and one right-hand side:
        of NumPy arrays on the host, and of CuPy arrays.
    to_device, to_host : tuple of float
        Bytes per second of copies from and to NumPy arrays: of a small array, which CuPy copies, and of a
        large one, which goes through pinned buffers.
    date : str
        When they were measured; '' if they came with the library.
    """

    host: tuple
    device: tuple
    to_device: tuple
    to_host: tuple
    date: str = ""


# From benchmarks/results: the host of cpu.json, which has two cores, and the H200 of roads.json.  The copies
# were measured on the host of that H200, with one thread and with four.
SHIPPED = MachineRates(
    host=(
        *((16, 2.695e-05), (64, 0.0001306), (200, 0.0007547), (500, 0.004892), (1000, 0.01865)),
        *((2000, 0.06968), (4000, 0.3791)),
    ),
    device=(
        *((16, 4.6380e-5), (64, 5.8193e-5), (128, 1.4478e-4), (256, 2.0033e-4), (512, 3.6495e-4)),
        *((1024, 8.3696e-4), (2048, 2.3287e-3), (4096, 4.3240e-3), (8192, 1.1311e-2)),
        (16384, 3.8798e-2),
    ),
    to_device=(9e9, 2.2e10),
    to_host=(9e9, 2.2e10),
)


def hardware(gpu):
    """Return the hardware that the rates depend on; `gpu` is the name of the GPU."""
    return {"cpu": cpu_name(), "cores": cores(), "gpu": gpu}


def path(where):
    """Return the file for this hardware, in the folder of compiled kernels."""
    key = hashlib.sha256(json.dumps(where, sort_keys=True).encode()).hexdigest()[:16]
    return cubin_cache.folder() / f"rates-{key}.json"


def written(rates, where):
    """Keep the rates of this hardware for later processes; return whether this was possible."""
    text = json.dumps({"format": FORMAT, "hardware": where, "rates": asdict(rates)}, indent=1)
    return cubin_cache.write(path(where), text.encode() + b"\n")


def read(where):
    """Return the `MachineRates` that were kept for this hardware, or None."""
    data = cubin_cache.read(path(where))
    return None if data is None else parsed(data, where)


def parsed(data, where):
    """Return the `MachineRates` in the bytes of a file, or None if it is damaged or of other hardware."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT or found["hardware"] != where:
            return None
        rates = found["rates"]
        rates = MachineRates(
            host=_samples(rates["host"]),
            device=_samples(rates["device"]),
            to_device=_pair(rates["to_device"]),
            to_host=_pair(rates["to_host"]),
            date=str(rates["date"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError):  # no JSON, or not this content
        return None
    return rates


def _samples(pairs):
    """Return ((n, seconds), ...); raise a ValueError unless n increases and all numbers are positive."""
    found = tuple((int(n), _positive(seconds)) for n, seconds in pairs)
    sizes = [n for n, _ in found]
    if not found or sizes[0] < 1 or any(n >= m for n, m in zip(sizes, sizes[1:], strict=False)):
        raise ValueError(f"the orders are {sizes}; increasing ones are needed")
    return found


def _pair(rates):
    one, other = rates
    return _positive(one), _positive(other)


def _positive(number):
    if not (isinstance(number, int | float) and 0 < number < math.inf):
        raise ValueError(f"{number!r} is no time and no rate")
    return float(number)
