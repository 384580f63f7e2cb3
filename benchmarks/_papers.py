"""Published numbers about tensor cores, one list for each figure; all are quotes, none is an estimate.

A value is 'not stated' if the part of the source that was read gives no number.  Each source names that part.
"""

from typing import NamedTuple

__all__ = ["QUOTES", "V100", "Quote", "Source", "bullets", "sources"]


class Source(NamedTuple):
    """A source: a short name to print with a value, and the full reference."""

    name: str
    full: str


MARKIDIS = Source(
    "Markidis et al. 2018, abstract",
    "S. Markidis, S. W. D. Chien, E. Laure, I. B. Peng, J. S. Vetter, NVIDIA Tensor Core Programmability, "
    "Performance & Precision, IPDPSW 2018, [arXiv:1803.04014](https://arxiv.org/abs/1803.04014)",
)
MARTINEAU = Source(
    "Martineau et al. 2018, abstract",
    "M. Martineau, P. Atkinson, S. McIntosh-Smith, Benchmarking the NVIDIA V100 GPU and Tensor Cores, "
    "HeteroPar 2018",
)
HALF_SAMPLE = Source(
    "cudaTensorCoreGemm, comments in its source",
    "NVIDIA, cudaTensorCoreGemm, a CUDA sample of WMMA since CUDA 9",
)
INTEGER_SAMPLE = Source(
    "immaTensorCoreGemm, comments in its source",
    "NVIDIA, immaTensorCoreGemm, a CUDA sample of WMMA on integers since CUDA 10",
)
WHITE_PAPERS = Source(
    "NVIDIA's white papers, as summarized in its forum",
    "[How to calculate the Tensor Core FP16 performance of H100?](https://forums.developer.nvidia.com/t/"
    "how-to-calculate-the-tensor-core-fp16-performance-of-h100/244727), NVIDIA's developer forum",
)
LUO = Source(
    "Luo et al. 2025, section 6.2, at second hand",
    "W. Luo et al., Dissecting the NVIDIA Hopper Architecture through Microbenchmarking and Multiple Level "
    "Analysis, arXiv:2501.12084",
)

# The numbers that results are compared with; all from the abstract of Markidis et al.
V100 = {
    "tflops": 83,
    "peak": 125,
    "over_single": 7,
    "batched_tflops": 4,
}


class Quote(NamedTuple):
    """One statement: its subject, its value, and its source."""

    what: str
    value: str
    source: Source


QUOTES = {
    "square": (
        Quote("rate of mixed precision", "83 TFLOP/s of a theoretical peak of 125", MARKIDIS),
        Quote("rate over that of single precision", "7", MARKIDIS),
        Quote("rate over that of half precision without tensor cores", "3", MARKIDIS),
        Quote(
            "products in half precision",
            "considerable gains, by fine control of the memory hierarchy; rate not stated",
            MARTINEAU,
        ),
        Quote("rate of the sample", "not stated", HALF_SAMPLE),
    ),
    "error": (
        Quote(
            "loss of precision",
            "considerably reduced at the cost of increased computation; factor not stated",
            MARKIDIS,
        ),
    ),
    "rank_k": (
        Quote("rate by k", "not stated", MARKIDIS),
        Quote("rate by k", "not stated", MARTINEAU),
    ),
    "transposes": (
        Quote("layouts", "one, A by rows and B by columns; rate not stated", HALF_SAMPLE),
        Quote("layouts", "one, A by rows and B by columns; rate not stated", INTEGER_SAMPLE),
    ),
    "swizzle": (
        Quote(
            "operands in shared memory without padding",
            "performance would be severely impacted; by how much is not stated",
            HALF_SAMPLE,
        ),
    ),
    "batched": (
        Quote("rate of batches by WMMA", "4 TFLOP/s; size and length not stated", MARKIDIS),
    ),
    "mma": (
        Quote("tensor cores, and their peak", "640; 125 TFLOP/s", MARKIDIS),
        Quote(
            "FP16 operations of a multiprocessor in a clock",
            "1024 (V100), 2048 (A100), 4096 (H100)",
            WHITE_PAPERS,
        ),
        Quote("mma.sync on Hopper", "62.9 % of the peak on average", LUO),
        Quote("rate by warps", "not stated", MARTINEAU),
    ),
}


def bullets(figure):
    """Return a Markdown list of the quotes for a figure, as lines."""
    return [f"- {quote.what}: {quote.value} ({quote.source.name})" for quote in QUOTES[figure]]


def sources():
    """Return a Markdown list of all sources, as lines."""
    every = dict.fromkeys(quote.source.full for quotes in QUOTES.values() for quote in quotes)
    return [f"- {full}" for full in every]
