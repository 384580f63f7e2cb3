"""Make the pages of the written study again, by one command.

    TCSOLVE_MATRICES=folder python benchmarks/study.py --work folder

runs the scripts of the CPU part one after the other, on two cores in about an hour.  The rows of the
study are kept in the folder --work, so the same command continues an interrupted run.

    TCSOLVE_MATRICES=folder python benchmarks/study.py --work folder --device cuda

runs the part of a GPU, in at most ten minutes.  --list only prints the commands.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# The commands in order; {work} is the folder of the rows.
COMMANDS = {
    "cpu": (
        "convergence.py --rows {work}/rows.jsonl --jobs 2",
        "convergence_exact.py --jobs 2",
        *(
            f"published.py {table} --json benchmarks/results/published_{table}.json"
            for table in ("bf16", "scaling", "spd", "limits")
        ),
        "training.py --emulated",
    ),
    "cuda": ("convergence.py --device cuda --rows {work}/rows_cuda.jsonl",),
}


def commands(device, work):
    """Return the argument lists of the scripts."""
    return [[part.format(work=work) for part in shlex.split(c)] for c in COMMANDS[device]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("study_rows"), help="folder of the rows")
    parser.add_argument("--device", choices=COMMANDS, default="cpu")
    parser.add_argument("--list", action="store_true", help="only print the commands")
    options = parser.parse_args()
    if options.list:
        todo = commands(options.device, options.work)
        print("\n".join(f"python benchmarks/{shlex.join(command)}" for command in todo))
        return
    todo, start = commands(options.device, options.work.resolve()), time.monotonic()
    if "TCSOLVE_MATRICES" not in os.environ:
        sys.exit("set TCSOLVE_MATRICES to the folder of the collection matrices")
    options.work.mkdir(parents=True, exist_ok=True)
    for script, *args in todo:
        print(f"{script} {shlex.join(args)}", flush=True)
        done = subprocess.run([sys.executable, HERE / script, *args], cwd=HERE.parent)
        if done.returncode:
            sys.exit(f"{script} failed; the commands after it were not run")
        print(f"{time.monotonic() - start:.0f} s so far", flush=True)


if __name__ == "__main__":
    main()
