"""Which matrices of a study are left out: by size, kind, group or condition number."""

import math
from dataclasses import dataclass

import numpy as np

from tcsolve._arguments import require_count
from tcsolve._errors import InputError

__all__ = ["Filters", "NotFetched", "Skipped"]

# Kinds of matrices that `Filters.kind` knows.
KINDS = ("spd", "symmetric", "unsymmetric", "real", "complex")


class Skipped(Exception):
    """A matrix is left out of a study; the message is the reason."""


class NotFetched(Skipped):
    """The collection could not give a matrix; a study that is resumed asks again."""


@dataclass(frozen=True)
class Filters:
    """Which matrices of a study to take; None and an empty string allow all.

    Attributes
    ----------
    min_n, max_n : int, optional
    kind : str
        'spd', 'symmetric', 'unsymmetric', 'real' or 'complex'.  A symmetric matrix equals its conjugate
        transpose.
    group : str
        Group of the SuiteSparse collection.
    kappa : (float, float), optional
        Smallest and largest condition number.
    """

    min_n: int | None = None
    max_n: int | None = None
    kind: str = ""
    group: str = ""
    kappa: tuple | None = None

    @classmethod
    def of(cls, options):
        """Take the filters out of a dict of options, and return them."""
        found = {key: options.pop(key) for key in cls.__dataclass_fields__ if key in options}
        for key, value in found.items():
            is_list = isinstance(value, list | tuple)  # 'gen:gauss:n=9:max_n=50' gives [50]
            if is_list and len(value) == 1:
                found[key] = value[0]
        for key in ("min_n", "max_n"):
            if found.get(key) is not None:
                found[key] = require_count(f"study: {key}", found[key])
        if found.get("kappa") is not None:
            found["kappa"] = _range(found["kappa"])
        if found.get("kind") and found["kind"] not in KINDS:
            raise InputError(f"study: kind is {found['kind']!r}, needs one of {', '.join(KINDS)}")
        return cls(**found)

    def check_group(self, is_of_collection):
        """Raise `Skipped` if a group is wanted, and the matrix is not of the collection."""
        if self.group and not is_of_collection:
            raise Skipped(f"it is of no group of the collection, and {self.group} is wanted")

    def check_size(self, n):
        """Raise `Skipped` if matrices of order n are left out."""
        if self.max_n is not None and n > self.max_n:
            raise Skipped(f"n = {n} is above max_n = {self.max_n}")
        if self.min_n is not None and n < self.min_n:
            raise Skipped(f"n = {n} is below min_n = {self.min_n}")

    def check_kind(self, a):
        """Raise `Skipped` if a is not of the `kind`; for 'spd', its Cholesky factorization must exist."""
        if not self.kind:
            return
        is_complex = a.dtype.kind == "c"
        symmetric = bool((a == a.conj().T).all())
        held = {
            "real": not is_complex,
            "complex": is_complex,
            "symmetric": symmetric,
            "unsymmetric": not symmetric,
            "spd": symmetric and _is_definite(a),
        }
        if not held[self.kind]:
            told = "Hermitian" if is_complex and self.kind == "symmetric" else self.kind
            raise Skipped(f"it is not {told}")

    def check_kappa(self, kappa):
        """Raise `Skipped` if the condition number is outside the range, or not known."""
        if self.kappa is None:
            return
        least, most = self.kappa
        if kappa is None or not least <= kappa <= most:
            if kappa is None:
                raise Skipped(f"kappa is not known, and {least:g}:{most:g} is wanted")
            raise Skipped(f"kappa is {kappa:.2e}, outside {least:g}:{most:g}")

    def given(self):
        """Return the filters that are set, as a dict."""
        return {key: value for key, value in vars(self).items() if value}


def _range(value):
    """Return (least, most) of '1e3:1e8' or of a pair."""
    try:
        parts = value.split(":") if isinstance(value, str) else list(value)
        least, most = (float(p) if p not in ("", None) else None for p in parts)
    except (TypeError, ValueError) as error:
        raise InputError(f"study: kappa is {value!r}; write it as '1e3:1e8'") from error
    least, most = 0.0 if least is None else least, math.inf if most is None else most
    if not least <= most:
        raise InputError(f"study: kappa is {value!r}; write the smaller number first: '1e3:1e8'")
    return least, most


def _is_definite(a):
    try:
        np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return False
    return True
