"""Runs in parallel processes; a process that dies, or takes too long, loses only the run it was doing."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading

from tcsolve._hardware import cores
from tcsolve._study.columns import SKIPPED
from tcsolve._study.rows import crashed_row, key_of
from tcsolve._study.threads import THREAD_VARIABLES
from tcsolve._study.worker import READY, task_of

__all__ = ["parallel_rows"]


def parallel_rows(tasks, settings, jobs, limit_seconds=None):
    """Yield the rows of all tasks as they are finished, from `jobs` processes.

    Parameters
    ----------
    tasks : list of (Case, list of NamedPlan)
    settings : Settings
    jobs : int
    limit_seconds : float, optional
        Longest time from the start of the first run, or from a row, to the next row; then the process is
        ended.
    """
    waiting, rows = queue.SimpleQueue(), queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    stop = threading.Event()
    threads = max(1, cores() // max(1, jobs))  # without a task, jobs is 0
    crews = [
        _Crew(waiting, rows.put, settings, threads, limit_seconds, stop=stop) for _ in range(jobs)
    ]
    try:
        for crew in crews:
            crew.start()
        left = len(crews)
        while left:
            row = rows.get()
            if row is None:
                left -= 1
            elif isinstance(row, BaseException):
                raise row
            else:
                yield row
    finally:
        stop.set()
        for crew in crews:
            crew.end()


class _Crew:
    """A thread with one worker process at a time; it hands over tasks and takes back rows.

    `threads` is the number of threads of the worker process.
    """

    def __init__(self, waiting, deliver, settings, threads, limit, *, stop):
        self._waiting, self._deliver, self._settings = waiting, deliver, settings
        self._threads, self._limit, self._stop = threads, limit, stop
        self._process, self._errors, self._lock = None, None, threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self):
        self._thread.start()

    def end(self):
        """End the worker process, and wait for the thread."""
        with self._lock:
            self._stop.set()
            self._kill()
        self._thread.join()
        self._forget()

    def _work(self):
        try:
            while not self._stop.is_set():
                try:
                    case, plans = self._waiting.get_nowait()
                except queue.Empty:
                    break
                while plans and not self._stop.is_set():
                    plans = self._do(case, plans)
            self._deliver(None)
        except BaseException as error:  # the caller raises it
            self._deliver(error)

    def _do(self, case, plans):
        """Do the runs of a matrix; return the plans that are left if the process dies."""
        process = self._started()
        if process is None:
            return []
        timer, late = None, threading.Event()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(task_of(case, plans, self._settings))
            process.stdin.flush()
        left = {key_of(case, plan, self._settings): plan for plan in plans}
        is_ready = False  # reading the matrix, and its facts, are no part of a run
        while True:
            if self._limit is not None and is_ready:
                timer = threading.Timer(self._limit, self._stop_late, (process, late))
                timer.start()
            line = process.stdout.readline()
            if timer is not None:
                timer.cancel()
            if line == "\n":
                return []
            if line == READY:
                is_ready = True
                continue
            if not line.endswith("\n"):
                break
            row = json.loads(line)
            left.pop(row["key"], None)
            self._deliver(row)
            if row["status"] == SKIPPED:
                left.clear()
        if self._stop.is_set():
            return []
        reason = self._last_words(process, late.is_set())
        self._forget()
        if not left:
            return []
        first, *others = left.values()
        self._deliver(crashed_row(case, first, self._settings, reason))
        return others

    def _started(self):
        """Return the worker process, a new one if there is none; None if the study has ended."""
        fresh = False
        with self._lock:
            if self._stop.is_set():
                return None
            if self._process is None:
                self._errors = tempfile.TemporaryFile()
                environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(self._threads))
                environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "tcsolve._study.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    env=environment,
                    encoding="utf-8",
                )
                fresh = True
        if fresh:
            self._process.stdout.readline()  # wait for the imports: their time is not that of a run
        return self._process

    def _stop_late(self, process, late):
        late.set()
        process.kill()

    def _kill(self):
        if self._process is not None:
            self._process.kill()

    def _last_words(self, process, late):
        """Return why a process has ended."""
        code = process.wait()
        if late:
            return f"it took more than {self._limit:g} seconds"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {cause}" + (f": {lines[-1].strip()}" if lines else "")

    def _forget(self):
        """Wait for the worker process, and close its files."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()
            self._errors.close()
            self._process = None
