"""The layout of a picture: subplots, headings and legends, and a size in which they have room."""

import textwrap

__all__ = [
    *("LETTER", "fit", "grid", "heading", "legend_below", "legend_under", "panels", "wrapped"),
]

# Width of a letter of 8 points, in inches.
LETTER = 0.061
# Width of the line before a label, in letters.
LINE = 7
# Heights in inches that are more than enough for legends, titles and names: in each row of axes, and in the
# rest of the figure.
AMPLE_ROW, AMPLE = 3.0, 8.0


def panels(figure, count, *, columns=3, width=2.35, **options):
    """Return a list of `count` axes in rows of at most `columns`, and set the width of the figure."""
    columns = 2 if count == 4 else min(columns, count)
    axes = grid(figure, -(-count // columns), columns, width, **options)
    for ax in axes[count:]:
        ax.set_visible(False)
    return axes[:count]


def grid(figure, rows, columns, width, **options):
    """Return the axes of a grid as a list, and set the width of the figure; `fit` sets its height."""
    figure.set_size_inches(max(3.4, columns * width), rows * AMPLE_ROW + AMPLE)
    return list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def fit(figure, height):
    """Make a figure so high that its axes are `height` inches high, whatever is around them.

    Call it last, because it measures the legends, titles and names that are there now.
    """
    ax = figure.axes[0]
    rows = ax.get_subplotspec().get_gridspec().nrows
    wide, _ = figure.get_size_inches()
    ample = rows * (height + AMPLE_ROW) + AMPLE
    figure.set_size_inches(wide, ample)
    figure.draw_without_rendering()
    figure.set_size_inches(wide, ample + rows * (height - ample * ax.get_position().height))


def heading(figure, text, shared=""):
    """Write the title of a figure, and below it the words that all plans share."""
    told = [text] + ([f"all plans: {shared}"] if shared else [])
    wide = int(figure.get_size_inches()[0] / LETTER)
    figure.suptitle("\n".join(line for t in told for line in textwrap.wrap(t, wide)), fontsize=8)


def wrapped(text, inches):
    """Return text in lines that are at most `inches` wide; formulas are not cut."""
    how = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.wrap(text, int(inches / LETTER) - 3, **how))


def legend_below(figure, looks):
    """Put one legend for all axes below them."""
    lines, columns = _shared_out(looks, int(figure.get_size_inches()[0] * 12))
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, handlelength=3.2)


def legend_under(ax, looks, width):
    """Put a legend below the label of the x axis.  The axes are `width` inches wide."""
    lines, columns = _shared_out(looks, int(width * 15))
    ax.legend(
        handles=lines,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        # The unit is the font size.  This leaves room for the label of the x axis.
        borderaxespad=4.8 + 1.4 * ax.get_xlabel().count("\n"),
        ncols=columns,
        fontsize=6.5,
        handlelength=3.2,
        columnspacing=1,
    )


def _shared_out(looks, letters):
    """Return a `Line2D` for each entry of a legend that is `letters` wide, and the number of its columns."""
    from matplotlib.lines import Line2D

    longest = max(len(look["label"]) for look in looks.values())
    columns = max(1, min(len(looks), letters // (longest + LINE)))
    how = {"width": letters - LINE, "break_long_words": False, "break_on_hyphens": False}
    labels = ("\n".join(textwrap.wrap(look["label"], **how)) for look in looks.values())
    lines = [
        Line2D([], [], **look | {"label": label})
        for look, label in zip(looks.values(), labels, strict=True)
    ]
    return lines, columns
