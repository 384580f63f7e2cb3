"""`Plan`: the precision of the factorization and the limits of refinement, as data."""

from dataclasses import dataclass

from tcsolve._arguments import require_count, require_number, require_switch
from tcsolve._errors import InputError

__all__ = ["MODEL_NAMES", "PRECISIONS", "UPDATE_NAMES", "Plan", "is_update", "next_rung"]

# The keys of `tcsolve._arithmetic.formats.UPDATES`, repeated because this module must not import it.
UPDATE_NAMES = ("fp16", "bf16", "tf32", "fp16x3", "fp32", "fp64")
# How the loop of refinement corrects x.
METHODS = ("auto", "ir", "fgmres", "gmres", "cg")
# In which precision the Krylov methods apply the factors.
PRECONDITIONERS = ("auto", "factors", "fp64")
PRECISIONS = ("auto", *UPDATE_NAMES)
# The keys of `formats.MODELS`, repeated for the same reason.
_OLDER, _NEWER = ("v100", "t4"), ("a100", "l40s", "h100", "h200", "b200")
_SINGLE = ("fp16", "bf16", "tf32")
MODEL_NAMES = (
    *(f"{name}@{unit}" for unit in _OLDER for name in ("fp16", "fp16x3")),
    *(f"{name}@{unit}" for unit in _NEWER for name in (*_SINGLE, "fp16x3")),
    *(f"{name}@each" for name in _SINGLE),
)


def is_update(name):
    """Tell whether this is the name of an arithmetic of the trailing update."""
    return isinstance(name, str) and (name in UPDATE_NAMES or name in MODEL_NAMES)


