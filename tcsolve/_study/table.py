"""`StudyTable`: the rows of a study, as tables and pictures."""

import os
from pathlib import Path

import numpy as np

from tcsolve._errors import InputError
from tcsolve._study.columns import COLUMNS, CRASHED, NESTED, SKIPPED
from tcsolve._study.versions import told_versions
from tcsolve._study.writers import WRITERS, written

__all__ = ["StudyTable"]

# The columns of a table that is printed; those of SELDOM only if a row has an entry.
SHORT = (
    *("matrix", "n", "nnz", "kappa", "plan", "status", "reason", "steps", "inner_steps"),
    *(
        "backward_error",
        "forward_error",
        "growth",
        "seconds",
        "joules",
        "gflops_per_watt",
        "energy",
    ),
    *("model", "seed", "study"),
)
SELDOM = ("reason", "joules", "gflops_per_watt", "energy")


class StudyTable:
    """The rows of a study.

    `tcsolve.study` makes it.  Each row is a dict; ``pandas.DataFrame(table.rows)`` takes the rows, and
    ``pandas.read_json(path, lines=True)`` reads the file.

    Parameters
    ----------
    rows : iterable of dict
        The rows, as `tcsolve.study` makes them.

    Attributes
    ----------
    rows : tuple of dict
        One for each run.  A matrix that was left out has one row with the status SKIPPED and the reason.
    ran : tuple of dict
        The rows of runs, without those of matrices that were left out.
    columns : tuple of str
        The names of the columns of the rows, except history and spectrum, in the order of tables.

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
        """Return the table of a file that `tcsolve.study` writes; the study may still be running.

        Of rows with the same key it takes the last one: the run was repeated for more columns.

        Parameters
        ----------
        path : path
            The file: the argument `path` of `tcsolve.study`.  It may be compressed by gzip (.gz).

        Returns
        -------
        StudyTable

        Raises
        ------
        InputError
            The file cannot be read, or is not that of a study.

        Examples
        --------
        >>> import tempfile, tcsolve
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = tcsolve.study("gen:gauss:n=20", "fp32", path=f"{folder}/runs.jsonl")
        ...     len(tcsolve.StudyTable.read(f"{folder}/runs.jsonl"))
        1
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
        """The names of the columns of the rows, except history and spectrum, in the order of tables."""
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
            The language of the text.
        columns : sequence of str, optional
            By default all for 'csv'; for 'markdown' and 'latex' the main ones, and a last line with the
            versions of tcsolve, NumPy, SciPy and CuPy.

        Returns
        -------
        str

        Raises
        ------
        InputError
            There is no such form or column.

        Examples
        --------
        >>> import tcsolve
        >>> print(tcsolve.study("gen:gauss:n=20", "fp32").text(columns=["matrix", "status"]))
        | matrix | status |
        | --- | --- |
        | gauss n=20 | CONVERGED |
        <BLANKLINE>
        """
        if form not in WRITERS:
            raise InputError(f"study: the form is {form!r}, needs one of {', '.join(WRITERS)}")
        note = {} if form == "csv" or columns is not None else {"note": told_versions(self.rows)}
        columns = self._checked(columns, self.columns if form == "csv" else SHORT)
        return WRITERS[form](self.rows, columns, **note)

    def write(self, path, columns=None):
        """Write the table to a file: .csv, .md, .tex or .parquet; the last needs pyarrow.

        Parameters
        ----------
        path : path
            The file; its suffix says which form it has.
        columns : sequence of str, optional
            As in `text`; all for .parquet.

        Raises
        ------
        InputError
            The suffix is unknown, a column does not exist, or pyarrow is missing.
        OSError
            The file cannot be written.

        Examples
        --------
        >>> import pathlib, tempfile, tcsolve
        >>> table = tcsolve.study("gen:gauss:n=20", "fp32")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table.write(f"{folder}/runs.csv", columns=["matrix", "status"])
        ...     pathlib.Path(f"{folder}/runs.csv").read_text().split()
        ['matrix,status', 'gauss', 'n=20,CONVERGED']
        """
        columns = None if columns is None else self._checked(columns, ())
        written(Path(path), self, columns)

    def draw(self, kind, path=None, **options):
        """Draw a picture; it needs matplotlib.

        Parameters
        ----------
        kind : {'histories', 'steps', 'profile', 'heatmap', 'spectrum'}
            - histories: the backward error after each step; ``matrix=`` names one matrix.
            - steps: the steps to converge against the condition number, for each plan; ``x=`` names another
              column of the table.
            - profile: the performance profile of Dolan and More [1]_ of the plans; ``measure=`` names the
              column to compare, 'steps' by default.
            - heatmap: the steps, or the failure, of each matrix with each plan; ``measure=`` names another
              column.  With more than 85 matrices it has pages, and ``page=`` names one, 1 by default.
            - spectrum: the eigenvalues of A, and those of ``M^-1 A - I`` for the factors M of up to five
              plans; ``matrix=`` names the matrix, by default the first one.
        path : path, optional
            File to write, for instance .png, .pdf or .svg.
        **options
            The options that are named above.

        Returns
        -------
        matplotlib Figure

        Raises
        ------
        InputError
            There is no such kind or option, the column has no numbers, or matplotlib is missing.

        References
        ----------
        .. [1] E. D. Dolan, J. J. More, Math. Program. 91 (2002), 201-213.

        Examples
        --------
        >>> import tcsolve
        >>> table = tcsolve.study("gen:svd_geo:n=60:cond=1e1,1e3", {"precision": "fp16", "block": 16})
        >>> figure = table.draw("steps", "steps.png")  # doctest: +SKIP
        """
        from tcsolve._study.pictures import draw

        return draw(kind, self, None if path is None else os.fspath(path), **options)

    def summary(self):
        """Return a row for each plan: its runs, how many converged, and the median of their steps.

        Returns
        -------
        list of dict
            The keys are plan, runs, converged, crashed, median_steps (None if no run converged), seconds
            (of all runs of the plan together), and model: the arithmetic of the factors, or several, with a
            semicolon between them.

        Examples
        --------
        >>> import tcsolve
        >>> row = tcsolve.study("gen:gauss:n=20", "fp32").summary()[0]
        >>> row["plan"], row["runs"], row["converged"]
        ('fp32', 1, 1)
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
                    "model": "; ".join(dict.fromkeys(filter(None, (r.get("model") for r in runs)))),
                }
            )
        return found

    def _checked(self, columns, usual):
        if columns is None:
            usual = [name for name in usual if name in self.columns]
            empty = () if usual == list(self.columns) else SELDOM
            return [n for n in usual if n not in empty or any(row.get(n) for row in self.rows)]
        unknown = [name for name in columns if name not in (*self.columns, *COLUMNS)]
        if unknown:
            raise InputError(
                f"study: there is no column {', '.join(unknown)}; there are {', '.join(self.columns)}"
            )
        return list(columns)
