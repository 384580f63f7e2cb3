"""The size and the words of pictures: nothing is cut off, nothing overlaps, and numbers are numbers."""

import itertools

import pytest

import tcsolve
from tcsolve import StudyTable
from tcsolve._study.curves import performance_profile
from tcsolve._study.plans import expand_plans

PICTURES = ("histories", "steps", "profile")
UPDATES = ("fp16", "bf16", "fp16@v100", "fp32")
METHODS = ("ir", "gmres", "fgmres")
# The names of these plans have two or three words, so that their labels are long.
PLANS = [
    f"{update} {method}{tolerance}"
    for tolerance, method, update in itertools.product(("", " inner_tol=0.01"), METHODS, UPDATES)
]


def made_up(matrices, plans, **columns):
    """Return the table of made-up runs, of which those of the last plan fail."""
    rows = [
        {
            **{"matrix": f"gen n=50 cond=1e{i}", "n": 50, "kappa": 10.0**i, "plan": plan},
            **{"bound": 1e-15, "steps": 3 + i, "converged": plan != plans[-1], "device": "cpu"},
            "status": "CONVERGED" if plan != plans[-1] else "STALLED",
            "history": [["fp16", 0, 1e-4, False], ["fp16", 1, 1e-16, False]],
            **columns,
        }
        for i in range(1, matrices + 1)
        for plan in plans
    ]
    return StudyTable(rows)


def shown(figure):
    """Lay out a figure as for its file, and return its axes that are seen."""
    figure.draw_without_rendering()
    return [ax for ax in figure.axes if ax.get_visible()]


def inches(figure, box):
    return box.width / figure.dpi, box.height / figure.dpi


def labels(figure):
    """Return the labels of all legends."""
    legends = [*figure.legends, *(found for ax in figure.axes if (found := ax.get_legend()))]
    return [text.get_text().replace("\n", " ") for found in legends for text in found.get_texts()]


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("matrices, plans", [(1, 9), (5, 8), (5, 24)])
def test_many_plans_leave_room_for_the_curves(matplotlib, kind, plans, matrices):
    figure = made_up(matrices, PLANS[:plans]).draw(kind)
    axes = shown(figure)  # a warning about the layout is an error
    assert min(inches(figure, ax.get_window_extent())[1] for ax in axes) >= 1
    assert len(labels(figure)) == plans
    width, height = figure.get_size_inches()
    assert width <= 8.5 and height <= 11
    for found in (*figure.legends, *(ax.get_legend() for ax in axes if ax.get_legend())):
        assert is_inside(figure, found.get_window_extent())


def is_inside(figure, box):
    whole = figure.bbox
    return (
        whole.x0 <= box.x0
        and box.x1 <= whole.x1 + 1
        and whole.y0 <= box.y0 + 1
        and box.y1 <= whole.y1 + 1
    )


FIELDS = {
    "precision": ["fp16", "bf16", "fp32"],
    "method": ["fgmres", "cg"],
    "preconditioner": ["fp64", "factors"],
    "residual": ["fp64", "double-double"],
}


@pytest.mark.parametrize("kind", [*PICTURES, "heatmap"])
def test_plans_that_differ_in_many_fields_have_texts_that_do_not_touch(matplotlib, kind):
    figure = made_up(2, [plan.label for plan in expand_plans(FIELDS)]).draw(kind)
    axes = shown(figure)
    boxes = [ax.get_tightbbox() for ax in axes]
    assert not any(overlap(a, b) for a, b in itertools.combinations(boxes, 2))
    if kind == "heatmap":
        names = [label.get_window_extent() for label in axes[0].get_xticklabels()]
        titles = [t.get_window_extent() for t in axes[0].texts if t.get_rotation() == 90]
        for row in (names, titles):
            assert not any(overlap(a, b) for a, b in itertools.pairwise(row))


def overlap(a, b):
    """Tell whether two boxes overlap by more than two pixels in both directions."""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 2 and min(a.y1, b.y1) - max(a.y0, b.y0) > 2


