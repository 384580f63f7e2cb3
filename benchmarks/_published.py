"""Published convergence counts, with their sources; `published.py` compares ours with them.

None stands for no convergence.  Only the rows of matrices that can be generated, or that were at hand when
our counts were measured, are here.
"""

from typing import NamedTuple

__all__ = [
    "BF16",
    "FLUSHED",
    "LIMITS",
    "SCALING",
    "SOURCES",
    "SPD",
    "SPD_UNSCALED",
    "Bf16Row",
    "LimitRow",
    "ScalingRow",
    "SpdRow",
]

SOURCES = {
    "bf16": (
        "B. Vieublé, thesis, University of Toulouse, 2022, table 5.3: BF16 factors with every operation "
        "rounded, residuals in quadruple precision; the number of LU solves until the forward error is below "
        "4.44e-16; the best of eight inner tolerances and of five multipliers of the scaled matrix. We took "
        "the rule by which solves are counted from the program Itref.jl of the repository "
        "bvieuble/Itref.jl, at its commit 57caa4d. The matrices dw256B, dw1024, fs_541_4, rajat12, bp_600, "
        "bwm2000, meg1, lnsp_511, gre_1107, spaceStation_7, reorientation_3 and lung1 of the table were not "
        "at hand."
    ),
    "scaling": (
        "N. J. Higham, S. Pranesh, M. Zounon, SIAM J. Sci. Comput. 41 (2019), A2536-A2551, and the results "
        "in the repository SrikaraPranesh/fp16Scaling: FP16 factors; for x in FP64, GMRES with products in "
        "quadruple precision and tolerance 1e-4, for x in FP32 with products in FP64 and 1e-2; GMRES steps "
        "until the backward error is below n u. The programs "
        "gmresir3.m and gmresir3_1.m of the repository, read at its commit 2d055af, compute the LU in FP64 "
        "and round the factors; a comment says that an LU in FP16 does not change the answer. The matrices "
        "pores_1, steam3, bcsstk01 and fs_183_3 of the table were not at hand."
    ),
    "spd": (
        "N. J. Higham, S. Pranesh, SIAM J. Sci. Comput. 43 (2021), A258-A277, and the results in the "
        "repository SrikaraPranesh/fp16_Cholesky: Cholesky factors of the scaled and shifted matrix in FP16, "
        "every operation rounded, or in FP32; steps of GMRES and of CG until the backward error is below "
        "n u. We took the rule by which a cycle ends from cholir_test.m, and from gmresir3.m and cgir3.m of "
        "the repository SrikaraPranesh/Multi_precision_NLA_kernels. The matrices mesh2e1, bcsstk07, "
        "bcsstm06, bcsstm07, bcsstk20 and bcsstm20 of the table were not at hand."
    ),
    "limits": (
        "E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847, and P. Amestoy et al., SIAM J. "
        "Matrix Anal. Appl. 45 (2024), 529-552, as tabulated in B. Vieublé, thesis, 2022: the largest "
        "condition number for which the backward error, or the forward error, is proved to converge, with "
        "FP64 as the working precision; for the forward error, the residuals and the products of GMRES are "
        "in quadruple precision."
    ),
}


class Bf16Row(NamedTuple):
    """LU solves of LU-IR, and of GMRES-IR by the precisions of the factors, of GMRES and of its products.

    The letters are B for BF16, S for FP32, D for FP64, Q for quadruple precision.  `kappa` and `scaled` are
    the condition numbers of the matrix and of the scaled matrix in the 2-norm.
    """

    matrix: str
    kappa: float
    scaled: float
    ir: int | None
    bbs: int | None
    bbd: int | None
    bss: int | None
    bsd: int | None
    bdd: int | None
    bdq: int | None


BF16 = (
    Bf16Row("gre_512", 1.6e2, 1.7e2, 16, 28, 28, 17, 17, 14, 14),
    Bf16Row("mahindas", 2.1e13, 9.8e2, 12, 34, 36, 14, 12, 12, 12),
    Bf16Row("sherman1", 1.6e4, 9.3e3, None, 78, 78, 30, 26, 26, 26),
    Bf16Row("watt_2", 1.4e11, 3.0e4, None, 522, 497, 32, 32, 26, 26),
    Bf16Row("hangGlider_2", 1.4e9, 1.2e6, None, 52, 56, 32, 33, 31, 31),
    Bf16Row("tub1000", 1.3e6, 1.3e6, None, None, None, 354, 254, 114, 114),
    Bf16Row("1138_bus", 8.6e6, 2.4e6, None, None, None, 238, 163, 83, 83),
    Bf16Row("rajat19", 1.1e10, 1.4e8, None, None, None, None, None, 70, 69),
    Bf16Row("bcsstk19", 1.3e11, 1.2e9, None, None, None, None, None, 307, 209),
    Bf16Row("fs_760_3", 9.8e19, 2.6e12, None, None, None, None, None, None, None),
    Bf16Row("nnc1374", 3.7e14, 5.2e12, None, None, None, None, None, 85, 92),
)