@dataclass(frozen=True)
class Plan:
    """The LU to compute, and the limits of its refinement.

    Parameters
    ----------
    update : {'auto', 'fp16', 'bf16', 'tf32', 'fp16x3', 'fp32', 'fp64'} or an emulated arithmetic
        Arithmetic of the trailing update.  'fp32' and 'fp64' use the LU of cuSOLVER or LAPACK.  'fp16@h200',
        for instance, emulates the tensor cores of that GPU bit for bit, and 'fp16@each' rounds the result of
        every operation of the LU.  'auto' selects the update that is predicted to be fastest, as
        ``precision='auto'`` of `factor` does; the other fields still apply.
    block : int, optional
        Number of columns of a panel.  By default it is chosen from the size and the device.
    fallback : bool
        True: when refinement stalls, factor again with a more precise update.  False: return the best
        answer found with this update; its status is STALLED.
    scale : bool
        True: rows and columns may be scaled by powers of two before they are rounded.
    max_steps : int, optional
        Largest number of corrections for one right-hand side with the same factors.  A correction is one
        solve with L and one with U.  With ``residual='double-double'`` there may be about twice as many.  The
        default is the number of corrections that take as long as a solve with the update that would be tried
        next, but at least 30 and at most 300.  It is 300 if no update may follow (``fallback=False``, or
        'fp64').  For one right-hand side, it is also 300 if the update that would be tried next is emulated
        on this device.  For several right-hand sides, emulated updates are skipped, so the next one that is
        not emulated counts.
    basis : int
        Largest number of Krylov vectors before FGMRES or GMRES restarts.
    contraction : float
        Classical refinement continues while each step multiplies the backward error by at most this
        number, and FGMRES, GMRES and CG while each cycle does; but see `inner_tol` for GMRES.  0.5 is the
        value in LAPACK's xGERFS [1]_.
    method : {'auto', 'ir', 'fgmres', 'gmres', 'cg'}
        'ir': classical refinement alone.  'fgmres': FGMRES from the first x on.  'auto': classical refinement
        while it contracts, then FGMRES (GMRES if products are in double-double).  'gmres': GMRES with left
        preconditioning from the first x on (GMRES-IR [2]_).  'cg': conjugate gradients from the first x on,
        for a Hermitian positive definite A.  The preconditioner is a Cholesky factorization of the scaled and
        shifted A [3]_; with 'fp64' it is the LU of A.
    inner_tol : float, optional
        A cycle of FGMRES or CG ends when it has reduced the residual by this factor.  A cycle of GMRES ends
        when it has reduced the preconditioned residual by this factor.  By default FGMRES and CG aim at a
        tenth of the bound.  GMRES begins with 1e-4 [2]_; after a cycle that does not reduce the error enough,
        it takes 1e-8, then 1e-12.
    preconditioner : {'auto', 'factors', 'fp64'}
        The precision in which FGMRES, GMRES and CG apply the factors: that of the factors, or FP64.  'auto':
        GMRES applies them in FP64.  FGMRES and CG apply them in the precision of the factors first, and in
        FP64 if this does not converge and no more precise factors follow.  With double-double residuals, this
        field is ignored on the last rung: FGMRES and CG apply the factors in FP64, and GMRES in
        double-double.

    Raises
    ------
    InputError
        A field has a value that is not allowed.

    Notes
    -----
    A cycle of 'gmres' solves U^-1 L^-1 A d = U^-1 L^-1 r.  Each of its steps applies the factors once, as a
    step of the other methods does; with double-double residuals, several times.  At its start they are
    applied once more, to r; this does not count as a step.

    References
    ----------
    .. [1] J. Demmel et al., ACM Trans. Math. Software 32 (2006), 325-351.
    .. [2] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.
    .. [3] N. J. Higham, S. Pranesh, SIAM J. Sci. Comput. 43 (2021), A258-A277.

    Examples
    --------
    >>> import numpy as np, tcsolve
    >>> plan = tcsolve.Plan("fp16x3", fallback=False, max_steps=20)
    >>> a = np.eye(50) + 0.01
    >>> tcsolve.solve_ex(a, np.ones(50), precision=plan).precision
    'fp16x3'
    """

    update: str = "fp16x3"
    block: int | None = None
    fallback: bool = True
    scale: bool = True
    max_steps: int | None = None
    basis: int = 50
    contraction: float = 0.5
    method: str = "auto"
    inner_tol: float | None = None
    preconditioner: str = "auto"

    def __post_init__(self):
        if not (isinstance(self.update, str) and self.update == "auto" or is_update(self.update)):
            raise InputError(
                f"Plan: update is {self.update!r}, needs one of {', '.join(PRECISIONS)}, or an "
                f"emulated arithmetic: {', '.join(MODEL_NAMES)}"
            )
        for name in ("block", "max_steps", "basis"):
            value = getattr(self, name)
            if value is not None or name == "basis":
                self._store(name, require_count(f"Plan: {name}", value))
        for name in ("fallback", "scale"):
            self._store(name, require_switch(f"Plan: {name}", getattr(self, name)))
        self._store("contraction", _share("contraction", self.contraction, "0 < contraction < 1"))
        for name, known in (("method", METHODS), ("preconditioner", PRECONDITIONERS)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                raise InputError(f"Plan: {name} is {value!r}, needs one of {', '.join(known)}")
        if self.inner_tol is not None:
            needed = "0 < inner_tol < 1, or None"
            self._store("inner_tol", _share("inner_tol", self.inner_tol, needed))
        if self.method == "cg" and self.update.endswith("@each"):
            raise InputError(
                f"Plan: method='cg' does not support {self.update!r}; take {self.update.partition('@')[0]!r}"
            )

    def _store(self, name, value):
        object.__setattr__(self, name, value)  # the class is frozen


def _share(name, value, needed):
    """Return `value` as float, or raise an InputError unless it lies between 0 and 1."""
    found = require_number(f"Plan: {name}", value, needed)
    if not 0 < found < 1:
        raise InputError(f"Plan: {name} is {value!r}, needs {needed}")
    return found


def next_rung(update, working):
    """Return the next more precise update after `update`, or None at the top.

    `working` is the precision of the answer, 'fp32' or 'fp64'.  'fp16x3' follows 'fp16', 'bf16' and 'tf32'.
    For an FP64 answer, 'fp64' follows 'fp16x3', because the factors of 'fp16x3' are as accurate as those of
    'fp32'.  For an FP32 answer, 'fp32' follows 'fp16x3'.  For both, 'fp64' follows 'fp32'.  An emulated GPU
    has its own 'fp16x3'.
    """
    update, at, unit = update.partition("@")
    if update in _SINGLE and at and unit != "each":
        return f"fp16x3@{unit}"
    if update in ("fp16", "bf16", "tf32"):
        return "fp16x3"
    if update == "fp16x3" and working == "fp32":
        return "fp32"
    return None if update == "fp64" else "fp64"
