"""Make the pages of the written study again, by one command.

    TCSOLVE_MATRICES=folder python benchmarks/study.py --work folder

runs the scripts of the CPU part.  The scripts of the published counts run two at a time, each with half of
the cores as threads of BLAS; the others run alone, with all cores.  The seconds so far are printed after each
pair, and after each script that runs alone.  The rows of the study are kept in the folder --work, so the same
command continues an interrupted run.

    TCSOLVE_MATRICES=folder python benchmarks/study.py --work folder --device cuda

runs the part of a GPU.  --list only prints the commands.  If the folder --work is empty at the start, the
seconds of a complete run are kept in benchmarks/results/study.json, or study_cuda.json.
"""

import argparse
import itertools
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from _harness import RESULTS, gpu, machine, save

from tcsolve._hardware import cores
from tcsolve._study.threads import THREAD_VARIABLES

HERE = Path(__file__).parent
# The commands; {work} is the folder of the rows.  The commands of a tuple run side by side.
PUBLISHED = "published.py {table} --json benchmarks/results/published_{table}.json"
COMMANDS = {
    "cpu": (
        ("convergence.py --rows {work}/rows.jsonl --jobs 2",),
        ("convergence_exact.py --jobs 2",),
        tuple(PUBLISHED.replace("{table}", table) for table in ("bf16", "limits")),
        (PUBLISHED.replace("{table}", "spd"), PUBLISHED.replace("{table}", "scaling")),
        ("training.py --emulated",),
    ),
    "cuda": (("convergence.py --device cuda --rows {work}/rows_cuda.jsonl",),),
}


def commands(device, work):
    """Return the argument lists of the scripts, in groups."""
    return [
        [[part.format(work=work) for part in shlex.split(command)] for command in group]
        for group in COMMANDS[device]
    ]


def run(group):
    """Run the scripts of a group side by side; return the names of those that failed."""
    threads = str(max(1, cores() // len(group)))
    settings = os.environ | dict.fromkeys(THREAD_VARIABLES, threads)
    print("\n".join(shlex.join(command) for command in group), flush=True)
    started = [
        subprocess.Popen([sys.executable, HERE / script, *args], cwd=HERE.parent, env=settings)
        for script, *args in group
    ]
    ends = [process.wait() for process in started]
    return [script for (script, *_), end in zip(group, ends, strict=True) if end]


def is_word(argument):
    """Tell whether an argument of a command is not an option."""
    return not argument.startswith("-")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("study_rows"), help="folder of the rows")
    parser.add_argument("--device", choices=COMMANDS, default="cpu")
    parser.add_argument("--list", action="store_true", help="only print the commands")
    options = parser.parse_args()
    if options.list:
        for command in itertools.chain(*commands(options.device, options.work)):
            print(f"python benchmarks/{shlex.join(command)}")
        return
    if "TCSOLVE_MATRICES" not in os.environ:
        sys.exit("set TCSOLVE_MATRICES to the folder of the collection matrices")
    options.work.mkdir(parents=True, exist_ok=True)
    is_resumed, rows, on_device = any(options.work.iterdir()), [], options.device == "cuda"
    for group in commands(options.device, options.work.resolve()):
        start = time.monotonic()
        if failed := run(group):
            sys.exit(f"{' and '.join(failed)} failed; the commands after it were not run")
        told = [" ".join(itertools.takewhile(is_word, command)) for command in group]
        rows.append({"commands": told, "seconds": time.monotonic() - start})
        print(f"{sum(row['seconds'] for row in rows):.0f} s so far", flush=True)
    if not is_resumed:
        path = RESULTS / ("study_cuda.json" if on_device else "study.json")
        save(path, machine() | (gpu() if on_device else {}), rows)


if __name__ == "__main__":
    main()
