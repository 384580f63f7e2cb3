"""A process that takes matrices and plans from standard input, and writes their rows to standard output."""

import json
import os
import sys
import warnings

from tcsolve._solution import plain
from tcsolve._study.cases import Case
from tcsolve._study.plans import NamedPlan
from tcsolve._study.rows import Settings, rows_of

__all__ = ["READY", "main", "task_of"]

# The line that says that a matrix and its facts are known, and that the first run begins.
READY = "{}\n"


def task_of(case, plans, settings):
    """Return the line that asks a worker for the runs of a matrix."""
    data = {"case": case.as_data(), "plans": [vars(plan) for plan in plans], "settings": settings}
    return json.dumps(plain(data)) + "\n"


def main():
    """Write one answer to each line of standard input: the rows of its runs, and then an empty line.

    In an answer, READY comes before the row of the first run.  Before the first answer, one more empty line
    says that the process is ready.
    """
    # Whatever else prints must not mix with the rows.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    print(file=answers, flush=True)

    def say_ready():
        print(READY, end="", file=answers, flush=True)

    for line in sys.stdin:
        task = json.loads(line)
        case = Case.from_data(task["case"])
        plans = [NamedPlan(**plan) for plan in task["plans"]]
        for row in rows_of(case, plans, Settings(task["settings"]), say_ready):
            print(json.dumps(row), file=answers, flush=True)
        print(file=answers, flush=True)


if __name__ == "__main__":
    main()
