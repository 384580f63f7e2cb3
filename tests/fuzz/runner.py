"""The kinds of cases, and the run of as many cases as fit into the given seconds."""

import re
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fuzz.factoring import factor_and_call, share_between_threads
from fuzz.known import is_known
from fuzz.multiplying import multiply
from fuzz.processes import pickle_and_copy, solve_in_a_fork
from fuzz.reading import read_file
from fuzz.refining import refine_with_anything
from fuzz.solving import (
    solve_at_the_ends_of_the_range,
    solve_near_singular,
    solve_stack,
    solve_system,
)

__all__ = [
    "KINDS",
    "Kind",
    "Tally",
    "kind_named",
    "parse_case",
    "run_case",
    "run_kind",
    "seconds_of",
]

RESIDUALS = (
    "exact integers up to n = 16; for larger n long double with an error bound, or exact integers if this"
    " bound is too large to decide"
)
CONDITIONS = "interval arithmetic up to n = 24"


class Kind(NamedTuple):
    """A generator of cases with what runs and judges them.

    Attributes
    ----------
    name : str
    run : callable
        (random numbers, Place) -> list of broken promises, or None where there is nothing to judge.
    share : float
        The kind's part of the seconds of all kinds, in proportion to the other shares.
    floor : int
        Least number of cases, which run however long they take.
    arithmetic : str
        The arithmetic of the judge, in words.
    on_device : bool
    """

    name: str
    run: Callable
    share: float
    floor: int
    arithmetic: str
    on_device: bool = True


KINDS = (
    Kind("systems", solve_system, 5, 60, f"{RESIDUALS}; {CONDITIONS}"),
    Kind("edges", solve_at_the_ends_of_the_range, 3, 30, f"{RESIDUALS}; {CONDITIONS}"),
    Kind("condition", solve_near_singular, 3, 30, f"{RESIDUALS}; {CONDITIONS}"),
    Kind("stacks", solve_stack, 2, 40, f"integers; {CONDITIONS}"),
    Kind("factor", factor_and_call, 2, 10, f"{RESIDUALS}; {CONDITIONS}, determinants too"),
    Kind("refine", refine_with_anything, 1.5, 60, RESIDUALS),
    Kind("products", multiply, 1.5, 40, "long double with its error, integers for int8"),
    Kind(
        "files", read_file, 0.8, 60, "equality with SciPy's reader and a plain one", on_device=False
    ),
    Kind("threads", share_between_threads, 0.7, 2, "equality of bits"),
    Kind("fork", solve_in_a_fork, 0.6, 3, "equality of bits"),
    Kind("pickle", pickle_and_copy, 0.4, 5, "equality of bits"),
)


@dataclass
class Tally:
    """The results of a kind at a place.

    Attributes
    ----------
    cases : int
        Number of cases that were judged.
    failures : list of str
        For each failure, the option that runs it again, and a sentence.
    known : list of str
        The same, of defects that are known.
    """

    kind: str
    place: str
    seed: int
    cases: int = 0
    seconds: float = 0.0
    failures: list = field(default_factory=list)
    known: list = field(default_factory=list)

    def __str__(self):
        known = f", {len(self.known)} of known defects" if self.known else ""
        return (
            f"fuzz {self.kind} on {self.place}: {self.cases} cases, {len(self.failures)} failures{known}, "
            f"seed {self.seed}, {self.seconds:.1f} s"
        )


def kind_named(name):
    """Return the `Kind`."""
    return next(kind for kind in KINDS if kind.name == name)


def parse_case(text):
    """Return (kind, seed, number), read from the text KIND:SEED:NUMBER; other texts raise a ValueError."""
    names = [kind.name for kind in KINDS]
    match = re.fullmatch(r"(\w+):(\d+):(\d+)", text)
    if not match or match[1] not in names:
        raise ValueError(
            f"{text!r} is no case; KIND:SEED:NUMBER is needed, KIND one of {', '.join(names)}"
        )
    return match[1], int(match[2]), int(match[3])


def seconds_of(kind, seconds):
    """Return the part of the seconds that a kind has."""
    return seconds * kind.share / sum(each.share for each in KINDS)


def rng_of(kind, seed, number):
    """Return the random generator of one case."""
    return np.random.default_rng([seed, number, zlib.crc32(kind.name.encode())])


def run_case(kind, place, seed, number):
    """Return what is wrong in one case, which depends on these arguments alone; None if it is not judged."""
    try:
        return kind.run(rng_of(kind, seed, number), place)
    except Exception:
        return ["the case itself ended with " + traceback.format_exc()[-1500:]]


def run_kind(kind, place, seconds, seed):
    """Run cases 0, 1, ... for these seconds, and at least the floor; return the `Tally`."""
    tally, number, start = Tally(kind.name, place.name, seed), 0, time.perf_counter()
    while tally.seconds < seconds or (tally.cases < kind.floor and number < 10 * kind.floor):
        found = run_case(kind, place, seed, number)
        tally.cases += found is not None
        for sentence in found or ():
            listed = tally.known if is_known(sentence) else tally.failures
            listed.append(f"--fuzz-case {kind.name}:{seed}:{number} on {place.name}: {sentence}")
        tally.seconds = time.perf_counter() - start
        number += 1
    return tally
