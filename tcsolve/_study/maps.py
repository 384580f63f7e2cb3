"""Pictures of areas: the heat map of matrices and plans, and spectra in the complex plane."""

import numpy as np

from tcsolve._study.looks import chosen, looks_of, panels, short_names

__all__ = ["DRAWINGS"]

# Each status that is a failure has a letter in the heat map.
LETTERS = {
    **{"STALLED": "s", "NOT_CONVERGED": "n", "SINGULAR": "0", "RAISED": "r", "CRASHED": "c"},
    **{"NONFINITE_INPUT": "f", "OVERFLOW": "o", "UNDERFLOW": "u"},
}
# With more matrices than these, cells have no numbers, and rows no names.
MOST_NUMBERS, MOST_NAMES = 60, 200
MOST_SPECTRA = 5
GREY = 0.86


def _heatmap(figure, table, measure="steps"):
    """Draw a cell for each matrix and plan: its steps, or a letter for its failure."""
    from matplotlib.colors import LogNorm

    rows = chosen(list(table.ran), "a run")
    names = short_names(row["plan"] for row in rows)
    kappa = {row["matrix"]: row.get("kappa") or np.inf for row in rows}
    matrices = sorted(kappa, key=kappa.get)
    cells, failed = np.full((len(matrices), len(names)), np.nan), {}
    for row in rows:
        place = matrices.index(row["matrix"]), list(names).index(row["plan"])
        if row["converged"]:
            cells[place] = row[measure]
        else:
            failed[place] = LETTERS.get(row["status"], "x")
    line = 0.16 if len(matrices) <= MOST_NUMBERS else 0.075
    figure.set_size_inches(max(3.4, 1.6 + 0.5 * len(names)), 1.6 + line * len(matrices))
    ax = figure.subplots()
    least = 1 if measure == "steps" else np.nanmin(cells[cells > 0], initial=np.inf)
    with np.errstate(invalid="ignore"):
        most = max(np.nanmax(cells, initial=2 * least), 2 * least)
        shown = np.maximum(cells, least)
    image = ax.imshow(shown, aspect="auto", cmap="cividis_r", norm=LogNorm(least, most))
    grey = np.full((*cells.shape, 4), GREY)  # a cell without a run stays white
    grey[..., 3] = 0
    for place in failed:
        grey[place][3] = 1
    ax.imshow(grey, aspect="auto")
    if len(matrices) <= MOST_NUMBERS:
        _numbers(ax, cells, failed, np.sqrt(least * most))
    ax.grid(False)
    ax.set_xticks(
        range(len(names)), names.values(), rotation=40, ha="right", rotation_mode="anchor"
    )
    small = 6 if len(matrices) <= MOST_NUMBERS else 4
    if len(matrices) <= MOST_NAMES:
        ax.set_yticks(range(len(matrices)), matrices, fontsize=small)
    ax.set_ylabel(r"matrices, from small (top) to large $\kappa$")
    figure.colorbar(image, ax=ax, label=measure, format="{x:g}", aspect=40, shrink=0.8)
    told = sorted({letter for letter in failed.values()})
    meaning = ", ".join(f"{v} {k.lower()}" for k, v in LETTERS.items() if v in told)
    meaning = f" ({meaning})" if meaning and len(matrices) <= MOST_NUMBERS else ""
    ax.set_title(f"{measure.capitalize()} to converge; grey: not converged{meaning}")


def _numbers(ax, cells, failed, middle):
    for (i, j), value in np.ndenumerate(cells):
        if (i, j) in failed:
            ax.text(j, i, failed[i, j], ha="center", va="center", fontsize=6, color="0.25")
        elif np.isfinite(value):
            dark = "white" if value > middle else "black"
            ax.text(j, i, f"{value:.3g}", ha="center", va="center", fontsize=6, color=dark)


def _spectrum(figure, table, matrix=None):
    """Draw the eigenvalues of A, and of the matrix that the factors make of it, for some plans."""
    rows = chosen([row for row in table.ran if row.get("spectrum")], "a spectrum", matrix)
    matrix = rows[0]["matrix"] if matrix is None else matrix
    # Plans with the same factors have the same spectrum; it is drawn once.
    distinct = {str(row["spectrum"]): row for row in reversed(rows) if row["matrix"] == matrix}
    rows = list(reversed(distinct.values()))[:MOST_SPECTRA]
    looks = looks_of(row["plan"] for row in rows)
    before, *after = panels(figure, 1 + len(rows))
    _eigenvalues(before, rows[0]["spectrum"]["before"], "0.3", "$A$", 0)
    for ax, row in zip(after, rows, strict=True):
        look = looks[row["plan"]]
        title = rf"$M^{{-1}} A - I$, {look['label']}"
        _eigenvalues(ax, row["spectrum"]["after"], look["color"], title, 1)
    for ax in (before, *after):
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("imaginary part")
    kappa = rf", $\kappa$ = {rows[0]['kappa']:.0e}" if rows[0].get("kappa") else ""
    figure.suptitle(
        f"Eigenvalues of {matrix}{kappa}, and of the error $M^{{-1}} A - I$ of its factors",
        fontsize=8,
    )


def _eigenvalues(ax, pairs, colour, title, shift):
    real, imaginary = np.array(pairs).T
    real = real - shift
    ax.plot(real, imaginary, "o", color=colour, markersize=2.5, alpha=0.7, markeredgewidth=0)
    spread = max(np.ptp(real), np.ptp(imaginary), 1e-15)
    if np.ptp(imaginary) < 1e-3 * spread:  # real eigenvalues: no magnified rounding errors
        ax.set_ylim(-spread / 2, spread / 2)
    ax.set(title=title, xlabel="real part")
    ax.locator_params(nbins=4)


DRAWINGS = {"heatmap": _heatmap, "spectrum": _spectrum}
