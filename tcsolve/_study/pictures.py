"""Pictures of a study: what they need, how they look, and where they are written."""

from tcsolve._errors import InputError

__all__ = ["PICTURES", "count_pages", "draw", "require_matplotlib"]

PICTURES = ("histories", "steps", "profile", "heatmap", "spectrum")
# Readable at the width of a column or a page of a paper.
STYLE = {
    **{"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7},
    **{"xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.1},
    **{"lines.markersize": 4, "axes.grid": True, "grid.linewidth": 0.3, "grid.alpha": 0.6},
    **{"legend.frameon": False, "figure.constrained_layout.use": True, "savefig.dpi": 200},
}


def count_pages(kind, table):
    """Return the number of pages of a picture."""
    from tcsolve._study import maps

    return maps.heatmap_pages(table) if kind == "heatmap" else 1


def require_matplotlib():
    """Raise an InputError if matplotlib cannot be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InputError("study: pictures need matplotlib: pip install 'tcsolve[study]'") from error


def draw(kind, table, path=None, **options):
    """Draw a picture of a `StudyTable`, and return the matplotlib Figure; arguments as `StudyTable.draw`."""
    if kind not in PICTURES:
        raise InputError(f"study: the picture is {kind!r}, needs one of {', '.join(PICTURES)}")
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    from tcsolve._study import curves, maps

    drawing = {**curves.DRAWINGS, **maps.DRAWINGS}[kind]
    with matplotlib.rc_context(STYLE):
        figure = Figure()  # not pyplot: no window, and no state to share
        try:
            drawing(figure, table, **options)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise InputError(f"study: the picture {kind} has no such option: {error}") from error
        if path is not None:
            figure.savefig(path)
    return figure
