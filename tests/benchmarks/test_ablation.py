"""The ablation: the choice of rows, the turns of a measurement, lines of code, verdicts and pages.

No test needs a device or measures a time.
"""

import argparse
import json
import sys

import pytest
from pages import FACTS, redraw

from tcsolve._paths import OFF, Paths, paths

LU, SOLVE, BYTES = "LU", "solve", "bytes"
FAMILIES = ("gauss", "gauss_dominant")


@pytest.fixture
def ablation(script):
    return script("ablation")


def times(median, spread=0.0):
    quartiles = [median * (1 - spread), median * (1 + spread)]
    return {"median": median, "quartiles": quartiles, "samples": 5}


def row(path, off, what=SOLVE, family="gauss", n=1024, spread=0.0, **more):
    facts = {key: {"steps": 3, "rungs": ["fp16x3"]} for key in ("full", "off")}
    found = {"path": path, "what": what, "family": family, "n": n}
    found |= {"facts": facts, "full": times(1e-3, spread), "off": times(off * 1e-3, spread)}
    return found | more


# ---- paths and their code


def test_every_path_of_the_library_is_measured(ablation):
    names = [path.name for path in ablation.PATHS]
    assert names == [ablation.CONTROL, *OFF]
    for path in ablation.PATHS:
        assert any(
            path.acts(what, family, n)
            for what in (LU, SOLVE)
            for family in path.families
            for n in ablation.SIZES
        )
        with path.off():
            assert (paths() == Paths()) == (path.name == ablation.CONTROL)


def test_the_code_of_each_path_is_there(ablation, script):
    count = script("_code_lines").count
    lines = {path.name: count(path.code) for path in ablation.PATHS}
    without = {ablation.CONTROL, "large_graphs"}
    assert {name for name, number in lines.items() if number == 0} == without
    assert lines["gate"] < lines["look_ahead"] and lines["square_panels"] < lines["wide_panels"]


