"""The counts of the kernels of stacks, from the report of the profiler."""

import pytest
from pages import FACTS, redraw

METRICS = (
    "dram__bytes.sum",
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "smsp__inst_executed.sum",
)
HEAD = ",".join(f'"{name}"' for name in ("ID", "Kernel Name", *METRICS))
UNITS = '"","","byte","ns","cycle","inst"'


def report(*kernels):
    """Return what ncu prints for kernels (name, bytes, nanoseconds, cycles, instructions)."""
    lines = [",".join(f'"{v}"' for v in (i, *kernel)) for i, kernel in enumerate(kernels)]
    return "\n".join(["==PROF== Connected", HEAD, UNITS, *lines])


MARK = ("next_case(CArray<double>)", 16, 1000, 2000, 10)


def test_kernels_belong_to_the_case_whose_mark_precedes_them(script):
    counts = script("stack_counts")
    some = [counts.Case("general", "d", 4, 1000), counts.Case("general", "d", 8, 100)]
    text = report(
        MARK,
        ("one", "1,000", 2000, 4000, 500),
        ("two", 10, 500, 900, 50),
        MARK,
        ("one", 7, 8, 9, 10),
    )

    first, second = counts.rows_of(text, some)

    assert (first["kernels"], first["bytes"], first["instructions"], first["cycles"]) == (
        2,
        1010,
        550,
        4900,
    )
    assert first["seconds"] == pytest.approx(2.5e-6) and first["n"] == 4
    assert (second["kernels"], second["bytes"], second["n"]) == (1, 7, 8)


def test_a_missing_case_is_an_error(script):
    counts = script("stack_counts")
    with pytest.raises(SystemExit, match="saw 1 cases instead of 2"):
        counts.rows_of(
            report(MARK), [counts.Case("general", "d", 4, 1), counts.Case("general", "d", 8, 1)]
        )


@pytest.mark.parametrize(
    "changed, limit",
    [
        ({}, "aim met"),
        ({"instructions": 1e9}, "instructions"),
        ({"bytes": 1e9}, "bytes"),
        ({"seconds": 3e-4, "cycles": 6e5}, "waiting"),
        ({"call": 3e-4}, "host"),
    ],
)
def test_the_first_term_that_is_too_long_is_the_limit(
    script, monkeypatch, tmp_path, changed, limit
):
    counts = script("stack_counts")
    case = counts.Case("general", "d", 4, 500_000)
    call = changed.get("call", 0.9e-4)
    row = case._asdict() | {
        "kernels": 1,
        "seconds": 5e-5,
        "instructions": 1e6,
        "bytes": 1e6,
        "cycles": 1e5,
    }
    monkeypatch.setattr(counts, "timed", lambda: {case: (call, 1e-3)})  # 0.1 ms are needed
    facts = {"multiprocessors": 132, "copy_bytes_per_second": 4e12}

    text = redraw(counts, monkeypatch, tmp_path / "x.json", [row | changed], FACTS | facts)

    assert f"| 0.100 | {limit} |" in text