def test_a_profile_counts_matrices_that_no_plan_solves():
    rows = [
        {"matrix": name, "plan": plan, "converged": good, "steps": steps}
        for name, plan, good, steps in (
            *(("one", "p", True, 1), ("one", "q", True, 3), ("two", "p", True, 4)),
            *(("two", "q", False, 9), ("three", "p", False, 9), ("three", "q", False, 9)),
        )
    ]
    curves = performance_profile(rows, "steps")
    assert {plan: (list(ratios), count) for plan, (ratios, count) in curves.items()} == {
        "p": ([1.0, 1.0], 3),
        "q": ([2.0], 3),
    }
    assert performance_profile(rows[-2:], "steps") == {}


@pytest.mark.parametrize("matrices", [1, 4, 40])
@pytest.mark.parametrize("plans", [4, 24])
def test_the_labels_of_a_heat_map_are_not_cut_off(matplotlib, matrices, plans):
    figure = made_up(matrices, PLANS[:plans]).draw("heatmap")
    ax, bar = shown(figure)
    texts = [ax.yaxis.label, bar.yaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels()]
    assert "".join(ax.get_ylabel().split()) == r"matrices,fromsmall(top)tolarge$\kappa$"
    assert all(is_inside(figure, text.get_window_extent()) for text in texts)


@pytest.mark.parametrize("plans", [4, 24])
@pytest.mark.parametrize("value", [1.2e-16, 123456.0, 7e-100])
def test_the_numbers_of_a_heat_map_lie_in_their_cells(matplotlib, plans, value):
    figure = made_up(6, PLANS[:plans], forward_error=value).draw("heatmap", measure="forward_error")
    ax, bar = shown(figure)
    cell = ax.get_window_extent().width / plans
    numbers = [text for text in ax.texts if "e" in text.get_text() and text.get_text()[0].isdigit()]
    assert len(numbers) == 6 * (plans - 1)
    assert max(text.get_window_extent().width for text in numbers) < cell
    title = figure.get_suptitle()
    assert title.split("; grey")[0].replace("\n", " ") == "Forward error of the runs that converged"
    assert bar.get_ylabel() == "forward error"


def test_the_power_of_ten_of_a_spectrum_does_not_touch_the_title(matplotlib):
    pairs = [[1 + 1e-4 * k, 2e-4 * k] for k in range(-5, 6)]
    spectrum = {"before": [[1e5 * k, 1e6 * k] for k in range(1, 12)], "after": pairs}
    figure = made_up(1, PLANS[:1], spectrum=spectrum).draw("spectrum")
    for ax in shown(figure):
        power, title = ax.yaxis.get_offset_text(), ax.title
        assert power.get_text()
        assert power.get_window_extent().y1 <= title.get_window_extent().y0


@pytest.mark.parametrize(
    "kind, option", [("steps", "x"), ("profile", "measure"), ("heatmap", "measure")]
)
@pytest.mark.parametrize(
    "column", ["plan", "absent", "converged", "history", "missing", 3, ["steps"]]
)
def test_a_column_without_numbers_is_refused_with_those_that_have_them(
    matplotlib, kind, option, column
):
    table = made_up(2, PLANS[:2], seconds=0.5, missing=None)
    with pytest.raises(tcsolve.InputError) as caught:
        table.draw(kind, **{option: column})
    told = f"study: {kind}: {option} is {column!r}, needs a column of numbers: n, kappa, steps, "
    assert str(caught.value).startswith(told) and "seconds" in str(caught.value)
    table.draw(kind, **{option: "seconds"})


def test_a_heat_map_of_runs_that_all_failed_has_their_letters(matplotlib):
    row = {"matrix": "a", "plan": "fp16", "status": "RAISED", "converged": False}
    ax, *_ = shown(StudyTable([row]).draw("heatmap"))
    assert [text.get_text() for text in ax.texts] == ["r"]


@pytest.mark.parametrize("matrices, told", [(1, "(1 matrix)"), (2, "(2 matrices)")])
def test_the_titles_have_the_number_of_matrices(matplotlib, matrices, told):
    table = made_up(matrices, PLANS[:2], forward_error=1e-9)
    assert f"Steps by precision {told}" in table.draw("steps").get_suptitle()
    title = table.draw("profile", measure="forward_error").get_suptitle()
    assert f"Performance profile of forward error {told}" in title


def test_the_title_of_histories_says_what_the_last_mark_is(matplotlib):
    title = made_up(1, PLANS[:2]).draw("histories").get_suptitle()
    assert "the last one that of the x that is returned" in " ".join(title.split())
