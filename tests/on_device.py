"""What the tests of kernels share."""

import ml_dtypes
import numpy as np

NO_PIVOT = 2**31 - 1
U32 = 2.0**-24
STORED = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32}


def random_matrix(dtype, m, n, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, n))
    return (a + 1j * rng.standard_normal((m, n)) if np.dtype(dtype).kind == "c" else a).astype(
        dtype
    )
