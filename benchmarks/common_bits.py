"""How fast do tensor cores count exactly the bits that binary vectors have in common?

    python benchmarks/common_bits.py                                          # results/common_bits.json
    python benchmarks/common_bits.py --device cpu --vectors 200 --bits 500    # anywhere

Vectors of bits are rows of a matrix X of zeros and ones.  (X X^T)_ij counts the ones that vectors i and j
share, as in similarity searches of molecular fingerprints.  Zeros and ones are exact in FP16, and FP32 sums
of ones are exact up to 2^24.  So the count is exact for vectors of up to 16,777,216 bits.  A check at this
limit shows that the count is exact, and that one more bit is refused.  INT8 operands have sums in INT32.
"""

import numpy as np
from _figures import beside_the_gpu
from _harness import RESULTS, arguments, gpu, host_seconds, machine, save, summary
from _steady import steady_seconds

from tcsolve import gemm

EXACT_BITS = 2**24


def common_bits(x):
    """Return how many ones each pair of rows shares: float32 for a float16 x, int32 for an int8 x."""
    if x.dtype == np.float16 and x.shape[1] > EXACT_BITS:
        raise ValueError(
            f"vectors have {x.shape[1]} bits; FP32 counts to {EXACT_BITS}: use int8, or add counts of slices"
        )
    return gemm(x, x, transb=True)


def check_against_popcount(xp, x, counts, pairs=200):
    """Compare some pairs with a count of the bits of x_i & x_j."""
    rng = np.random.default_rng(0)
    host, found = (z.get() if xp is not np else z for z in (x, counts))
    packed = np.packbits(host.astype(bool), axis=1)
    for i, j in rng.integers(0, len(host), (pairs, 2)):
        expected = int(np.bitwise_count(packed[i] & packed[j]).sum())
        assert found[i, j] == expected, f"pair {i}, {j}: {found[i, j]} common bits, not {expected}"


def check_the_edge(xp):
    """Count 2^24 - 1 and 2^24 ones exactly, and show that FP32 has no 2^24 + 1."""
    for bits in (EXACT_BITS - 1, EXACT_BITS):
        ones = xp.ones((1, bits), np.float16)
        assert float(common_bits(ones)[0, 0]) == bits, bits
    assert np.float32(EXACT_BITS) + np.float32(1) == EXACT_BITS
    try:
        common_bits(xp.ones((1, EXACT_BITS + 1), np.float16))
    except ValueError:
        return
    raise AssertionError("more bits than FP32 can count were accepted")


def rates(device, x, repeats):
    """Yield a row for FP16 and for INT8 on tensor cores, and for the FP32 product of BLAS."""
    wide, small = x.astype(np.float32), x.astype(np.int8)
    runs = {
        "gemm, FP16": lambda: common_bits(x),
        "gemm, INT8": lambda: common_bits(small),
        "matmul, FP32": lambda: wide @ wide.T,
    }
    reference = wide @ wide.T
    for name, run in runs.items():
        assert bool((run() == reference).all()), name
        seconds = summary((steady_seconds if device == "cuda" else host_seconds)(run, repeats))
        pairs = len(x) ** 2 * x.shape[1] / seconds["median"]
        yield {"how": name, "seconds": seconds, "bits_compared_per_second": pairs}


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--vectors", type=int, default=8192)
    parser.add_argument("--bits", type=int, default=16384)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.set_defaults(json=RESULTS / "common_bits.json")
    options = parser.parse_args()
    beside_the_gpu(options)
    if options.device == "cuda":
        import cupy as xp
    else:
        xp = np
    rng = np.random.default_rng(1)
    x = xp.asarray(rng.random((options.vectors, options.bits)) < 0.1).astype(np.float16)
    check_against_popcount(xp, x, common_bits(x))
    check_the_edge(xp)
    rows = []
    for row in rates(options.device, x, options.repeats):
        rows.append(row | {"vectors": options.vectors, "bits": options.bits})
        rate = row["bits_compared_per_second"]
        print(f"{row['how']:14} {1e3 * row['seconds']['median']:9.3f} ms  {rate:.2e} bits/s")
    facts = machine(options.commit) | (gpu() if options.device == "cuda" else {})
    save(options.json, facts, rows)
    print("all counts are exact")


if __name__ == "__main__":
    main()