class ScalingRow(NamedTuple):
    """GMRES steps by scaling, for x in FP64 and in FP32.

    The scalings are: large entries clamped (algorithm 2.1), one number for all entries (2.2), rows, then
    columns (2.4), and rows and columns alike (2.5).  For x in FP32, only the first two have counts.  `kappas`
    are the condition numbers in the infinity norm of A, and of A after the last two scalings.  `cycles` are
    the numbers of refinement steps, each a cycle of GMRES, for the counts in `double` and `single`.
    """

    matrix: str
    double: tuple
    single: tuple
    kappas: tuple
    cycles: tuple


SCALING = (
    ScalingRow(
        "west0132", (12, 5, 2, 2), (4, 2), (1.05e12, 9.59e6, 3.01e6), ((2, 2, 1, 1), (1, 1))
    ),
    ScalingRow("west0167", (9, 6, 2, 4), (3, 2), (6.76e10, 2.36e6, 1.10e6), ((2, 2, 1, 2), (1, 1))),
    ScalingRow(
        "saylr1", (233, 15, 17, 11), (31, 0), (1.59e9, 1.96e5, 2.95e5), ((3, 2, 2, 2), (2, 0))
    ),
    ScalingRow("steam1", (258, 4, 2, 2), (95, 0), (3.11e7, 9.27, 35.3), ((3, 2, 1, 1), (2, 0))),
    ScalingRow("arc130", (4, 4, 2, 2), (0, 1), (1.20e12, 407.0, 538.0), ((2, 2, 1, 1), (0, 1))),
    ScalingRow(
        "tumorAntiAngiogenesis_2",
        (21, 7, 5, 5),
        (0, 0),
        (1.99e10, 6.77e5, 9.52e5),
        ((3, 2, 2, 2), (0, 0)),
    ),
    ScalingRow(
        "lund_a", (330, 6, 5, 8), (409, 1), (5.44e6, 8.30e4, 3.08e4), ((3, 2, 2, 3), (5, 1))
    ),
    ScalingRow(
        "nos1", (562, 6, 17, 17), (212, 2), (2.53e7, 8.80e6, 7.47e6), ((3, 2, 3, 3), (2, 1))
    ),
    ScalingRow(
        "fs_183_1",
        (8, None, 5, 2),
        (0, None),
        (1.08e14, 6.94e9, 4.34e5),
        ((2, None, 2, 1), (0, None)),
    ),
)


# Percentage of the nonzeros that FP16 rounds to zero.  Before rounding, rows and then columns are scaled to a
# largest entry of 1 (first number), or of the largest number of FP16 (second number).
FLUSHED = {
    "steam1": (2.85, 0.0),
    "arc130": (44.84, 36.45),
    "lund_a": (5.59, 0.0),
    "fs_183_1": (23.85, 11.72),
}


class SpdRow(NamedTuple):
    """Steps of GMRES and of CG by the precisions of the factors, of x, and of the products.

    The letters of the names are H for FP16, S for FP32, D for FP64 and Q for quadruple precision.  `kappa` is
    the condition number of the matrix.
    """

    matrix: str
    kappa: float
    hdq_gmres: int | None
    hdq_cg: int | None
    hdd_gmres: int | None
    hdd_cg: int | None
    sdd_gmres: int | None
    sdd_cg: int | None


SPD = (
    SpdRow("Trefethen_300", 1.77e3, 4, 4, 3, 3, 1, 1),
    SpdRow("mesh2em5", 247.0, 6, 6, 6, 6, 1, 1),
    SpdRow("plat362", 2.18e11, 382, None, 562, None, 61, 38),
    SpdRow("mhdb416", 3.99e9, 3, 3, 3, 3, 0, 0),
    SpdRow("bcsstk06", 7.57e6, 25, 26, 38, 32, 2, 2),
    SpdRow("nos5", 1.10e4, 18, 19, 13, 16, 2, 2),
    SpdRow("494_bus", 2.42e6, 27, 20, 40, 32, 3, 2),
    SpdRow("Trefethen_500", 3.19e3, 4, 4, 3, 3, 1, 1),
)


# Steps of GMRES and of CG if the matrix is shifted, but not scaled; precisions as in hdq_gmres and hdq_cg.
SPD_UNSCALED = {"mhdb416": (492, 397), "bcsstk06": (529, 356), "494_bus": (248, 235)}


class LimitRow(NamedTuple):
    """Largest condition numbers for which LU-IR and GMRES-IR are proved to converge, by the kind of error.

    For the forward error, the residuals and the products of GMRES are in quadruple precision, for the
    backward error in FP64.  `in_fp64` is the limit of GMRES-IR with products in FP64.  TF32 has the roundoff
    of FP16, and therefore the limits of FP16.
    """

    factors: str
    error: str
    ir: float
    gmres: float
    in_fp64: float


LIMITS = (
    LimitRow("bf16", "backward", 3e2, 1e6, 1e6),
    LimitRow("fp16", "backward", 2e3, 3e6, 3e6),
    LimitRow("tf32", "backward", 2e3, 3e6, 3e6),
    LimitRow("fp32", "backward", 2e7, 5e7, 5e7),
    LimitRow("bf16", "forward", 3e2, 2e10, 8e6),
    LimitRow("fp16", "forward", 2e3, 2e11, 3e7),
    LimitRow("tf32", "forward", 2e3, 2e11, 3e7),
    LimitRow("fp32", "forward", 2e7, 2e15, 1e10),
)
