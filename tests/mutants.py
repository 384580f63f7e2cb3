"""Do the tests see a mistake? A mutant is one changed line of the library; the tests of its part run on it.

    python tests/mutants.py                   # all of them
    python tests/mutants.py --only 3 7

A mutant is killed if a test fails, or does not end. If no test can distinguish a mutant from the library, its
entry gives the reason. The script fails if a mutant without a reason survives, or if fewer than `LEAST` of
the mutants that change the behaviour of the library are killed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Folders of the repository, and where they are in the package.
INSTALLED = {"tcsolve": "tcsolve", "kernels": "tcsolve/kernels", "matrices": "tcsolve/matrices"}
# The tests of each part; those that kill most mutants come first.
PARTS = {
    "refine": (
        *("refine", "solve/test_ladder.py", "solve/test_statuses.py", "solve/test_nonfinite.py"),
        *("solve/test_small_and_structured.py", "solve/test_promises.py", "solve/test_bytes.py"),
    ),
    "lu": (
        *("lu", "solve/test_condition.py", "solve/test_range.py", "solve/test_statuses.py"),
        *("solve/test_ladder.py", "solve/test_factorization.py", "solve/test_singular.py"),
    ),
    "solve": (
        *("solve/test_statuses.py", "solve/test_range.py", "solve/test_small_and_structured.py"),
        *("solve/test_condition.py", "solve/test_ladder.py", "solve/test_contract.py"),
        *("solve/vendor", "solve"),
    ),
    "gemm": ("gemm", "arithmetic"),
}
LEAST = 0.9
LONGEST_SECONDS = 1800


class Mutant(NamedTuple):
    """One line of a file of tcsolve/, and its replacement.

    `equivalent` says why the behaviour does not change, `survives` why no test sees the change.
    """

    part: str
    file: str
    old: str
    new: str
    equivalent: str = ""
    survives: str = ""


MUTANTS = (
    Mutant(
        "refine",
        "_refine/stopping.py",
        "return np.asarray(error) <= factor * np.asarray(previous)",
        "return np.asarray(error) < factor * np.asarray(previous)",
    ),
    Mutant(
        "refine",
        "_refine/krylov.py",
        "d = z.combined(ops.xp.asarray(weights)).T * size",
        "d = z.combined(ops.xp.asarray(weights)).T / size",
    ),
    Mutant(
        "refine",
        "_refine/krylov.py",
        "room = min(most, FIRST_OF_ONE if k == 1 else FIRST_VECTORS)",
        "room = min(most, FIRST_OF_ONE if k != 1 else FIRST_VECTORS)",
        equivalent="Only the first capacity changes; the plan of the bytes uses the same function.",
    ),
    Mutant(
        "refine",
        "_refine/loop.py",
        "going = bool(error > task.goal and error <= contraction * before and taken < task.max_steps)",
        "going = bool(error > task.goal or error <= contraction * before and taken < task.max_steps)",
    ),
    Mutant(
        "refine",
        "_refine/krylov.py",
        "self.done |= ~(self.reduction > self.tol) | (size == 0) | (self.steps >= self.basis)",
        "self.done |= ~(self.reduction >= self.tol) | (size == 0) | (self.steps >= self.basis)",
        equivalent="They differ where a reduction equals the tolerance in all bits.",
    ),
    Mutant(
        "refine",
        "_refine/loop.py",
        "(better,) = (error < self.error[",
        "(better,) = (error > self.error[",
    ),
    Mutant(
        "refine",
        "_refine/krylov.py",
        "if give_up and j + 1 >= WARM_UP_STEPS and give_up(j + 1, triangle.worst):",
        "if give_up and j + 1 >= WARM_UP_STEPS or give_up(j + 1, triangle.worst):",
    ),
    Mutant(
        "refine",
        "_solve/refinement.py",
        'if x.dtype.kind == "c" and dtype.kind != "c":',
        'if x.dtype.kind == "c" and dtype.kind == "c":',
    ),
    Mutant(
        "refine",
        "_refine/loop.py",
        "& (state.steps[these] < task.max_steps)",
        "& (state.steps[these] <= task.max_steps)",
    ),
    Mutant(
        "refine",
        "_refine/operator.py",
        "scaled = r * operator.row[:, None], x / operator.col[:, None]",
        "scaled = r * operator.row[:, None], x * operator.col[:, None]",
    ),
    Mutant(
        "refine",
        "_refine/loop.py",
        "left = ~state.converged & ~np.isnan(state.error) & (state.steps < task.max_steps)",
        "left = ~state.converged & ~np.isnan(state.error) & (state.steps <= task.max_steps)",
    ),
    Mutant(
        "refine",
        "_refine/loop.py",
        "is_dear = task.krylov_worth * len(state.error) / max(left.size, 1) < WARM_UP_STEPS",
        "is_dear = task.krylov_worth * len(state.error) / max(left.size, 1) >= WARM_UP_STEPS",
    ),
    Mutant(
        "refine",
        "_refine/loop.py",
        "best = taken if error < before else best",
        "best = taken if error <= before else best",
        equivalent="They differ where two errors are equal in all bits.",
    ),
    Mutant(
        "refine",
        "_refine/stopping.py",
        'return bound - 2.0**-24 if dtype.char in "fF" else bound',
        'return bound + 2.0**-24 if dtype.char in "fF" else bound',
    ),
    Mutant(
        "refine",
        "_solve/refinement.py",
        "ordinary = np.isfinite(error) & (size > 1 / SAFE) & (size < SAFE)",
        "ordinary = np.isfinite(error) & (size >= 1 / SAFE) & (size < SAFE)",
        equivalent="At the limit both ways to compute the error are right.",
    ),
    Mutant(
        "lu",
        "_backends/cpu/lu.py",
        "unscale, u = u.dtype.type(1 / (2.0**TOP_EXPONENT * scale)), u * u.dtype.type(scale)",
        "unscale, u = u.dtype.type(1 * (2.0**TOP_EXPONENT * scale)), u * u.dtype.type(scale)",
    ),
    Mutant(
        "lu",
        "_lu/norms.py",
        "if size < 0.5 * largest:",
        "if size <= 0.5 * largest:",
        equivalent="They differ where the estimate of a sweep is exactly half as large as the largest one.",
    ),
    Mutant(
        "lu",
        "_lu/norms.py",
        "if norm_one == 0 or not math.isfinite(norm_one):",
        "if norm_one == 0 and not math.isfinite(norm_one):",
    ),
    Mutant(
        "lu",
        "_backends/cpu/lu.py",
        "scaled = l * l.dtype.type(2.0**TOP_EXPONENT)",
        "scaled = l / l.dtype.type(2.0**TOP_EXPONENT)",
    ),
    Mutant(
        "lu",
        "_contract/schedule.py",
        "if n - panel.stop < rules.overlap_rows:",
        "if n + panel.stop < rules.overlap_rows:",
        equivalent="Looking ahead changes no bit, only the order of the work.",
    ),
    Mutant(
        "lu",
        "_lu/elimination.py",
        "if len(self.strips) > 1 and self._solve is None:",
        "if len(self.strips) >= 1 and self._solve is None:",
        equivalent="A single strip is solved correctly with and without an inverse.",
    ),
    Mutant(
        "lu",
        "_lu/norms.py",
        "return MAX_SWEEPS - 1 if n in ALL_AT_ONCE and not dominant else SWEEPS_AT_ONCE",
        "return MAX_SWEEPS - 1 if n in ALL_AT_ONCE or not dominant else SWEEPS_AT_ONCE",
    ),
    Mutant(
        "lu",
        "_lu/norms.py",
        "if not left < CONTRACTED * before:",
        "if left < CONTRACTED * before:",
        survives="The probes take one step more or less, and no test problem depends on this step.",
    ),
    Mutant(
        "lu",
        "_lu/elimination.py",
        "if self.plan.is_wide and not self.plan.ends_early:",
        "if self.plan.is_wide or not self.plan.ends_early:",
    ),
    Mutant(
        "lu",
        "_backends/cpu/lu.py",
        "return (round_to(x.real, fmt) + 1j * round_to(x.imag, fmt)).astype(x.dtype)",
        "return (round_to(x.real, fmt) - 1j * round_to(x.imag, fmt)).astype(x.dtype)",
    ),
    Mutant(
        "lu",
        "_lu/scaling.py",
        "exponent = xp.where(v == 0, NO_EXPONENT, exponent_of(xp, v) + shift).max(axis=-2)",
        "exponent = xp.where(v == 0, NO_EXPONENT, exponent_of(xp, v) - shift).max(axis=-2)",
    ),
    Mutant(
        "lu",
        "_lu/scaling.py",
        "return Shift(exponent) if (np.abs(exponent) > FRAME_EXPONENT).any() else None",
        "return Shift(exponent) if (np.abs(exponent) >= FRAME_EXPONENT).any() else None",
    ),
    Mutant(
        "lu",
        "_backends/cpu/lu.py",
        "if bound is not None and not (np.abs(l) <= 1).all():",
        "if bound is not None and not (np.abs(l) < 1).all():",
    ),
    Mutant(
        "lu",
        "_lu/norms.py",
        "r = b - ops.product(a, x) if r is None else r",
        "r = b - ops.product(a, x) if r is not None else r",
    ),
    Mutant(
        "lu",
        "_lu/scaling.py",
        "error = np.ldexp(rest / norm[0] / size, of_rest - norm[1] - of_size)",
        "error = np.ldexp(rest / norm[0] * size, of_rest - norm[1] - of_size)",
    ),
    Mutant(
        "solve",
        "_solve/vendor/measure.py",
        "least = min(1 / one / grown, 1.0)",
        "least = min(1 * one / grown, 1.0)",
    ),
    Mutant(
        "solve",
        "_solve/ladder/condition.py",
        "part = xp.abs(x / top)",
        "part = xp.abs(x * top)",
    ),
    Mutant(
        "solve",
        "_solve/vendor/measure.py",
        "exact = (size < SAFE) & ((size > 1 / SAFE) | (size == 0) & (rest == 0))",
        "exact = (size < SAFE) & ((size > 1 * SAFE) | (size == 0) & (rest == 0))",
    ),
    Mutant(
        "solve",
        "_solve/ladder/verified.py",
        "rcond = condition.least if met and condition.least else condition.rcond()",
        "rcond = condition.least if met or condition.least else condition.rcond()",
    ),
    Mutant(
        "solve",
        "_solve/ladder/short_refinement.py",
        "bool(((size > 1 / TOP) | ~b.any(axis=0)).all())",
        "bool(((size > 1 * TOP) | ~b.any(axis=0)).all())",
    ),
    Mutant(
        "solve",
        "_solve/host/direct.py",
        "if not (norm < math.inf and norm_one < math.inf and norm > 0):",
        "if not (norm <= math.inf and norm_one < math.inf and norm > 0):",
        equivalent="Where only a row sum overflows, this code scales the matrix as the ladder does.",
    ),
    Mutant(
        "solve",
        "_solve/ladder/determinant.py",
        "phase, log = ops.host((diagonal / size).prod(), xp.log(size).sum())",
        "phase, log = ops.host((diagonal * size).prod(), xp.log(size).sum())",
    ),
    Mutant(
        "solve",
        "_solve/routes.py",
        'if structure == "positive definite" and not _may_be_definite(ops, a):',
        'if structure != "positive definite" and not _may_be_definite(ops, a):',
    ),
    Mutant(
        "solve",
        "_solve/vendor/repair.py",
        "if a.shape[-1] <= SMALL:",
        "if a.shape[-1] < SMALL:",
        survives="Only residuals of exactly 32 unknowns are rounded more, by less than the bound.",
    ),
    Mutant(
        "solve",
        "_solve/ladder/condition.py",
        "own = own or self._condest(near)  # gecon has no `doubt`",
        "own = own and self._condest(near)  # gecon has no `doubt`",
    ),
    Mutant(
        "solve",
        "_solve/verify/backward_error.py",
        "if a.shape[-1] <= SMALL:",
        "if a.shape[-1] < SMALL:",
        survives="Only errors of exactly 32 unknowns are rounded more, by less than the bound.",
    ),
    Mutant(
        "solve",
        "_solve/problem/trivial.py",
        "singular = zero and b.size > 0  # an empty b needs no answer",
        "singular = zero and b.size >= 0  # an empty b needs no answer",
    ),
    Mutant(
        "solve",
        "_solve/ladder/ladder.py",
        "wait and (lambda: wait() if made == self.made and self.rung.factors.are_good else ())",
        "wait and (lambda: wait() if made == self.made or self.rung.factors.are_good else ())",
        equivalent="On the host no steps are done ahead.",
    ),
    Mutant(
        "solve",
        "_solve/ladder/condition.py",
        "if self.least or self._is_known or ladder.is_busy:",
        "if self.least and self._is_known or ladder.is_busy:",
        equivalent="An estimate is started but not used, which only costs time.",
    ),
    Mutant(
        "solve",
        "_solve/routes.py",
        'at_once = ops.device == "cpu" and request.precision == "auto" and request.with_fp64',
        'at_once = ops.device == "cpu" and request.precision != "auto" and request.with_fp64',
    ),
    Mutant(
        "solve",
        "_solve/host/ways.py",
        "return GENERAL if len(a) <= LARGEST_DIRECT else None",
        "return GENERAL if len(a) < LARGEST_DIRECT else None",
        equivalent="At that size both ways give right answers.",
    ),
    Mutant(
        "solve",
        "_solve/choice/memory.py",
        "if missing > (free := ops.free_bytes(missing)):",
        "if missing >= (free := ops.free_bytes(missing)):",
    ),
    Mutant(
        "gemm",
        "_gemm/float64_operands.py",
        "once = [x[:1] if x.ndim == 3 and x.strides[0] == 0 else x for x in (a, b)]",
        "once = [x[:1] if x.ndim == 3 and x.strides[0] != 0 else x for x in (a, b)]",
    ),
    Mutant(
        "gemm",
        "_backends/cpu/gemm.py",
        "result = result * result.dtype.type(alpha)",
        "result = result / result.dtype.type(alpha)",
    ),
    Mutant(
        "gemm",
        "_arithmetic/products.py",
        "return 1.25 * k * truncation + len(product.terms) * truncation",
        "return 1.25 * k * truncation - len(product.terms) * truncation",
    ),
    Mutant(
        "gemm",
        "_arithmetic/products.py",
        'rounding = FORMATS["fp32"].u if product.dtype == "float64" and u > 2.0**-53 else 0.0',
        'rounding = FORMATS["fp32"].u if product.dtype != "float64" and u > 2.0**-53 else 0.0',
    ),
    Mutant(
        "gemm",
        "_arithmetic/products.py",
        "if bound <= rtol:",
        "if bound < rtol:",
    ),
    Mutant(
        "gemm",
        "_gemm/checks.py",
        "return tuple((int(x) + 2**31) % 2**32 - 2**31 for x in (alpha, beta))",
        "return tuple((int(x) + 2**31) % 2**32 + 2**31 for x in (alpha, beta))",
    ),
    Mutant(
        "gemm",
        "_arithmetic/products.py",
        "LARGEST_INT8_K = 2**17 - 1",
        "LARGEST_INT8_K = 2**17 + 1",
    ),
    Mutant(
        "gemm",
        "_gemm/checks.py",
        'if accumulator == "int32" and not _is_whole(value):',
        'if accumulator == "int32" or not _is_whole(value):',
    ),
    Mutant(
        "gemm",
        "_arithmetic/formats.py",
        'storage = FORMATS["fp32" if self.storage == "float32" else "fp64"].u',
        'storage = FORMATS["fp32" if self.storage != "float32" else "fp64"].u',
    ),
    Mutant(
        "gemm",
        "_gemm/checks.py",
        "if c is not None and not _same_place(out, c) and overlap(out, c):",
        "if c is None and not _same_place(out, c) and overlap(out, c):",
    ),
    Mutant(
        "gemm",
        "_gemm/float64_operands.py",
        "if xp is np and not beside_inf:  # reading `beside_inf` on a device would wait for the device",
        "if xp is np or not beside_inf:  # reading `beside_inf` on a device would wait for the device",
    ),
    Mutant(
        "gemm",
        "_gemm/task.py",
        "if x.ndim == 3 and x.shape[0] == batch:",
        "if x.ndim == 3 or x.shape[0] == batch:",
    ),
    Mutant(
        "gemm",
        "_gemm/float64_operands.py",
        "result += beta * ops.converted(c, DOUBLE)",
        "result += beta / ops.converted(c, DOUBLE)",
    ),
)


def installed(folder, mutant=None):
    """Copy the package as it is installed to a folder, with the line of a mutant replaced."""
    for source, place in INSTALLED.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / source, folder / place, ignore=ignored, dirs_exist_ok=True)
    if mutant is not None:
        path = folder / "tcsolve" / mutant.file
        text = path.read_text("utf-8")
        if text.count(mutant.old) != 1:
            sys.exit(
                f"{mutant.file} has {text.count(mutant.old)} times the line {mutant.old!r}; 1 is needed"
            )
        path.write_text(text.replace(mutant.old, mutant.new), "utf-8")


def first_failure(mutant, tests):
    """Run the tests of a mutant's part; return the name of the first one that fails, or None."""
    with tempfile.TemporaryDirectory() as folder:
        installed(Path(folder), mutant)
        command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "--no-header"]
        command += ["-p", "no:cacheprovider", "-m", "not gpu and not nvrtc"]
        command += [tests / name for name in PARTS[mutant.part]]
        variables = os.environ | {"PYTHONPATH": folder, "OPENBLAS_NUM_THREADS": "1"}
        options = {"capture_output": True, "text": True, "env": variables}
        try:
            run = subprocess.run(command, cwd=tests.parent, timeout=LONGEST_SECONDS, **options)
        except subprocess.TimeoutExpired:
            return "the tests do not end"
    if run.returncode == 0:
        return None
    lines = run.stdout.splitlines()
    return next((x for x in lines if x.startswith(("FAILED", "ERROR"))), "the tests do not start")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these mutants")
    parser.add_argument(
        "--tests", type=Path, default=ROOT / "tests", help="another folder of tests"
    )
    options = parser.parse_args()

    wrong = [n for n in options.only or () if not 0 <= n < len(MUTANTS)]
    wrong += [
        n for n in options.only or () if not wrong and options.part not in (None, MUTANTS[n].part)
    ]
    if wrong:
        parser.error(f"no mutant of {options.part or 'any part'} has the number {wrong[0]}")
    killed = changing = unexplained = 0
    for number, mutant in enumerate(MUTANTS):
        if options.part not in (None, mutant.part) or number not in (options.only or [number]):
            continue
        if mutant.equivalent:
            print(
                f"{number:2} equivalent {mutant.file}: {mutant.new}: {mutant.equivalent}",
                flush=True,
            )
            continue
        failure = first_failure(mutant, options.tests.absolute())
        changing += 1
        killed += failure is not None
        unexplained += failure is None and not mutant.survives
        told = "killed  " if failure else "survived"
        reason = failure or mutant.survives
        print(f"{number:2} {told} {mutant.file}: {mutant.new}: {reason}", flush=True)
    print(f"{killed} of {changing} mutants are killed")
    return int(unexplained > 0 or killed < LEAST * changing)


if __name__ == "__main__":
    sys.exit(main())
