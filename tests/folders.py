"""Where the tests find the files of the repository that are not installed."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
