"""The public function `study`."""

from tcsolve._study.table import StudyTable

__all__ = ["study"]


def study(
    matrices,
    plans=None,
    *,
    path=None,
    resume=False,
    jobs=1,
    limit_seconds=None,
    device="auto",
    seed=0,
    rhs="ones",
    history=False,
    spectrum=0,
    energy=False,
    folder=None,
    show_progress=True,
):
    """Solve many systems by many plans, and return one row for each run.

    Parameters
    ----------
    matrices : str, path, dict, a list of them, or a mapping of names to arrays
        - ``"gen:svd_geo:n=100,200:cond=1e3,1e6"``: generated matrices, with sweeps of their options; the name
          may be a pattern such as ``gen:svd_*``.
        - ``"ss:west0132"``, ``"ss:HB/*"``: matrices of the SuiteSparse collection.
        - ``"data/*.mtx"``: files.
        - ``{"generate": "svd_geo", "n": [100, 200], "cond": 1e6}``: the same as a dict; also with
          ``"suitesparse"`` or ``"file"``.  It may have filters: ``min_n``, ``max_n``, ``kind`` ('spd',
          'symmetric', 'unsymmetric', 'real', 'complex'), ``group`` and ``kappa`` (``"1e3:1e8"``).  A matrix
          is 'symmetric' if it equals its conjugate transpose, and 'spd' if it is also positive definite.
        - ``{"mine": array}``: arrays of shape (n, n).
        - The path of a study file, ``*.toml``, with matrices and plans.  Then `plans` must be None, and
          `device`, `seed`, `rhs`, `history`, `spectrum` and `energy` of the file replace the arguments.
    plans : str, Plan, dict, or a list of them
        ``"fp16"``; a `Plan`; or a grid of the fields of a `Plan`, as ``{"precision": ["fp16", "bf16"],
        "method": ["ir", "gmres"]}``, and of ``"residual"`` as in `solve`.  A name, or a grid that does not
        say otherwise, has ``fallback=False`` and ``max_steps=500``.  A `Plan` is taken as it is.
        Plans are needed unless `matrices` is a study file.
    path : path, optional
        File for the rows, as JSON lines.  Each row is written to the disk as soon as its run is done.
        Without `resume` the file must be new or empty.
    resume : bool
        Keep the rows that the file has, and do only the other runs.  A run whose row lacks the history, the
        spectrum or the energy that is now asked for is done again.  The table then has the new row, and the
        file has both.  A matrix that could not be fetched from the collection is asked for again; other
        skipped matrices keep their rows.
    jobs : int
        Number of processes.  With 1, and without `limit_seconds`, all runs are in this process.
    limit_seconds : float, optional
        Longest time of a run in seconds.  A run that takes longer is ended, and its status is CRASHED.  The
        time to read or generate a matrix, and to compute its condition number and the other columns that
        describe it, does not count.  The time for `spectrum` and `energy` counts.
    device : {'auto', 'cpu', 'cuda'}
        The device to solve on, as in `solve`.  The column ``device`` of a row has the device of its run.
    seed : int
        Seed of generated matrices and of random right-hand sides.
    rhs : {'ones', 'random'}
        The exact solution x that b = A x is made from.
    history : bool
        Keep the history of each run.
    spectrum : int
        Keep the eigenvalues of A, and of A with the factors as preconditioner, for orders up to this one.
    energy : bool
        Measure the energy of each run on a GPU; this repeats each solve for at least two seconds: one to warm
        up, and one to measure.  It needs ``jobs=1``.
    folder : path, optional
        Folder of the collection's matrices.  Default: the environment variable ``TCSOLVE_MATRICES``.
    show_progress : bool
        Show the progress on a terminal, with the time left.

    Returns
    -------
    StudyTable

    Raises
    ------
    InputError
        An argument is wrong, or the file `path` cannot be used.  A matrix that cannot be read or fetched, or
        a run that fails, raises nothing: its row has the reason.  But if every matrix is a name in the
        collection, with neither a pattern nor the filter ``group``, and none of them can be fetched, this
        error is raised, and nothing is run.
    OSError
        The file `path` cannot be written, for instance because the disk is full.

    See Also
    --------
    StudyTable : tables and pictures of the rows.

    Notes
    -----
    Precisions below FP32 round only the operands of the trailing updates, except those named '@each'.  If all
    columns of a matrix fit into one panel (``Plan.block``; 128 on a CPU), its LU has no update, so all of it
    is in FP32; the columns ``model`` and ``panels`` of a row say this.

    Examples
    --------
    >>> import tcsolve
    >>> table = tcsolve.study("gen:svd_geo:n=60:cond=1e2,1e5", {"precision": "fp16", "block": 16})
    >>> [(row["matrix"], row["status"]) for row in table.rows]
    [('svd_geo n=60 cond=100', 'CONVERGED'), ('svd_geo n=60 cond=1e+05', 'CONVERGED')]
    """
    # Late, so that a program that only solves does not load the test problems.
    from tcsolve._study.session import run_study

    settings = {
        **{"device": device, "seed": seed, "rhs": rhs, "history": bool(history)},
        **{"spectrum": spectrum, "energy": bool(energy)},
    }
    how = {"jobs": jobs, "limit_seconds": limit_seconds, "show_progress": show_progress}
    how |= {"path": path, "resume": resume, "folder": folder}
    return StudyTable(run_study(matrices, plans, settings, **how))
