"""What all pictures share: groups of plans that fit into one subplot, and their colours, marks and names."""

import numbers
from collections import Counter
from dataclasses import dataclass

from tcsolve._errors import InputError
from tcsolve._study.columns import COLUMNS

__all__ = [
    "MOST_CURVES",
    "NAMES",
    "Group",
    "chosen",
    "counted",
    "groups_of",
    "is_number",
    "require_numbers",
    "shared_words",
    "words",
]

# Colours that people with any colour vision can tell apart: M. Okabe, K. Ito, Color Universal Design, 2008.
# Yellow is left out, because it is too light on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS, DASHES = ("o", "s", "^", "D", "v", "P", "X", "<", ">"), ("-", "--", "-.", ":")
# A subplot with more curves cannot be read.
MOST_CURVES = 8
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


@dataclass(frozen=True)
class Group:
    """Plans that are drawn in one subplot.

    Attributes
    ----------
    title : str
        The words that most of its plans share; empty if there is only one group.
    looks : dict of str to dict
        For each plan the keyword arguments of its curve; the label has the other words.
    """

    title: str
    looks: dict


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


def is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def require_numbers(rows, what, column):
    """Raise an InputError unless a column has numbers and nothing else; `what` names the option."""
    values = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    values = {name: [v for v in found if v is not None] for name, found in values.items()}
    able = {name for name, found in values.items() if found and all(map(is_number, found))}
    able = [*(name for name in COLUMNS if name in able), *sorted(able.difference(COLUMNS))]
    if rows and column not in able:
        raise InputError(
            f"study: {what} is {column!r}, needs a column of numbers: {', '.join(able)}"
        )


def words(column):
    """Return the name of a column as words."""
    return "order n" if column == "n" else column.replace("_", " ")


def counted(matrices):
    """Return a number of matrices with its noun."""
    return "1 matrix" if matrices == 1 else f"{matrices} matrices"


def shared_words(rows):
    """Return the words that the names of all plans share, as text; the update is not among them."""
    return ", ".join(_split_words(rows)[1])


def groups_of(rows, most=MOST_CURVES):
    """Return the plans of the rows as a list of `Group`, each of at most `most` plans.

    Plans of one group differ in the update if possible; the colour of a curve tells its update.
    """
    words, _ = _split_words(rows)
    updates = list(dict.fromkeys(found["update"] for found in words.values()))
    parts = _parted(words, most)
    found = []
    for plans in parts:
        common = _common({plan: words[plan] for plan in plans}) if len(parts) > 1 else {}
        looks = {}
        for place, plan in enumerate(plans):
            own = [w for key, w in words[plan].items() if common.get(key) != w or key == "update"]
            i = updates.index(words[plan]["update"]) if len(updates) > 1 else place
            taken = [look["color"] for look in looks.values()]
            looks[plan] = _look(i, taken, " ".join(own)) | _size(len(plans) - 1 - place)
        found.append(Group(", ".join(w for key, w in common.items() if key != "update"), looks))
    return found


def _split_words(rows):
    """Return {plan: {field: word}} of the fields in which plans differ, and the words that all share."""
    first = {}
    for row in rows:
        first.setdefault(row["plan"], row)
    named = {plan: _fields(plan) for plan in first}
    fields = dict.fromkeys(key for found in named.values() for key in found)
    for plan, found in named.items():
        found |= {key: word for key in fields if (word := _usual(key, found, first[plan]))}
    shared = [
        key
        for key in fields
        if key != "update" and len(named) > 1 and len({f.get(key) for f in named.values()}) == 1
    ]
    words = {
        plan: {key: found[key] for key in fields if key in found and key not in shared}
        for plan, found in named.items()
    }
    return words, [next(iter(named.values()))[key] for key in shared]


def _fields(plan):
    """Return {field: word} of the name of a plan: its update, its method, and fields such as 'block=32'."""
    update, *others = plan.split()
    return {"update": update} | {w.partition("=")[0] if "=" in w else "method": w for w in others}


def _usual(key, found, row):
    """Return the word for a field, from the name of the plan or from its row; None if it is not known."""
    value = row.get(key)
    if key in found or value is None:
        return found.get(key)
    word = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
    return word if key == "method" else f"{key}={word}"


def _parted(words, most):
    """Return lists of at most `most` plans; plans that differ only in the update stay together.

    The plans of a list also differ in at most one other field.  There are too many lists if their number is
    at least two above the smallest possible one.  Then the plans of a list only need to have the same method.
    If there are still too many lists, any plans may share one.
    """
    if len(words) <= most:
        return [list(words)]
    blocks = {}
    for plan, found in words.items():
        rest = tuple((key, word) for key, word in found.items() if key != "update")
        blocks.setdefault(rest, []).append(plan)
    enough = -(-len(words) // most) + 1
    for fits in (_is_near, _is_of_one_method):
        parts = _packed(blocks, most, fits)
        if len(parts) <= enough:
            return parts
    return _packed(blocks, most, lambda one, other: True)


def _packed(blocks, most, fits):
    """Put blocks of plans into lists; fits(one, other) tells whether two blocks may be in one list."""
    parts = []
    for rest, block in blocks.items():
        for start in range(0, len(block), most):
            piece = block[start : start + most]
            fitting = (
                (rests, plans)
                for rests, plans in parts
                if len(plans) + len(piece) <= most and all(fits(rest, r) for r in rests)
            )
            rests, plans = next(fitting, ([], []))
            if not plans:
                parts.append((rests, plans))
            rests.append(rest)
            plans += piece
    return [plans for _, plans in parts]


def _is_near(one, other):
    """Tell whether two tuples of (field, word) differ in at most one field."""
    return len({field for field, _ in set(one) ^ set(other)}) <= 1


def _is_of_one_method(one, other):
    return dict(one).get("method") == dict(other).get("method")


def _common(words):
    """Return {field: word} of the words that at least three quarters of the plans have."""
    found = {}
    for key in dict.fromkeys(key for w in words.values() for key in w):
        word, times = Counter(w.get(key) for w in words.values()).most_common(1)[0]
        if word is not None and 4 * times >= 3 * len(words):
            found[key] = word
    return found


def _look(i, taken, label):
    """Return the keyword arguments of a curve in the i-th colour; `taken` has the colours used before."""
    colour = COLOURS[i % len(COLOURS)]
    turn = taken.count(colour)
    return {
        "color": colour,
        "marker": MARKERS[(i + 3 * turn) % len(MARKERS)],
        "linestyle": DASHES[turn % len(DASHES)],
        "label": label,
        "markerfacecolor": "white" if turn % 2 else colour,
    }


def _size(later):
    """Return the sizes of a curve; they grow with `later`, the number of curves that are drawn over it."""
    return {"linewidth": 1.1 + 0.18 * later, "markersize": 3.2 + 0.45 * later}