def test_comments_docstrings_and_blank_lines_are_no_code(script, monkeypatch, tmp_path):
    code = script("_code_lines")
    monkeypatch.setattr(code, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(
        '"""Doc."""\n\nMOST = 3  # why\n\n\nclass A:\n    """Doc.\n\n    More.\n    """\n\n'
        '    @property\n    def f(self):\n        # why\n        return """a\nb"""\n'
    )
    (tmp_path / "b.cu").write_text(
        "// Doc.\n#define X\n\n/* more\n   lines */\n__device__ int f(\n    int x  // why\n) {\n"
        "    return g(x);\n}\n\nint h() { return f(1); }\n"
    )
    count = code.count
    assert count(["a.py"]) == 6 and count(["a.py:A.f"]) == 4 and count(["a.py:MOST"]) == 1
    assert count(["a.py", "a.py:A.f"]) == 6
    assert count(["b.cu"]) == 7 and count(["b.cu:f"]) == 5 and count(["b.cu:h"]) == 1
    for place in ("b.cu:g", "a.py:A.g"):
        with pytest.raises((LookupError, StopIteration)):
            count([place])


# ---- the run


class System:
    """A `System` without a device; `calls` records each call with the paths that were in force."""

    calls = []

    def __init__(self, family, n):
        self.family, self.n = family, n

    def checked(self, what):
        if not paths().gate and what == LU:
            raise ValueError("wrong")
        self.calls.append(("checked", what, paths()))
        return {"error": 1e-16, "steps": 3, "rungs": ["fp16x3"]}

    def seconds(self, what):
        self.calls.append(("timed", what, paths()))
        return 1e-3 if paths() == Paths() else 2e-3

    def factors_with(self, update):
        assert update == "fp16x3"


@pytest.fixture
def run(ablation, monkeypatch, tmp_path):
    """A function that runs the script on fake systems, and returns its rows, facts and page."""
    System.calls.clear()
    monkeypatch.setattr(ablation, "System", System)
    monkeypatch.setattr(ablation, "free_memory", lambda: None)
    monkeypatch.setattr(ablation, "gpu", lambda: {"gpu": "a GPU"})
    made = {"path": "exact_memory", "what": BYTES, "family": "gauss", "used": 100}
    made |= {"full": 103, "off": 125}
    monkeypatch.setattr(ablation, "bytes_row", lambda path, n, nrhs: made | {"n": n, "nrhs": nrhs})

    def call(*options):
        out = tmp_path / "ablation.json"
        monkeypatch.setattr(sys, "argv", ["ablation.py", "--json", str(out), *options])
        ablation.main()
        found = json.loads(out.read_text())
        return found["rows"], found["machine"], out.with_suffix(".md").read_text()

    return call


def test_a_path_is_measured_where_it_acts_in_turns_after_a_check(run):
    rows, facts, page = run("--sizes", "4096", "--paths", "look_ahead", "early_start")

    whats = [(row["path"], row["family"], row["what"]) for row in rows]
    both = [("look_ahead", family, what) for family in FAMILIES for what in (SOLVE, LU)]
    assert whats == both + [("early_start", family, SOLVE) for family in FAMILIES]
    assert facts["left"] == 0 and facts["lines"]["look_ahead"] > 0
    assert all(row["full"]["samples"] == 15 for row in rows)
    for row in rows:
        assert row["off"]["median"] == 2 * row["full"]["median"]
    first = [when for when, what, where in System.calls if not where.look_ahead][:3]
    assert first == ["checked", "timed", "timed"]
    turns = [where == Paths() for when, what, where in System.calls[-30:]]
    assert turns == 15 * [True, False]
    most = "+100.0 % (gauss, 4096)"
    assert (
        f"| early start | {facts['lines']['early_start']} | {most} | {most} | - | - | keeps |"
        in page
    )


def test_a_wrong_answer_is_not_timed_and_other_rows_go_on(run):
    rows, _, page = run("--sizes", "1024", "--paths", "gate", "residual_kernel")

    wrong = [row for row in rows if "error" in row]
    assert {(row["path"], row["what"]) for row in wrong} == {("gate", LU)} and len(rows) == 6
    assert all("wrong" in row["error"] and "off" not in row for row in wrong)
    assert page.count("| gate | fails |") == 2


def test_each_path_is_measured_on_what_it_exists_for(run):
    names = ("small_graphs", "large_graphs", "exact_memory")
    rows, _, page = run("--sizes", "8192", "16384", "--paths", *names)

    calls = [(row["path"], row["n"], row["what"]) for row in rows if row["what"].startswith("call")]
    sizes = (("small_graphs", 8192), ("large_graphs", 16384))
    assert calls == [(*size, f"call {i}") for size in sizes for i in (1, 2, 3, 4)]
    assert sum(row["what"] == BYTES for row in rows) == 4
    assert "| 8192 | with small graphs | 1.00 | 1.00 | 1.00 | 1.00 |" in page
    assert "| 8192 | 64 | 0.0 | 1.030 | 1.250 |" in page


def test_no_row_starts_when_the_time_is_up(run):
    rows, facts, page = run("--sizes", "1024", "--seconds", "0")

    assert rows == [] and facts["left"] > 30
    assert f"before {facts['left']} more rows" in page


def test_all_rows_are_counted_that_are_left_out(run):
    options = ("--sizes", "8192", "--paths", "small_graphs", "exact_memory")
    rows, *_ = run(*options)
    _, facts, _ = run(*options, "--seconds", "0")

    assert facts["left"] == len(rows)


def test_every_row_is_written_before_the_next_begins(ablation, tmp_path):
    options = argparse.Namespace(json=tmp_path / "a.json", seconds=100)
    run = ablation.Run(options, dict(FACTS))
    for number in (1, 2):
        run.add(ablation.one, lambda: row("gate", 1.1), {})
        assert len(json.loads(options.json.read_text())["rows"]) == number


# ---- verdicts and pages


def test_two_percent_of_a_solve_keep_a_path(script):
    page = script("_ablation_page")
    rows = [row("a", 1.019), row("a", 1.5, what=LU), row("b", 1.021, n=2048), row("b", 0.9)]
    rows += [row("c", 1.03, spread=0.1), row("d", 1.5, what="call 1"), row("e", 1.0)]
    rows += [{"path": "e", "what": SOLVE, "family": "gauss", "n": 1, "error": "wrong"}]
    rows += [row("f", 1.0), row("f", 1.2, n=2048)]
    rows += [row("h", 1.04, n=4096), row(page.CONTROL, 0.95, n=4096)]
    rows += [
        {"path": "g", "what": BYTES, "family": "gauss", "n": 1, "used": 100, "full": 101, "off": 80}
    ]
    rows[-1]["nrhs"] = 1

    found = {name: page.verdict(rows, name) for name in "abcdefgh"}

    expected = ("goes", "keeps", "unclear", "not known", "not known", "keeps", "keeps", "unclear")
    assert tuple(found.values()) == expected
    assert page.gain(rows[-1]) == pytest.approx(0.19)


def test_the_page_is_drawn_from_the_json(ablation, monkeypatch, tmp_path):
    rows = [row("nothing", 1.004), row("gate", 1.1, n=2048), row("gate", 1.03, spread=0.1)]
    rows += [row("look_ahead", 1.25, what=LU, family="gauss_dominant")]
    facts = FACTS | {"lines": {"gate": 30}, "left": 0}

    text = redraw(ablation, monkeypatch, tmp_path / "ablation.json", rows, facts)

    assert "| gate | 30 | +10.0 % (gauss, 2048) | +3.0 % ~ (gauss, 1024) | - | - | keeps |" in text
    assert "| look ahead | - | - | - | +25.0 % (gauss + n I, 1024) | - | not known |" in text
    assert "| gate | +3.0 % ~ | +10.0 % |" in text and "up to 0.4 %" in text
    assert "a GPU" in text and "*triangular kernels*: Off: cuBLAS solves" in text


def test_the_short_table_of_paths_waits_for_its_measurement(script, monkeypatch, tmp_path):
    tables = script("tables")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert tables.paths_table().startswith("Not measured yet")
    results = {"machine": FACTS | {"lines": {"gate": 30}}, "rows": [row("gate", 1.1)]}
    (tmp_path / "ablation.json").write_text(json.dumps(results))
    most = "+10.0 % (gauss, 1024)"
    assert f"| gate | 30 | {most} | {most} | - | - | keeps |" in tables.paths_table()
