"""`StudyTable`: the rows of a study, as tables and pictures."""

import os
from pathlib import Path

import numpy as np

from tcsolve._errors import InputError
from tcsolve._study.columns import COLUMNS, CRASHED, NESTED, SKIPPED
from tcsolve._study.writers import WRITERS, written

__all__ = ["StudyTable"]

# The columns of a table that is printed.
SHORT = (
    *("matrix", "n", "kappa", "plan", "status", "steps", "inner_steps"),
    *("backward_error", "forward_error", "growth", "seconds"),
)


class StudyTable:
    """The rows of a study.

    `tcsolve.study` makes it.  Each row is a dict; ``pandas.DataFrame(table.rows)`` takes them, and
    ``pandas.read_json(path, lines=True)`` the file.

    Parameters
    ----------
    rows : iterable of dict

    Attributes
    ----------
    rows : tuple of dict
        One for each run.  A matrix that was left out has one row with the status SKIPPED and the reason.

    Examples
    --------
    >>> import tcsolve
    >>> table = tcsolve.study("gen:gauss:n=20", "fp32")
    >>> print(table.text("csv", columns=["matrix", "plan", "status"]), end="")
    matrix,plan,status
    gauss n=20,fp32,CONVERGED
    """

    def __init__(self, rows):
        self.rows = tuple(rows)

    @classmethod
    def read(cls, path):
        """Return the table of a file that `tcsolve.study` has written; also while it is being written.

        Parameters
        ----------
        path : path

        Returns
        -------
        StudyTable

        Raises
        ------
        InputError
            The file cannot be read, or is not that of a study.
        """
        from tcsolve._study.journal import read_rows

        return cls(read_rows(path))

    def __len__(self):
        return len(self.rows)

    def __repr__(self):
        plans = {row["plan"] for row in self.ran}
        matrices = {row["matrix"] for row in self.rows}
        return f"<StudyTable of {len(matrices)} matrices and {len(plans)} plans, {len(self)} rows>"

    @property
    def ran(self):
        """The rows of runs, without those of matrices that were left out."""
        return tuple(row for row in self.rows if row["status"] != SKIPPED)

    @property
    def columns(self):
        """The names of all columns of the rows, in the order of tables."""
        found = dict.fromkeys(key for row in self.rows for key in row)
        fields = [key for key in found if key not in COLUMNS and key not in NESTED]
        known = [key for key in COLUMNS if key in found]
        place = known.index("plan") + 1 if "plan" in known else len(known)
        return (*known[:place], *fields, *known[place:])

    def text(self, form="markdown", columns=None):
        """Return the table as text.

        Parameters
        ----------
        form : {'markdown', 'csv', 'latex'}
        columns : sequence of str, optional
            By default the main ones for 'markdown' and 'latex', and all for 'csv'.

        Returns
        -------
        str
        """
        if form not in WRITERS:
            raise InputError(f"study: the form is {form!r}, needs one of {', '.join(WRITERS)}")
        columns = self._checked(columns, self.columns if form == "csv" else SHORT)
        return WRITERS[form](self.rows, columns)

    def write(self, path, columns=None):
        """Write the table to a file: .csv, .md, .tex or .parquet; the last needs pyarrow.

        Parameters
        ----------
        path : path
        columns : sequence of str, optional
            As in `text`; all for .parquet.
        """
        written(Path(path), self, columns)

    def draw(self, kind, path=None, **options):
        """Draw a picture; it needs matplotlib.

        Parameters
        ----------
        kind : {'histories', 'steps', 'profile', 'heatmap', 'spectrum'}
            - histories: the backward error after each step; ``matrix=`` names one matrix.
            - steps: the steps to converge against the condition number, for each plan; ``x=`` names another
              column.
            - profile: the performance profile of Dolan and More [1]_ of the plans; ``measure=`` names the
              column to compare, 'steps' by default.
            - heatmap: the steps, or the failure, of each matrix with each plan.
            - spectrum: the eigenvalues of A, and those of ``M^-1 A - I`` for the factors M of each plan;
              ``matrix=`` names the matrix.
        path : path, optional
            File to write, for instance .png, .pdf or .svg.

        Returns
        -------
        matplotlib Figure

        References
        ----------
        .. [1] E. D. Dolan, J. J. More, Math. Program. 91 (2002), 201-213.
        """
        from tcsolve._study.pictures import draw

        return draw(kind, self, None if path is None else os.fspath(path), **options)

    def summary(self):
        """Return a row for each plan: its runs, how many converged, and the median of their steps.

        Returns
        -------
        list of dict
        """
        found = []
        for plan in dict.fromkeys(row["plan"] for row in self.ran):
            runs = [row for row in self.ran if row["plan"] == plan]
            good = [row for row in runs if row["converged"]]
            found.append(
                {
                    "plan": plan,
                    "runs": len(runs),
                    "converged": len(good),
                    "crashed": sum(row["status"] == CRASHED for row in runs),
                    "median_steps": float(np.median([r["steps"] for r in good])) if good else None,
                    "seconds": sum(row.get("seconds") or 0.0 for row in runs),
                }
            )
        return found

    def _checked(self, columns, usual):
        if columns is None:
            return [name for name in usual if name in self.columns]
        unknown = [name for name in columns if name not in (*self.columns, *COLUMNS)]
        if unknown:
            raise InputError(
                f"study: there is no column {', '.join(unknown)}; there are {', '.join(self.columns)}"
            )
        return list(columns)
