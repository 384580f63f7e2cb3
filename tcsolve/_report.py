"""A `Solution` as text of at most 80 columns."""

import collections
import textwrap

import numpy as np

__all__ = ["as_text", "message", "small_error"]

WIDTH, NAMES = 80, 16
# Up to this estimated forward error x has correct digits, whatever rcond is.
SMALL_ERROR = 1e-3


def as_text(solution):
    """Return the report of a solve, of a stack or of one system, for people to read."""
    x, worst = solution.x, "" if solution.backward_error.size == 1 else ", the worst"
    errors = float(np.max(solution.backward_error, initial=0.0))  # NaN if any is NaN
    lines = {
        "x": f"{x.dtype} {_shape(x.shape)}, computed on {solution.device}",
        "precision": _precision(solution),
        "steps": f"{int(max(solution.iterations.ravel(), default=0))}",
        "backward error": f"{errors:.1e}{worst} (bound {solution.bound:.1e})",
        "rcond": f"{solution.rcond:.1e}" + (", the smallest" if solution.rconds.size > 1 else ""),
    }
    if solution.forward_error is not None:
        lines["forward error"] = f"{np.max(solution.forward_error, initial=0.0):.1e} (estimated)"
    lines["seconds"] = _seconds(solution.seconds)
    if solution.note:
        lines["note"] = solution.note
    if solution.statuses.ndim:
        lines["matrices"] = _tally(solution)
    told = f"{_words(solution.status)}: {message(solution)}"
    return "\n".join([textwrap.fill(told, WIDTH), *(_line(*line) for line in lines.items())])


def message(solution, status=None):
    """Return the message of a status, by default the worst one.

    If A is ill-conditioned but x accurate, the message has the forward error.
    """
    status, error = status or solution.status, small_error(solution)
    if status.name != "ILL_CONDITIONED" or error is None:
        return status.value
    return (
        "The backward error meets the bound, and the matrix is singular to working precision (rcond < eps), "
        f"but the forward error, estimated with double-double residuals, is {error:.1e}; x is accurate if "
        "the entries of A and b are exact."
    )


def small_error(solution):
    """Return the largest estimated forward error if it shows that x has correct digits; else None."""
    if solution.forward_error is None:
        return None
    largest = float(np.max(solution.forward_error, initial=0.0))  # NaN if any is NaN
    return largest if largest <= SMALL_ERROR else None


def _line(name, text):
    return textwrap.fill(
        text, WIDTH, initial_indent=name.ljust(NAMES), subsequent_indent=" " * NAMES
    )


def _words(status):
    return status.name.lower().replace("_", " ")


def _shape(shape):
    return f"of shape ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _precision(solution):
    tried = ", ".join(solution.rungs)
    return solution.precision + (f" (tried {tried})" if len(solution.rungs) > 1 else "")


def _seconds(seconds):
    """Return the total, and the phases that took more than a hundredth of it."""
    total = seconds.get("total", 0.0)
    parts = ", ".join(
        f"{name} {took:.2g}"
        for name, took in seconds.items()
        if name != "total" and took > total / 100
    )
    return f"{total:.3g}" + (f" ({parts})" if parts else "")


def _tally(solution):
    """Return how many matrices of a stack have each status, and the first one with the worst status."""
    counts = collections.Counter(solution.statuses.ravel().tolist())
    told = ", ".join(f"{count} {_words(status)}" for status, count in counts.most_common())
    if len(counts) < 2:
        return told or "none"
    index = tuple(np.argwhere(solution.statuses == solution.status)[0].tolist())
    return f"{told} (the first: {index[0] if len(index) == 1 else index})"
