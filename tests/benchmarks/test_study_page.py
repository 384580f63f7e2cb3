"""The written study: its numbers are those of the committed rows."""

import json

import numpy as np
import pytest
from folders import BENCHMARKS, ROOT

UPDATES, IR, FGMRES, GMRES = ("bf16", "fp16", "fp16x3", "fp32"), "ir", "fgmres", "gmres"
NAMES = {"bf16": "BF16", "fp16": "FP16", "fp16x3": "FP16x3", "fp32": "FP32"}
EDGES = (0, 1e2, 1e4, 1e6, 1e8, 1e10, np.inf)
FAMILY = "svd_geo n=300 "


def mended(text):
    """Return the text with one space between words."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def text():
    return mended((ROOT / "docs/study/index.md").read_text())


class Rows:
    """The rows of a study, of the matrices that all plans have solved."""

    def __init__(self, script, variant):
        module, self.page = script("convergence"), script("_convergence_page")
        table = module.kept_table(module.VARIANTS[variant])
        self.all = self.page.complete(self.page.rounded(table))
        self.real = [row for row in self.all if row["source"] == "suitesparse"]
        self.made = [row for row in self.all if row["source"] == "generate"]

    def of(self, update, method, scale=True, rows=None):
        return self.page.of_plan(self.real if rows is None else rows, update, method, scale)

    def converged(self, *plan, **how):
        """Return (how many converge, how many there are)."""
        rows = self.of(*plan, **how)
        return sum(row["converged"] for row in rows), len(rows)

    def steps(self, *plan, **how):
        return [row["steps"] for row in self.of(*plan, **how) if row["converged"]]

    def share(self, *plan):
        good, every = self.converged(*plan)
        return f"{100 * good / every:.0f} %"

    def between(self, least, most, rows=None):
        """Return the rows of matrices whose condition number after scaling lies between the limits."""
        rows = self.real if rows is None else rows
        known = [row for row in rows if row["kappa_scaled"] is not None]
        return [row for row in known if least < row["kappa_scaled"] <= most]

    def classes(self, update, method, least, most):
        """Return (all converge, medians of the steps) in each class of condition numbers."""
        found = []
        for low, high in zip(EDGES, EDGES[1:], strict=False):
            if least <= low and high <= most:
                rows = self.between(low, high)
                good, every = self.converged(update, method, rows=rows)
                found.append((good == every, np.median(self.steps(update, method, rows=rows))))
        return found

    def limit(self, update, method):
        """Return the largest condition number of the family before the first failure, and its steps."""
        rows = [row for row in self.made if row["matrix"].startswith(FAMILY)]
        rows = sorted(self.of(update, method, rows=rows), key=lambda row: row["kappa"])
        failed = next(i for i, row in enumerate(rows) if not row["converged"])
        return rows[failed - 1]["kappa"], rows[failed - 1]["steps"]


@pytest.fixture(scope="module")
def model():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield Rows(__import__, "cpu")


@pytest.fixture(scope="module")
def gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield Rows(__import__, "cuda")


def listed(values):
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}"


def test_the_matrices(text, model):
    count = len({row["matrix"] for row in model.real})
    sizes = [row["n"] for row in model.real]
    assert count >= 150
    told = f"{count} matrices of the SuiteSparse collection [1] that were at hand, n from "
    assert f"{told}{min(sizes)} to {max(sizes)}," in text


def test_how_many_converge(text, model):
    ir, fgmres, gmres = ([model.share(u, m) for u in UPDATES] for m in (IR, FGMRES, GMRES))
    assert f"IR solves {ir[0]} with BF16 factors, {ir[1]} with FP16, {ir[2]} with FP16x3" in text
    assert f"with FP16x3 and {ir[3]} with FP32. FGMRES with the same factors solves" in text
    assert f"the same factors solves {listed(fgmres)}. So the method matters more" in text
    assert f"GMRES-IR solves {listed(gmres)}. It converges for a few" in text
    assert model.converged("bf16", FGMRES) > model.converged("fp32", IR)


def test_how_many_steps_they_take(text, model):
    steps = [model.steps(u, FGMRES) for u in UPDATES]
    medians, most = (
        [f"{q:.0f}" for q in values]
        for values in (map(np.median, steps), [np.quantile(s, 0.9) for s in steps])
    )
    assert medians[2] == medians[3]
    told = f"half take at most {medians[0]} steps with BF16, {medians[1]} with FP16, and "
    assert (
        f"{told}{medians[2]} with FP16x3 or FP32. One in ten takes more than {listed(most)}."
        in text
    )


def test_what_predicts_it(text, model):
    table = model.page.predictors(model.real)[1]
    found = {words.split(" (")[0]: sorted(map(float, cells)) for words, *cells in table}
    told = {name: f"{cells[0]:.2f} to {cells[-1]:.2f}" for name, cells in found.items()}
    assert f"- {told['condition number']} for the condition number of A;" in text
    assert f"- {told['condition number after scaling']} for that of the scaled matrix" in text
    assert f"- {told['condition of Bauer and Skeel']} for the condition of Bauer" in text
    spread = told["largest entry / smallest entry"]
    dominance = told["diagonal entry / sum of the rest of its row"]
    assert (
        f"- {spread} for the quotient of the largest and the smallest entry, and {dominance} for the"
        in text
    )
    assert (
        f"- {told['backward error of the first x']} for the backward error of the first x:" in text
    )
    (contraction,) = (cells for words, *cells in table if words.startswith("contraction"))
    values = sorted(map(float, contraction[::2]))
    assert f"has a probability of {values[0]:.2f} to {values[-1]:.2f}, and costs nothing" in text


def test_the_two_rules(text, model):
    table = {tuple(row[:2]): row[2:] for row in model.page.rules(model.real)[1]}
    for (_, method), (by_kappa, _, by_step, _) in table.items():
        for cell in (by_kappa, by_step) if method == FGMRES else (by_kappa,):
            good, every = cell.split(" of ")
            assert good == every
    rest = [table[u, FGMRES][3] for u in UPDATES]
    assert (
        f"{rest[0]} still converge for BF16, {rest[1]} for FP16, {rest[2]} for FP16x3, and" in text
    )
    assert f"and {rest[3]} for FP32. Matrices whose first x" in text
    shares = {u: np.divide(*map(int, table[u, FGMRES][1].split(" of "))) for u in UPDATES}
    least, most = min(shares, key=shares.get), max(shares, key=shares.get)
    told = f"between {100 * shares[least]:.0f} % ({NAMES[least]}) and {100 * shares[most]:.0f} %"
    assert f"FGMRES solves {told} ({NAMES[most]})." in text


def test_what_to_use_when(text, model):
    low = [model.classes(u, FGMRES, 0, 1e4) for u in UPDATES]
    assert all(good for classes in low for good, _ in classes)
    halves = [median for classes in low[:2] for _, median in classes]
    assert {median for classes in low[2:] for _, median in classes} == {2}
    told = f"the median of the steps is {min(halves):.0f} to {max(halves):.0f} with BF16 and FP16, 2 with"
    assert told in text
    good, every = model.converged("bf16", IR, rows=model.between(0, 1e4))
    assert f"IR fails for {every - good} of {every} with BF16" in text

    middle = [model.classes(*plan, 1e4, 1e8) for plan in (("fp16x3", IR), ("fp32", IR))]
    assert {c for classes in middle for c in classes} == {(True, 2), (True, 3)}
    assert "FP16x3 or FP32 with IR: all are solved, median 2 or 3 steps." in text
    (one, first), (two, second) = model.classes("fp16", FGMRES, 1e4, 1e8)
    assert one and two
    assert f"FP16 with FGMRES: all are solved, median {first:.0f} or {second:.0f} |" in text

    high = [model.classes(u, FGMRES, 1e8, 1e10)[0] for u in UPDATES]
    assert [good for good, _ in high] == [False, False, True, True]
    medians = sorted(median for _, median in high[2:])
    count = len({row["matrix"] for row in model.between(1e8, 1e10)})
    told = f"solve all of the {count} matrices, median {medians[0]:.0f} or {medians[1]:.0f} steps"
    assert told in text

    rows = model.between(1e10, np.inf)
    good, every = model.converged("fp32", FGMRES, rows=rows)
    median = np.median(model.steps("fp32", FGMRES, rows=rows))
    told = f"solves {100 * good / every:.0f} %, with a median of {median:.0f} steps"
    assert f"FGMRES with FP32 factors {told}" in text


def test_what_scaling_changes(text, model):
    table = {tuple(row[:2]): row[2:4] for row in model.page.scaling(model.real)[1]}
    one, other = table["bf16", IR]
    assert f"{one} matrices converge only with it, and {other} only without it" in text
    one, other = table["fp16", IR]
    assert f"With FP16 factors these numbers are {one} and {other}." in text
    rest = [cells for (u, m), cells in table.items() if m != IR or u in ("fp16x3", "fp32")]
    one, other = np.max(rest, axis=0)
    told = f"the first is at most {one} and the second at most {other}"
    assert f"With FGMRES or GMRES-IR, or with FP16x3 or FP32 factors, {told}." in text


def test_how_the_steps_grow(text, model):
    roundoff = model.page.ROUNDOFF
    ir = {u: model.limit(u, IR)[0] for u in UPDATES}
    fails = [round(np.log10(ir[u])) + 1 for u in UPDATES]
    assert fails[2] == fails[3]
    told = f"IR fails from $\\kappa = 10^{fails[0]}$ on with BF16, from $10^{fails[1]}$ with FP16, and "
    assert f"{told}from $10^{fails[2]}$ with FP16x3 and FP32." in text
    products = sorted(roundoff[u] * ir[u] for u in UPDATES)
    assert f"is between {products[0]:.1f} and {products[-1]:.1f}." in text
    most = {u: model.limit(u, FGMRES) for u in UPDATES}
    gains = [round(np.log10(most[u][0] / ir[u])) for u in UPDATES]
    words = {2: "two", 3: "three", 4: "four"}
    assert gains[2] == gains[3]
    told = f"by {words[gains[0]]} powers of ten with BF16, by {words[gains[1]]} with FP16, and by "
    assert f"{told}{words[gains[2]]} with the others." in text
    steps = sorted(steps for _, steps in most.values())
    assert f"it takes {steps[0]} to {steps[-1]} steps" in text


def test_what_the_sums_change(text):
    rows = json.loads((BENCHMARKS / "results/convergence_exact.json").read_text())["rows"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        module = __import__("convergence_exact")
    cells = [
        module.compared(rows, u, m, scale)
        for u in module.UPDATES
        for m in module.METHODS
        for scale in (True, False)
    ]
    real = {row["matrix"] for row in rows if row["source"] == "suitesparse"}
    made = {row["matrix"] for row in rows} - set(real)
    assert f"{len(real)} matrices of the collection and {len(made)} generated ones" in text
    alone = [abs(row[4] - row[5]) for row in cells]
    told = f"the number of matrices that converge changes by at most {max(alone)}"
    assert told in text and all(row[6] == row[7] for row in cells)
    assert f"{told}, and the median of the steps is the same" in text


def test_the_same_on_a_gpu(text, model, gpu):
    sizes = [row["n"] for row in gpu.real]
    real, made = ({row["matrix"] for row in rows} for rows in (gpu.real, gpu.made))
    told = f"{len(real)} of these matrices, n from {min(sizes)} to {max(sizes)}, and {len(made)} generated"
    assert told in text
    own = [row for row in model.real if row["matrix"] in real]
    names = {IR: "IR", FGMRES: "FGMRES", GMRES: "GMRES-IR"}
    for u in UPDATES:
        for method, name in names.items():
            first, second = model.steps(u, method, rows=own), gpu.steps(u, method)
            cells = [len(first), len(second), f"{np.median(first):g}", f"{np.median(second):g}"]
            assert f"| {NAMES[u]}, {name} | {' | '.join(map(str, cells))} |" in text

    table = {tuple(row[:2]): row[2:] for row in gpu.page.rules(gpu.real)[1]}
    for by_kappa, *_ in table.values():
        good, every = by_kappa.split(" of ")
        assert good == every
    held = [table[u, FGMRES][2] for u in UPDATES]
    assert f"holds in {held[0]} cases for BF16, in {held[2]} for FP16x3, and in all for the" in text
    assert all(cell.split(" of ")[0] == cell.split(" of ")[1] for cell in (held[1], held[3]))
    rows = gpu.between(1e10, np.inf)
    good, every = gpu.converged("fp32", FGMRES, rows=rows)
    assert f"Above $10^{{10}}$, FP32 factors solve {100 * good / every:.0f} %." in text
    rows = gpu.between(1e4, 1e8, gpu.made)
    good, every = gpu.converged("fp16", FGMRES, rows=rows)
    assert f"it solves {good} of the {every} from 1e4 to 1e8" in text


def test_the_published_counts(text):
    for table in ("bf16", "scaling", "spd", "limits"):
        rows = json.loads((BENCHMARKS / f"results/published_{table}.json").read_text())["rows"]
        verdicts = [row["verdict"] for row in rows if "theirs" in row or "proved up to" in row]
        agree, missing = verdicts.count("agree"), verdicts.count("not explained")
        explained = len(verdicts) - agree - missing
        assert f"| {len(verdicts)} | {agree} | {explained} | {missing} |" in text, table
