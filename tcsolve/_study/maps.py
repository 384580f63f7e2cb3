"""Two kinds of pictures: the heat map of matrices and plans, and spectra in the complex plane."""

import itertools
import math
import textwrap

import numpy as np

from tcsolve._errors import InputError
from tcsolve._study.layout import LETTER, fit, grid, heading, panels, wrapped
from tcsolve._study.looks import chosen, groups_of, require_numbers, shared_words, words

__all__ = ["DRAWINGS", "heatmap_pages"]

# The letters of failures in the heat map; a status that is not listed has the letter x.
LETTERS = {
    **{"STALLED": "s", "NOT_CONVERGED": "n", "SINGULAR": "0", "RAISED": "r", "CRASHED": "c"},
    **{"NONFINITE_INPUT": "f", "OVERFLOW": "o", "UNDERFLOW": "u"},
}
# Largest number of matrices on a page.
MOST_MATRICES = 85
# (largest number of plans, width of a cell in inches), and (largest number of matrices, height of a cell in
# inches, size of the letters).
WIDTHS = ((8, 0.42), (16, 0.3), (math.inf, 0.215))
HEIGHTS = ((30, 0.16, 6), (math.inf, 0.105, 5))
# Least height of the axes of a heat map, and width of a letter divided by its size.
LEAST_HEIGHT, SLENDER = 1.0, 0.62
MOST_SPECTRA = 5
# Height of a line of the names of plans, in inches.
LINE = 0.11
WHOLE_WORDS = {"break_long_words": False, "break_on_hyphens": False}
GREY = 0.86


