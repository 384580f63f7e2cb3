"""A study from its arguments to its rows: the runs that are left, their processes, and the file of rows."""

import math
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack

from tcsolve._arguments import require_count, require_number
from tcsolve._errors import InputError
from tcsolve._study.journal import Journal
from tcsolve._study.progress import progress
from tcsolve._study.rows import is_whole, key_of, rows_of
from tcsolve._study.spec import Spec, read_study_file
from tcsolve._study.workers import parallel_rows

__all__ = ["run_study"]


def run_study(
    matrices, plans, settings, *, path, resume, folder, jobs, limit_seconds, show_progress
):
    """Return the rows of a study, in the order of its matrices and plans; arguments as `tcsolve.study`."""
    if _is_study_file(matrices):
        if plans is not None:
            raise InputError(f"study: {matrices} has the plans; leave out plans=")
        read = read_study_file(matrices)
        matrices, plans = read.pop("matrices"), read.pop("plans")
        settings = settings | read
    jobs = require_count("study: jobs", jobs)
    if limit_seconds is not None:
        require_number("study: limit_seconds", limit_seconds)
        limit_seconds = None if limit_seconds > threading.TIMEOUT_MAX else limit_seconds
    if settings["energy"] and jobs > 1:
        raise InputError(
            f"study: energy=True needs jobs=1, got {jobs}: NVML reports the power for all processes together"
        )
    if resume and path is None:
        raise InputError(
            "study: resume=True needs path=, the file with the rows (on the command line, --resume needs -o)"
        )
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tcsolve-study-"))
        where = {"folder": folder, "scratch": scratch}
        spec = Spec.of(matrices, [] if plans is None else plans, **where, **settings)
        journal = None
        if path is not None:
            journal = stack.enter_context(Journal.of(path, resume))
        stream = None if show_progress else _Silent()
        return _all_rows(spec, journal, stream, jobs, limit_seconds)


def _is_study_file(matrices):
    return not isinstance(matrices, dict | list | tuple) and str(matrices).endswith(".toml")


def _all_rows(spec, journal, stream, jobs, limit_seconds):
    """Do the runs that are not in the journal, and return the rows of all, in the order of the spec."""
    found = {row["key"]: row for row in (journal.rows if journal else [])}
    tasks = [(case, left) for case in spec.cases if (left := _left(spec, case, found))]
    total = len(spec.cases) * len(spec.plans)
    done = total - sum(len(plans) for _, plans in tasks)
    if jobs == 1 and limit_seconds is None:
        new = (row for case, plans in tasks for row in rows_of(case, plans, spec.settings))
    else:
        tasks = _shared(tasks, jobs)
        new = parallel_rows(tasks, spec.settings, min(jobs, len(tasks)), limit_seconds)
    plans_of, sent = Counter(), set()
    for case, plans in tasks:
        for key in _skipped_keys(case, spec.settings):
            plans_of[key] += len(plans)
    with progress(total, done, stream) as show:
        for row in new:
            if row["key"] in sent:  # a skipped matrix, whose row another task has sent
                continue
            sent.add(row["key"])
            found[row["key"]] = row
            if journal:
                journal.append(row)
            show(plans_of[row["key"]] or 1, f"{row['matrix']} {row['plan'] or row['status']}")
    return [row for case in spec.cases for row in _rows_in(spec, case, found)]


def _skipped_keys(case, settings):
    """Return the keys of the row of a skipped matrix: if it was fetched, and if it was not."""
    return [key_of(case, None, settings, is_fetched) for is_fetched in (True, False)]


def _left(spec, case, found):
    """Return the plans of a case whose rows are missing or lack something; none if it is skipped."""
    if key_of(case, None, spec.settings) in found:
        return []

    def is_left(plan):
        row = found.get(key_of(case, plan, spec.settings))
        return row is None or not is_whole(row, spec.settings)

    return [plan for plan in spec.plans if is_left(plan)]


def _rows_in(spec, case, found):
    """Return the rows of a case: that of a skipped matrix, and those of its runs."""
    skipped, unfetched = _skipped_keys(case, spec.settings)
    # If all runs of a matrix are done, leave out the row that says that it could not be fetched.
    first = [skipped, unfetched] if _left(spec, case, found) else [skipped]
    keys = [key_of(case, plan, spec.settings) for plan in spec.plans]
    return [found[key] for key in (*first, *keys) if key in found]


def _shared(tasks, jobs):
    """Return the tasks; if there are fewer matrices than processes, the plans of a matrix are divided."""
    parts = math.ceil(jobs / max(1, len(tasks)))
    return [(case, plans[i::parts]) for case, plans in tasks for i in range(min(parts, len(plans)))]


class _Silent:
    """A stream that is no terminal."""

    def isatty(self):
        return False
