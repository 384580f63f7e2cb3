"""The layout of a picture: panels, headings and legends that fit its size."""

import textwrap

__all__ = ["grid", "heading", "legend_below", "legend_under", "panels"]

# Width of a letter of 8 points, in inches.
LETTER = 0.061


def panels(figure, count, *, columns=3, width=2.35, height=2.0, **options):
    """Return a list of `count` axes in rows of at most `columns`, and set the size of the figure."""
    columns = 2 if count == 4 else min(columns, count)
    axes = grid(figure, -(-count // columns), columns, width, height, **options)
    for ax in axes[count:]:
        ax.set_visible(False)
    return axes[:count]


def grid(figure, rows, columns, width, height, **options):
    """Return the axes of a grid as a list, and set the size of the figure; sizes are in inches."""
    figure.set_size_inches(max(3.4, columns * width), rows * height + 0.5)
    return list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def heading(figure, text, shared=""):
    """Write the title of a figure, and below it the words that all plans share."""
    told = [text] + ([f"all plans: {shared}"] if shared else [])
    wide = int(figure.get_size_inches()[0] / LETTER)
    figure.suptitle("\n".join(line for t in told for line in textwrap.wrap(t, wide)), fontsize=8)


def legend_below(figure, looks):
    """Put one legend for all axes below them."""
    shown = _lines(looks)
    width = max(len(look["label"]) for look in looks.values())
    columns = max(1, min(len(shown), int(figure.get_size_inches()[0] * 12 / (width + 7))))
    figure.legend(handles=shown, loc="outside lower center", ncols=columns, handlelength=3.2)


def legend_under(ax, looks, width):
    """Put a legend below the label of the x axis.  The axes are `width` inches wide."""
    longest = max(len(look["label"]) for look in looks.values())
    columns = max(1, min(len(looks), int(width * 15 / (longest + 7))))
    ax.legend(
        handles=_lines(looks),
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=4.8,  # in font sizes: room for the labels of the x axis
        ncols=columns,
        fontsize=6.5,
        handlelength=3.2,
        columnspacing=1,
    )


def _lines(looks):
    from matplotlib.lines import Line2D

    return [Line2D([], [], **look) for look in looks.values()]
