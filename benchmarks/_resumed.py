"""Rows that a later run has added to a file of results: which commit they are of."""

__all__ = ["mark_of", "of_later"]


def mark_of(facts, now):
    """Return the entries that mark a row of the run `now`, if the file with `facts` is of another commit."""
    return {} if facts["commit"] == now["commit"] else {key: now[key] for key in ("commit", "date")}


def of_later(rows):
    """Return a sentence on the marked rows of each solver."""
    later = {}
    for row in rows:
        if "commit" in row:
            later.setdefault((row["solver"], row["commit"], row["date"]), []).append(row["problem"])
    return "".join(
        f" The rows of '{solver}' for {named(problems)} are of commit {commit}, {date}."
        for (solver, commit, date), problems in sorted(later.items())
    )


def named(problems):
    """Return up to two problems by name, and more by their number."""
    return " and ".join(problems) if len(problems) <= 2 else f"{len(problems)} problems"
