"""How the tensor cores of each GPU add products: the data of the emulation in `block_sums`.

A tensor core adds a block of products to an FP32 number in one operation.  The products are exact.  Let e be
the largest exponent of all terms.  All terms are truncated to multiples of 2**(e - f), where f depends on the
GPU (`Sums.fraction`), and then added exactly.  The sum is truncated to FP32.
"""

from dataclasses import dataclass

__all__ = ["UNITS", "Sums", "Unit"]


@dataclass(frozen=True)
class Sums:
    """How products are added to an FP32 number.

    Attributes
    ----------
    block : int
        Number of products that are added in one operation.
    fraction : int
        If e is the largest exponent of a term, the terms are truncated to multiples of 2**(e - fraction).
        The exponent of a product is the sum of the exponents of its factors, and a subnormal factor has that
        of the smallest normal number.
    least : int
        e is at least this number, even if all exponents are smaller.
    """

    block: int
    fraction: int
    least: int


@dataclass(frozen=True)
class Unit:
    """The tensor cores of a GPU.

    Attributes
    ----------
    name : str
        The text after the '@' in the name of a precision.
    sums : dict of str to Sums
        For each format of the operands.
    source : {'device', 'literature'}
        'device' if tests compare the emulation with such a device, bit for bit.  'literature' if the data are
        only those of the papers [1]_ [2]_.

    References
    ----------
    .. [1] F. A. Khattak, M. Mikaitis, Accurate Models of NVIDIA Tensor Cores, arXiv:2512.07004, 2025.
    .. [2] P. Xie, Y. Wang, F. Yang, M. Yang, MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix
       Cores, arXiv:2511.10909, 2025.
    """

    name: str
    sums: dict
    source: str


def _unit(name, source, wide, fraction, least, formats=("fp16", "bf16", "tf32")):
    """Return a `Unit` that adds `wide` products of a 16-bit format, and half as many of TF32."""
    blocks = {low: wide // 2 if low == "tf32" else wide for low in formats}
    sums = {low: Sums(block, fraction, least) for low, block in blocks.items()}
    return Unit(name, sums, source)


# Of the two papers, only [1] measures `least`.  For FP16 it has no effect: a product is at least 2**-48.
UNITS = {
    unit.name: unit
    for unit in (
        _unit("v100", "literature", 4, 23, -126, ("fp16",)),
        _unit("t4", "literature", 8, 24, -126, ("fp16",)),
        _unit("a100", "literature", 8, 24, -132),
        _unit("l40s", "literature", 8, 24, -132),
        _unit("h100", "literature", 16, 25, -133),
        _unit("h200", "device", 16, 25, -133),
        _unit("b200", "literature", 16, 25, -133),
    )
}
