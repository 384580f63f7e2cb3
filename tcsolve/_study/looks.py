"""What all pictures share: the colours, marks and short names of the plans, and the rows of a picture."""

from tcsolve._errors import InputError

__all__ = ["NAMES", "chosen", "looks_of", "panels", "short_names"]

# Colours that people with any colour vision can tell apart: M. Okabe, K. Ito, Color Universal Design, 2008.
# Yellow is left out, because it is too light on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS, DASHES = ("o", "s", "^", "D", "v", "P", "X", "<", ">"), ("-", "--", "-.", ":")
# Axis labels of columns.
NAMES = {
    "kappa": r"condition number $\kappa$",
    "kappa_scaled": r"condition number $\kappa_1$ after scaling",
    "skeel": r"condition $\| |A^{-1}| |A| \|_\infty$",
    "steps": "steps",
    "seconds": "time, s",
    "joules": "energy, J",
    "growth": r"growth $\max |u_{ij}| \,/ \max |a_{ij}|$",
    "n": "order n",
    "forward_error": "forward error",
}


def chosen(rows, what, matrix=None):
    """Return the rows, those of one matrix if it is named, or raise an InputError if there is none."""
    names = list(dict.fromkeys(row["matrix"] for row in rows))
    if matrix is not None:
        if matrix not in names:
            raise InputError(
                f"study: no row of {matrix!r} has {what}; there are {', '.join(names)}"
            )
        rows = [row for row in rows if row["matrix"] == matrix]
    if not rows:
        raise InputError(f"study: no row has {what}")
    return rows


def short_names(plans):
    """Return the name of each plan without the words that all plans share, except the first word."""
    plans = list(dict.fromkeys(plans))
    words = {plan: plan.split() for plan in plans}
    shared = (
        set.intersection(*(set(found[1:]) for found in words.values())) if len(plans) > 1 else set()
    )
    return {
        plan: " ".join([found[0], *(w for w in found[1:] if w not in shared)])
        for plan, found in words.items()
    }


def looks_of(plans):
    """Return the keyword arguments of a curve for each plan: its colour tells the update."""
    names = short_names(plans)
    updates = list(dict.fromkeys(name.split()[0] for name in names.values()))
    seen, found = {}, {}
    for plan, name in names.items():
        update = name.split()[0]
        turn = seen[update] = seen.get(update, -1) + 1
        i = updates.index(update)
        found[plan] = {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKERS[(i + 3 * turn) % len(MARKERS)],
            "linestyle": DASHES[turn % len(DASHES)],
            "label": name,
            "markerfacecolor": "white" if turn % 2 else COLOURS[i % len(COLOURS)],
        }
    return found


def panels(figure, count, *, columns=3, width=2.35, height=2.0, **options):
    """Return a list of `count` axes in rows of at most `columns`, and set the size of the figure."""
    columns = 2 if count == 4 else min(columns, count)
    rows = -(-count // columns)
    figure.set_size_inches(max(3.4, columns * width), rows * height + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for ax in axes[count:]:
        ax.set_visible(False)
    return list(axes[:count])
