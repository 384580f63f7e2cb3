"""A product to compute: the arguments of `gemm` and `gemm_batched`, checked."""

import functools
import operator
from typing import Any, NamedTuple

from tcsolve._arguments import require_switch
from tcsolve._arithmetic.products import ENGINES, Job, product_of
from tcsolve._arrays import is_cupy
from tcsolve._backends.select import ops_for
from tcsolve._checks import check_array
from tcsolve._errors import InputError
from tcsolve._gemm.checks import check_addend, check_out, check_scalars
from tcsolve._steps import note

__all__ = [
    "Options",
    "Task",
    "arithmetic",
    "check_engine",
    "check_gemm",
    "check_gemm_batched",
]


class Options(NamedTuple):
    """The arguments of `gemm` that are not arrays."""

    alpha: Any
    beta: Any
    transa: Any
    transb: Any
    precision: Any
    refine: Any
    engine: Any
    rtol: Any


class Task(NamedTuple):
    """A checked product, and what is needed to make its result.

    Attributes
    ----------
    ops : Ops
    job : Job
        The product.  c is None if beta is 0.  `out` is None for a new array.  Matrices may be empty.
    shape : tuple of int
        That of the result.
    accumulator : str
        The dtype of a new array, and of alpha and beta.
    """

    ops: Any
    job: Job
    shape: tuple
    accumulator: str


def check_gemm(a, b, c, out, options):
    """Return the `Task` for the arguments of `gemm`, or raise an InputError."""
    note("check")
    a, b = check_array(a, "a"), check_array(b, "b")
    if a.ndim != 2 or b.ndim != 2:
        raise InputError(
            f"a has shape {a.shape} and b has shape {b.shape}; two matrices are needed: "
            "use gemm_batched for stacks, or reshape vectors to one row or column"
        )
    return _task(a, b, c, out, options)


def check_gemm_batched(a, b, c, out, options):
    """Return the `Task` for the arguments of `gemm_batched`, or raise an InputError."""
    note("check")
    a, b = check_array(a, "a"), check_array(b, "b")
    for name, x in (("a", a), ("b", b)):
        if x.ndim not in (2, 3):
            raise InputError(
                f"{name} has shape {x.shape}; (batch, rows, columns), or (rows, columns) for one "
                f"matrix in all products, is needed: {name}.reshape(-1, rows, columns)"
            )
    if options.engine != "auto":
        raise InputError(f"engine is {options.engine!r}; gemm_batched supports only engine='auto'")
    batch = _batch_of(a, b, out)
    a, b = (_stacked(x, batch) for x in (a, b))
    if c is not None:
        c = check_array(c, "c")
        c = _stacked(c, batch) if c.ndim == 2 else c
    return _task(a, b, c, out, options)


def _task(a, b, c, out, options):
    """Return the `Task` after the checks that `gemm` and `gemm_batched` share."""
    if require_switch("transa", options.transa):
        a = a.swapaxes(-1, -2)
    if require_switch("transb", options.transb):
        b = b.swapaxes(-1, -2)
    if a.shape[-1] != b.shape[-2]:
        raise InputError(
            f"op(a) has shape {a.shape} and op(b) has shape {b.shape}; the columns of op(a) must be "
            "the rows of op(b): see transa and transb"
        )
    check_engine(options.engine)
    product = arithmetic(a, b, a.shape[-1], options)
    wide = product.dtype == "float64" and product.precision != "fp64"
    accumulator = "float64" if wide else product.accumulator
    alpha, beta = check_scalars(options.alpha, options.beta, accumulator)
    shape = (*a.shape[:-1], b.shape[-1])
    c = check_addend(c, beta, shape, accumulator)
    note("place")
    ops = ops_for(a, b) if c is None else ops_for(a, b, c)
    if out is not None:
        check_out(ops.xp, out, shape, accumulator, (a, b, c))
        ops_for(out, a)  # raises unless both are in the same place
    job = Job(a, b, c, out, product, alpha, beta, options.engine)
    return Task(ops, job, shape, accumulator)


def arithmetic(a, b, k, options):
    """Return the `Product` of a and b that the `Options` ask for; k is the length of the sums."""
    operands = dtype_name(a.dtype), dtype_name(b.dtype), k, not is_cupy(a)
    how = options.precision, options.refine, options.rtol, options.engine
    try:
        return product_of(operands, *how)
    except TypeError:  # an option is not hashable; without the cache, an InputError says why
        return product_of.__wrapped__(operands, *how)


# NumPy makes the name of a dtype anew each time, which takes longer than a small product.
dtype_name = functools.lru_cache(maxsize=64)(operator.attrgetter("name"))


def check_engine(engine):
    """Raise an InputError unless this is the name of an engine."""
    if engine not in ENGINES:
        raise InputError(f"engine is {engine!r}; needs one of {', '.join(map(repr, ENGINES))}")


def _batch_of(a, b, out):
    """Return the number of products: the common batch of a and b, or that of `out` if they have none."""
    sizes = {x.shape[0] for x in (a, b) if x.ndim == 3}
    longer = sizes - {1}
    if len(longer) > 1:
        raise InputError(
            f"a has shape {a.shape} and b has shape {b.shape}; the batches must be equal, or 1"
        )
    if longer:
        return longer.pop()
    if not sizes and out is not None and getattr(out, "ndim", 0) == 3:
        return out.shape[0]
    return 1


def _stacked(x, batch):
    """Return x with shape (batch, rows, columns); one matrix is repeated by a stride of 0."""
    if x.ndim == 3 and x.shape[0] == batch:
        return x
    matrix = x if x.ndim == 2 else x[0]
    return ops_for(x).xp.broadcast_to(matrix, (batch, *matrix.shape))