def heatmap_pages(table):
    """Return the number of pages of the heat map."""
    return -(-len({row["matrix"] for row in table.ran}) // MOST_MATRICES)


def _heatmap(figure, table, measure="steps", page=1):
    """Draw a cell for each matrix and plan: its steps, or a letter for its failure."""
    rows = chosen(list(table.ran), "a run")
    if measure != "steps":  # a table without steps is no error: every run may have failed
        require_numbers(rows, "heatmap: measure", measure)
    groups, shared = groups_of(rows), shared_words(rows)
    kappa = {row["matrix"]: row.get("kappa") or np.inf for row in rows}
    matrices, told = _page_of(sorted(kappa, key=kappa.get), page, heatmap_pages(table))
    cells, failed = _cells(rows, matrices, [plan for g in groups for plan in g.looks], measure)
    width = next(size for most, size in WIDTHS if cells.shape[1] <= most)
    height, letter = next(sizes for most, *sizes in HEIGHTS if len(matrices) <= most)
    (ax,) = grid(figure, 1, 1, 1.9 + width * cells.shape[1])
    norm = _norm(cells, measure)
    image = ax.imshow(np.maximum(cells, norm.vmin), aspect="auto", cmap="cividis_r", norm=norm)
    grey = np.full((*cells.shape, 4), GREY)  # a cell without a run stays white
    grey[..., 3] = 0
    for place in failed:
        grey[place][3] = 1
    ax.imshow(grey, aspect="auto")
    texts = _numbers(ax, cells, failed, norm, min(letter, 5.5 if width < 0.3 else letter))
    tall = max(LEAST_HEIGHT, height * len(matrices))
    _heatmap_axes(ax, groups, matrices, letter, int(tall / LETTER), width)
    _bar(figure, ax, image, words(measure))
    letters = ", ".join(f"{v} {k.lower()}" for k, v in LETTERS.items() if v in failed.values())
    grey_is = "; grey: not converged" + (f" ({letters})" if letters else "") if failed else ""
    runs = f"{words(measure).capitalize()} of the runs that converged"
    shown = "Steps to converge" if measure == "steps" else runs
    heading(figure, shown + told + grey_is, shared)
    fit(figure, tall)
    _shrink(texts, ax.get_position().width * figure.get_size_inches()[0] / cells.shape[1])


def _page_of(matrices, page, pages):
    """Return the matrices of a page, and the words that tell which page it is."""
    if not 1 <= page <= pages:
        raise InputError(f"study: the heat map has no page {page}; it has {pages}")
    most = -(-len(matrices) // pages)
    told = f", page {page} of {pages}" if pages > 1 else ""
    return matrices[(page - 1) * most : page * most], told


def _cells(rows, matrices, plans, measure):
    """Return the values of the cells, NaN where there is none; and the letters of the runs that failed."""
    lines, columns = ({name: i for i, name in enumerate(names)} for names in (matrices, plans))
    cells, failed = np.full((len(matrices), len(plans)), np.nan), {}
    for row in rows:
        if row["matrix"] not in lines:
            continue
        place = lines[row["matrix"]], columns[row["plan"]]
        if not row["converged"]:
            failed[place] = LETTERS.get(row["status"], "x")
        elif row.get(measure) is not None:
            cells[place] = row[measure]
    return cells, failed


def _norm(cells, measure):
    from matplotlib.colors import LogNorm

    positive = cells[cells > 0]
    least = 1 if measure == "steps" else positive.min(initial=np.inf)
    least = least if np.isfinite(least) else 1
    return LogNorm(least, max(positive.max(initial=0), 2 * least))


def _bar(figure, ax, image, label):
    """Draw the colour bar; if it spans few decades, it also shows 2 and 5 times the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    norm = image.norm
    digits = (1, 2, 5) if norm.vmax < 1e3 * norm.vmin else (1,)
    how = {"format": "{x:g}", "ticks": LogLocator(subs=digits), "aspect": 40, "shrink": 0.8}
    bar = figure.colorbar(image, ax=ax, label=label, **how)
    bar.ax.yaxis.set_minor_formatter(NullFormatter())


def _numbers(ax, cells, failed, norm, size):
    """Write the number or the letter of each cell, and return the texts."""
    how = {"ha": "center", "va": "center_baseline", "fontsize": size}
    for (i, j), value in np.ndenumerate(cells):
        if (i, j) in failed:
            ax.text(j, i, failed[i, j], color="0.25", **how)
        elif np.isfinite(value):
            dark = "white" if norm(max(value, norm.vmin)) > 0.5 else "black"
            ax.text(j, i, _brief(value), color=dark, **how)
    return list(ax.texts)


def _shrink(texts, width):
    """Make the letters of texts smaller if the longest one is wider than a cell; `width` is in inches."""
    longest = max((len(text.get_text()) for text in texts), default=1)
    for text in texts:
        text.set_fontsize(min(text.get_fontsize(), 72 * width / (SLENDER * (longest + 0.5))))


def _brief(value):
    """Return a number with three digits, or with one if that takes more than four letters: 4e-4."""
    text = f"{value:.3g}"
    if len(text) <= 4:
        return text
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _heatmap_axes(ax, groups, matrices, letter, most_letters, width):
    """Write the names of the matrices and plans, and a line and a title for each group of plans.

    The label of the matrices has lines of at most `most_letters` letters.  Cells are `width` inches wide.
    """
    looks = [look for group in groups for look in group.looks.values()]
    labels = _in_lines([look["label"] for look in looks], max(1, int(width / LINE)))
    ax.grid(False)
    ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=6.5)
    ax.set_yticks(range(len(matrices)), matrices, fontsize=letter)
    label = textwrap.wrap(r"matrices, from small (top) to large $\kappa$", most_letters)
    ax.set_ylabel("\n".join(label))
    titles = [group.title.replace(", ", "\n") for group in groups]
    too_wide = any(
        max(map(len, title.split("\n"))) * LETTER > width * len(group.looks)
        for title, group in zip(titles, groups, strict=True)
    )
    start = -0.5
    for title, group in zip(titles, groups, strict=True):
        end = start + len(group.looks)
        if len(groups) > 1:
            place = ((start + end) / 2, 1)
            ax.annotate(
                title,
                place,
                (0, 3),
                xycoords=ax.get_xaxis_transform(),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=6.5,
                rotation=90 if too_wide else 0,
            )
        if end < len(labels) - 0.5:
            ax.axvline(end, color="white", linewidth=2.5)
        start = end


def _in_lines(labels, most):
    """Return the labels in at most `most` lines each."""
    for letters in itertools.count(20):
        found = [textwrap.wrap(label, letters, **WHOLE_WORDS) for label in labels]
        if max(map(len, found)) <= most:
            return ["\n".join(lines) for lines in found]


def _spectrum(figure, table, matrix=None):
    """Draw the eigenvalues of A, and those of M^-1 A - I for the factors M of some plans."""
    rows = chosen([row for row in table.ran if row.get("spectrum")], "a spectrum", matrix)
    matrix = rows[0]["matrix"] if matrix is None else matrix
    # Plans with the same factors have the same spectrum; it is drawn once.
    distinct = {str(row["spectrum"]): row for row in reversed(rows) if row["matrix"] == matrix}
    rows = list(reversed(distinct.values()))[:MOST_SPECTRA]
    looks = {plan: look for group in groups_of(rows) for plan, look in group.looks.items()}
    before, *after = panels(figure, 1 + len(rows))
    _eigenvalues(before, rows[0]["spectrum"]["before"], "0.3", "$A$", 0)
    for ax, row in zip(after, rows, strict=True):
        look = looks[row["plan"]]
        title = "$M^{-1} A - I$,\n" + wrapped(look["label"], 2.35)
        _eigenvalues(ax, row["spectrum"]["after"], look["color"], title, 1)
    for ax in (before, *after):
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("imaginary part")
    kappa = rf", $\kappa$ = {rows[0]['kappa']:.0e}" if rows[0].get("kappa") else ""
    title = f"Eigenvalues of {matrix}{kappa}, and of the error $M^{{-1}} A - I$ of its factors"
    heading(figure, title, shared_words(rows))
    fit(figure, 1.5)


def _eigenvalues(ax, pairs, colour, title, shift):
    real, imaginary = np.array(pairs).T
    real = real - shift
    ax.plot(real, imaginary, "o", color=colour, markersize=2.5, alpha=0.7, markeredgewidth=0)
    spread = max(np.ptp(real), np.ptp(imaginary), 1e-15)
    if np.ptp(imaginary) < 1e-3 * spread:  # real eigenvalues: do not magnify rounding errors
        ax.set_ylim(-spread / 2, spread / 2)
    ax.set(xlabel="real part")
    ax.set_title(title, pad=12)  # below it is the power of ten of the y axis
    ax.locator_params(nbins=4)
    ax.ticklabel_format(scilimits=(-3, 4))


DRAWINGS = {"heatmap": _heatmap, "spectrum": _spectrum}
