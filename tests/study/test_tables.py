"""The tables and pictures of a study, and its command."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from market import GOOD, write
from switches import import_or_skip

import tcsolve
from tcsolve import StudyTable, study
from tcsolve._study.curves import performance_profile
from tcsolve._study.looks import groups_of, shared_words
from tcsolve.cli import command as cli
from tcsolve.cli import study as study_command

SWEEP = "gen:svd_geo:n=40:cond=1e1,1e3,1e6"
GRID = {"precision": ["fp16", "fp32"], "method": ["ir", "fgmres"], "block": 16}


@pytest.fixture(scope="module")
def table():
    given = [SWEEP, "gen:zero_column_first:n=10"], GRID
    return study(*given, history=True, spectrum=40, show_progress=False)


# ---- tables


def test_csv_has_all_digits_of_all_columns(table):
    rows = list(csv.DictReader(io.StringIO(table.text("csv"))))
    assert tuple(rows[0]) == table.columns and len(rows) == len(table)
    for row, known in zip(rows, table.rows, strict=True):
        if known["status"] != "SKIPPED":
            assert float(row["backward_error"]) == known["backward_error"]
            assert json.loads(row["versions"]) == known["versions"]
    assert rows[-1]["reason"].startswith("it is singular") and rows[-1]["steps"] == ""


def test_markdown_and_latex_have_a_line_for_each_row(table):
    columns = ["matrix", "plan", "status", "steps", "backward_error", "converged"]
    lines = table.text("markdown", columns).splitlines()
    assert lines[0] == "| matrix | plan | status | steps | backward_error | converged |"
    assert len(lines) == 2 + len(table) and {line.count("|") for line in lines} == {7}
    assert lines[-1] == "| zero_column_first n=10 | – | SKIPPED | – | – | – |"
    text = table.text("latex", columns)
    assert text.startswith("\\begin{tabular}{lllrrr}\n\\toprule\nmatrix & plan")
    assert "svd\\_geo n=40 cond=10 & fp16 ir block=16 & CONVERGED &" in text
    assert re.search(r"\$\d(\.\d)? \\times 10\^\{-1\d\}\$ & yes \\\\", text)
    assert text.count("\\\\\n") == 1 + len(table)


def test_latex_escapes_what_has_a_meaning_there():
    row = {"matrix": "a_b&c%d#e$f{g}~h^i\\j", "status": "SKIPPED", "plan": None, "key": ""}
    text = StudyTable([row]).text("latex", ["matrix"])
    escaped = r"a\_b\&c\%d\#e\$f\{g\}\textasciitilde{}h\textasciicircum{}i\textbackslash{}j"
    assert text.splitlines()[4] == escaped + r" \\"
    text = StudyTable([row | {"matrix": "$x_1"}]).text("latex", ["matrix"])
    assert text.splitlines()[4] == r"\$x\_1 \\"


def test_markdown_escapes_bars():
    row = {"matrix": "a|b", "status": "SKIPPED", "plan": None, "key": ""}
    assert StudyTable([row]).text("markdown", ["matrix"]).splitlines()[2] == "| a\\|b |"


@pytest.mark.parametrize("letter, shown", [("\n", "\\n"), ("\r", "\\r"), ("\x85", "\\x85")])
def test_a_line_end_in_a_name_does_not_break_a_table(letter, shown):
    row = {"matrix": f"a{letter}b.mtx", "status": "SKIPPED", "plan": None, "key": ""}
    table = StudyTable([row, row])
    lines = table.text("markdown", ["matrix", "status"]).splitlines()
    assert lines[2:] == [f"| a{shown}b.mtx | SKIPPED |"] * 2
    lines = table.text("latex", ["matrix", "status"]).splitlines()
    told = shown.replace("\\", r"\textbackslash{}")
    assert lines[4:6] == [rf"a{told}b.mtx & SKIPPED \\"] * 2 and len(lines) == 8


@pytest.mark.parametrize("suffix", [".csv", ".md", ".tex"])
def test_a_name_that_is_no_text_is_written(tmp_path, suffix):
    row = {"matrix": "a\udcff.mtx", "status": "SKIPPED", "plan": None, "key": ""}
    path = tmp_path / f"table{suffix}"
    StudyTable([row]).write(path, ["matrix"])
    assert "udcff.mtx" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "suffix, begins", [(".csv", "matrix,"), (".md", "| matrix"), (".tex", "\\begin")]
)
def test_a_table_is_written_in_the_form_of_its_suffix(table, tmp_path, suffix, begins):
    path = tmp_path / f"table{suffix}"
    table.write(path)
    assert path.read_text().startswith(begins) and list(tmp_path.iterdir()) == [path]


def test_parquet_and_pandas_read_the_same_rows(table, tmp_path):
    import_or_skip("pyarrow")
    pandas = import_or_skip("pandas")
    table.write(tmp_path / "table.parquet")
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.rows))
    frames = [
        pandas.read_parquet(tmp_path / "table.parquet"),
        pandas.read_json(tmp_path / "runs.jsonl", lines=True),
        pandas.DataFrame(table.rows),
    ]
    for frame in frames:
        assert len(frame) == len(table)
        good = frame[frame["converged"] == True]  # noqa: E712
        assert good["steps"].median() == np.median(
            [r["steps"] for r in table.ran if r["converged"]]
        )


def test_missing_pyarrow_names_the_extra(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(tcsolve.InputError, match=r"tcsolve\[parquet\]"):
        table.write(tmp_path / "table.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call, told",
    [
        (lambda t: t.text("html"), "the form is 'html', needs one of markdown"),
        (lambda t: t.text(columns=["speed"]), "no column speed; there are matrix, "),
        (
            lambda t: t.write("table.parquet", columns=["speed"]),
            "no column speed; there are matrix, ",
        ),
        (lambda t: t.write("table.html"), "must end in one of .parquet"),
        (lambda t: t.draw("steps", x="plan"), "steps: x is 'plan', needs a column of numbers: n, "),
        (lambda t: t.draw("pie"), "the picture is 'pie', needs one of histories"),
        (lambda t: t.draw("steps", colour=3), "has no such option"),
        (
            lambda t: t.draw("histories", matrix="nos1"),
            "no row of 'nos1' has a history; there are svd",
        ),
        (lambda t: StudyTable([]).draw("heatmap"), "no row has a run"),
        (lambda t: StudyTable.read("absent.jsonl"), "absent.jsonl cannot be read"),
    ],
)
def test_what_a_table_cannot_do_is_refused(table, matplotlib, call, told):
    with pytest.raises(tcsolve.InputError, match=told):
        call(table)


def test_the_summary_counts_runs_and_successes(table):
    rows = {row["plan"]: row for row in table.summary()}
    assert list(rows) == [f"{u} {m} block=16" for u in ("fp16", "fp32") for m in ("ir", "fgmres")]
    assert [rows["fp16 ir block=16"][key] for key in ("runs", "converged")] == [3, 2]
    assert rows["fp16 fgmres block=16"]["converged"] == 3
    steps = [row["steps"] for row in table.ran if row["plan"] == "fp16 fgmres block=16"]
    assert rows["fp16 fgmres block=16"]["median_steps"] == sorted(steps)[1]


# ---- pictures


def test_a_profile_of_steps_may_have_zeros():
    how = {"status": "CONVERGED", "converged": True, "n": 5, "key": ""}
    steps = {("A", "low"): 3, ("A", "high"): 0, ("B", "low"): 0, ("B", "high"): 0}
    rows = [how | {"matrix": m, "plan": p, "inner_steps": k} for (m, p), k in steps.items()]

    (ax,) = StudyTable(rows).draw("profile", measure="inner_steps").axes

    shares = {line.get_label(): max(line.get_ydata()) for line in ax.lines}
    assert shares["high"] == 1 and shares["low"] == 0.5


@pytest.mark.parametrize(
    "kind, form",
    [
        *((kind, "png") for kind in ("histories", "steps", "profile", "heatmap", "spectrum")),
        ("histories", "svg"),
        ("heatmap", "svg"),
    ],
)
def test_a_picture_is_drawn_with_titles_and_units(table, matplotlib, tmp_path, kind, form):
    path = tmp_path / f"{kind}.{form}"

    figure = table.draw(kind, path)

    head = path.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if form == "png" else b"<svg" in head or b"<?xml" in head
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert figure.get_suptitle() or shown[0].get_title()
    labels = [ax.get_xlabel() + ax.get_ylabel() for ax in shown]
    assert all(labels) or kind == "heatmap"


def test_a_history_picture_has_the_points_of_the_rows(table, matplotlib):
    figure = table.draw("histories", matrix="svd_geo n=40 cond=1000")
    (ax,) = figure.axes
    drawn = [tuple(map(tuple, line.get_xydata())) for line in ax.lines]
    for row in table.ran:
        if row["matrix"] == "svd_geo n=40 cond=1000":
            assert tuple((p[1], p[2]) for p in row["history"]) in drawn
            assert tuple((p[1], p[2]) for p in row["history"] if not p[3]) in drawn


def test_colours_tell_the_precisions_apart_and_dashes_the_methods(table, matplotlib):
    (group,) = groups_of(table.ran)
    looks = group.looks
    of = {look["label"]: look for look in looks.values()}
    assert set(of) == {
        "fp16 ir",
        "fp16 fgmres",
        "fp32 ir",
        "fp32 fgmres",
    }  # block=16 is no difference
    assert of["fp16 ir"]["color"] == of["fp16 fgmres"]["color"] != of["fp32 ir"]["color"]
    assert of["fp16 ir"]["linestyle"] != of["fp16 fgmres"]["linestyle"]
    assert len({look["marker"] for look in looks.values()}) == 4
    assert shared_words(table.ran) == "block=16" and group.title == ""


UPDATES = ("bf16", "fp16", "tf32", "fp16x3", "fp32", "bf16@h200", "fp16@h200")


def many_rows(matrices=3):
    """Return made-up rows of 29 plans: every update with two methods, with and without scaling, and fp64."""
    plans = [
        f"{u} {m} block=16" + ("" if scale else " scale=no")
        for u in UPDATES
        for m in ("ir", "fgmres")
        for scale in (True, False)
    ]
    return [
        {
            **{"matrix": f"m{i}", "n": 9, "kappa": 10.0**i, "plan": plan, "bound": 1e-15},
            **{"scale": "scale=no" not in plan, "method": "auto" if "fp64" in plan else None},
            **{"status": "STALLED" if i > 5 else "CONVERGED", "converged": i <= 5, "steps": 3},
            "history": [["fp16", 0, 1e-4, False], ["fp16", 1, 1e-16, False]],
        }
        for i in range(matrices)
        for plan in [*plans, "fp64 block=16"]
    ]


def test_many_plans_are_parted_into_groups_that_can_be_told_apart():
    rows = many_rows()
    groups = groups_of(rows)
    titles = ["ir, scale=yes", "ir, scale=no", "fgmres, scale=yes", "fgmres, scale=no"]
    assert [group.title for group in groups] == titles
    assert {plan for g in groups for plan in g.looks} == {row["plan"] for row in rows}
    assert shared_words(rows) == "block=16"
    for group in groups:
        looks = list(group.looks.values())
        assert len(looks) <= 8 and len({(v["color"], v["linestyle"]) for v in looks}) == len(looks)
        assert [look["label"] for look in looks[:7]] == list(UPDATES)
    colours = {g.looks[p]["color"] for g in groups for p in g.looks if p.startswith("bf16 ")}
    assert len(colours) == 1  # one update has one colour in all panels


def test_plans_of_several_methods_and_fields_are_parted_by_their_methods():
    plans = [
        f"{u} {m} block=16 scale={s}"
        for u in ("fp16", "bf16", "fp32")
        for m in ("ir", "gmres", "fgmres")
        for s in ("yes", "no")
    ]
    plans += [f"{u} cg scale={s} preconditioner=factors" for u in ("fp16", "fp32") for s in "yn"]
    groups = groups_of([{"plan": plan} for plan in [*plans, "fp64 ir residual=double-double"]])
    for group in groups:
        methods = {plan.split()[1] for plan in group.looks}
        assert len(methods) == 1 and group.title.startswith(methods.pop())
    assert len(groups) == 4


@pytest.mark.parametrize("updates", [1, 2, 20])
def test_groups_of_any_plans_have_curves_that_differ(updates):
    plans = [f"fp{i} max_steps={k}" for i in range(updates) for k in range(24 // updates)]
    groups = groups_of([{"plan": plan} for plan in plans])
    assert sum(len(group.looks) for group in groups) == len(plans)
    for group in groups:
        looks = group.looks.values()
        assert len({(v["color"], v["linestyle"]) for v in looks}) == len(looks) <= 8
        assert len({look["label"] for look in looks}) == len(looks)


@pytest.mark.parametrize("kind", ["histories", "steps", "profile", "heatmap"])
def test_pictures_of_many_plans_have_panels_and_fit_a_page(matplotlib, kind):
    figure = StudyTable(many_rows(100)).draw(kind)
    width, height = figure.get_size_inches()
    assert width <= 8.5 and height <= 11
    shown = [ax for ax in figure.axes if ax.get_visible()]
    if kind == "heatmap":
        assert len(shown[0].get_xticks()) == 29 and len(shown[0].get_yticks()) == 50
    else:
        labels = [t.get_text() for ax in shown if (x := ax.get_legend()) for t in x.get_texts()]
        assert len(labels) == 29


def test_a_heat_map_of_seconds_has_numbers_that_fit_its_cells(matplotlib):
    rows = [row | {"seconds": 0.000412} for row in many_rows()]
    (ax, *_) = StudyTable(rows).draw("heatmap", measure="seconds").axes
    assert {text.get_text() for text in ax.texts if "," not in text.get_text()} >= {"4e-4"}


def test_a_heat_map_of_many_matrices_has_pages(matplotlib):
    table = StudyTable(many_rows(100))
    names = [
        tick.get_text()
        for page in (1, 2)
        for tick in table.draw("heatmap", page=page).axes[0].get_yticklabels()
    ]
    assert sorted(names) == sorted(row["matrix"] for row in table.rows[::29])
    with pytest.raises(tcsolve.InputError, match="no page 3; it has 2"):
        table.draw("heatmap", page=3)


def test_a_performance_profile_is_that_of_dolan_and_more():
    rows = [
        {"matrix": m, "plan": p, "converged": t is not None, "seconds": t}
        for p, times in {"x": [1.0, 4.0, None, None], "y": [2.0, 2.0, 3.0, None]}.items()
        for m, t in zip("abcd", times, strict=True)
    ]
    curves = performance_profile(rows, "seconds")
    assert curves["x"][0].tolist() == [1, 2] and curves["y"][0].tolist() == [1, 1, 2]
    assert curves["x"][1] == curves["y"][1] == 4  # no plan solves d


def test_missing_matplotlib_names_the_extra(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(tcsolve.InputError, match=r"tcsolve\[study\]"):
        table.draw("steps")


# ---- the command


def test_the_command_runs_a_study_and_writes_all_it_is_asked_for(tmp_path, capsys, matplotlib):
    runs, tables = tmp_path / "runs.jsonl", [tmp_path / f"t.{s}" for s in ("csv", "md", "tex")]
    command = ["study", SWEEP, "--plan", "precision=fp16,fp32", "method=ir,fgmres", "block=16"]
    command += ["-o", str(runs), "--pictures", str(tmp_path / "pictures"), "--spectrum", "40"]
    for path in tables:
        command += ["--table", str(path)]

    assert cli.main(command) == 0

    out, err = capsys.readouterr()
    assert err == "" and out.startswith("| plan | runs | converged |")
    assert "| fp16 ir block=16 | 3 | 2 |" in out
    assert all(path.stat().st_size for path in tables)
    assert {p.name for p in (tmp_path / "pictures").iterdir()} == {
        f"{kind}.png" for kind in ("histories", "steps", "profile", "heatmap", "spectrum")
    }
    assert cli.main([*command[:8], "--resume"]) == 0
    assert cli.main(["study", "--read", str(runs), "--table", str(tmp_path / "again.csv")]) == 0
    assert (tmp_path / "again.csv").read_text() == tables[0].read_text()
    capsys.readouterr()
    assert cli.main(command) == 2
    assert "is not empty; resume its study" in capsys.readouterr().err


def test_the_command_skips_with_a_warning_and_filters(tmp_path, capsys, monkeypatch):
    write(tmp_path / "tiny.mtx", GOOD)
    write(tmp_path / "wide.mtx", GOOD.replace("2 2 2", "2 3 2", 1))
    monkeypatch.chdir(tmp_path)

    assert (
        cli.main(["study", "*.mtx", "gen:gauss:n=9", "--max-n", "5", "--precision", "fp64,fp32"])
        == 0
    )

    out, err = capsys.readouterr()
    assert "| fp64 | 1 | 1 |" in out
    assert "wide.mtx: skipped: " in err and "gauss n=9: skipped: n = 9 is above max_n = 5" in err


def test_the_command_runs_a_study_file(tmp_path, capsys):
    (tmp_path / "s.toml").write_text("matrices = ['gen:gauss:n=8']\nplans = ['fp32', 'fp64']\n")
    columns = "matrix,plan,seed"
    command = ["study", str(tmp_path / "s.toml"), "--table", str(tmp_path / "t.csv")]
    assert cli.main([*command, "--columns", columns]) == 0
    assert (tmp_path / "t.csv").read_text() == f"{columns}\ngauss n=8,fp32,0\ngauss n=8,fp64,0\n"
    capsys.readouterr()
    assert cli.main([*command, "--precision", "fp16"]) == 2
    assert "leave out other matrices" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv, told",
    [
        ([], "no matrices are given"),
        (["gen:gauss:n=4"], "no plans are given"),
        (["gen:gauss:n=4", "--plan", "fp16"], "write key=value"),
        (["gen:gauss:n=4", "--precision", "fp8"], "update is 'fp8', needs one of"),
        (["gen:gauss:n=4", "--precision", "fp16", "--resume"], "needs path="),
        (["gen:svd_geo:n=9:cond=abc", "--precision", "fp16"], "cond is 'abc', needs a finite"),
        (["gen:gauss:n=4", "--plan", "block=16", "block=32"], "--plan has block twice"),
        (["gen:gauss:n=4", "--precision", "fp16", "--form", "gif"], "invalid choice: 'gif'"),
        (["gen:gauss:n=4", "--precision", "fp16", "--table", "a.html"], "must end in one of"),
        (["gen:gauss:n=4", "--precision", "fp16", "--table", "no/a.md"], "no folder no"),
        (
            ["gen:gauss:n=4", "--precision", "fp16", "--columns", "n"],
            "give the file of the table with --table",
        ),
        (["--read", "absent.jsonl"], "cannot be read"),
        (
            ["--read", "r.jsonl", "gen:gauss:n=4", "--max-n", "5"],
            "r.jsonl runs nothing; leave out matrices, --max-n",
        ),
        (
            ["gen:gauss:n=4", "--precision", "fp16", "--table", "a.csv", "--columns", "n,foo"],
            "no column foo; there are matrix, ",
        ),
        (
            ["gen:gauss:n=4", "--precision", "fp16", "--pictures", __file__],
            "--pictures needs a folder",
        ),
    ],
)
def test_the_command_refuses_in_one_line(capsys, argv, told):
    assert cli.main(["study", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("tcsolve: error: ") and err.count("\n") == 1 and told in err


def run_limited(code, *argv):
    """Run a program that limits its memory or its files, so that an error shows soon."""
    import_or_skip("resource")
    limits = "import resource, sys\nfrom tcsolve.cli import command\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-P", "-c", limits + code, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_rows_cannot_be_kept_in_a_device(resume):
    code = "resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31))\n"
    code += "sys.exit(command.main(sys.argv[1:]))"
    argv = ["study", "gen:gauss:n=5", "--precision", "fp32", "-o", "/dev/full", *resume]
    done = run_limited(code, *argv)
    told = "tcsolve: error: study: /dev/full is a device or a pipe; the name of a file is needed\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_a_disk_that_is_full_is_told_and_the_rows_before_are_kept(tmp_path):
    runs = tmp_path / "runs.jsonl"
    code = "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
    code += "sys.exit(command.main(sys.argv[1:]))"
    argv = ["study", "gen:gauss:n=5,6,7,8,9", "--precision", "fp32,fp64", "-o", str(runs)]

    done = run_limited(code, *argv)

    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "File too large" in done.stderr and str(runs) in done.stderr
    kept = len(StudyTable.read(runs))
    assert 0 < kept < 10
    assert cli.main([*argv, "--resume"]) == 0
    assert len(StudyTable.read(runs)) == 10


def test_an_error_without_words_is_told_by_its_name(monkeypatch, capsys):
    def study(*_, **__):
        raise MemoryError

    monkeypatch.setattr(study_command, "study", study)
    assert cli.main(["study", "gen:gauss:n=5", "--precision", "fp32"]) == 2
    assert capsys.readouterr().err == "tcsolve: error: MemoryError\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("with_tqdm", [False, True])
def test_progress_shows_the_runs_and_the_time_left(monkeypatch, with_tqdm):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    if with_tqdm:
        import_or_skip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    study([SWEEP, "gen:zero_column_first:n=10"], ["fp32", "fp64"])
    text = stream.getvalue()
    assert "8/8" in text if with_tqdm else "8 of 8 runs, 0:00:00 left" in text


@pytest.mark.parametrize("form, line", [("markdown", 0), ("latex", 2)])
def test_a_printed_table_names_the_model_the_seed_and_the_study(form, line):
    table = study("gen:gauss:n=8", "fp32")
    head = table.text(form).splitlines()[line]
    assert all(name in head for name in ("nnz", "model", "seed", "study")) and "reason" not in head
    assert table.rows[0]["study"] in table.text(form)

    skipped = {**table.rows[0], "status": "SKIPPED", "reason": "it is 3 by 4"}
    assert "it is 3 by 4" in StudyTable([*table.rows, skipped]).text(form)


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_a_printed_table_has_the_energy_or_why_there_is_none_if_it_was_asked_for(form):
    plain, asked = (
        study("gen:gauss:n=8", "fp32", device="cpu", energy=energy).rows[0]
        for energy in (False, True)
    )
    text = StudyTable([plain]).text(form)
    assert "joules" not in text and "energy" not in text
    text = StudyTable([plain, asked]).text(form)
    assert "not measured: NVML measures GPUs only" in text and "joules" not in text
    measured = plain | {"joules": 0.25, "energy": "NVML, 50 samples"}
    text = StudyTable([measured, asked]).text(form)
    assert "joules" in text and "0.25" in text and "NVML, 50 samples" in text


def test_a_printed_table_ends_with_the_versions_of_its_rows():
    row = {"matrix": "a", "n": 1, "plan": "fp32", "status": "CONVERGED", "key": "x"}
    both = [{"tcsolve": "0.1.0", "numpy": v, "scipy": "1.17", "cupy": None} for v in ("2.4", "2.5")]
    table = StudyTable([row | {"versions": found} for found in both])
    told = "tcsolve 0.1.0, numpy 2.4 and 2.5, scipy 1.17"
    assert table.text().endswith(f"|\n\n{told}\n")
    *_, line, end = table.text("latex").splitlines()
    columns = table.text("latex").splitlines()[2].count("&") + 1
    assert line == rf"\multicolumn{{{columns}}}{{l}}{{{told}}} \\" and end == r"\end{tabular}"
    assert told + ", cupy 14" in StudyTable(
        [*table.rows, row | {"versions": both[0] | {"cupy": "14"}}]
    ).text("markdown")
    # A table of chosen columns, or of rows without versions, has no line of versions.
    assert table.text(columns=["matrix"]).endswith("| a |\n")
    assert StudyTable([row]).text().endswith(" |\n")
    (real,) = study("gen:gauss:n=8", "fp32").rows
    assert f"numpy {np.__version__}" in StudyTable([real]).text().splitlines()[-1]
    assert real["nnz"] == 64 and "| 8 | 64 |" in StudyTable([real]).text()


def test_an_unknown_generator_is_refused_by_its_name():
    for name in ("kms", "xx*"):
        with pytest.raises(tcsolve.InputError, match=f"there is no problem '{re.escape(name)}'"):
            study(f"gen:{name}:n=20", "fp32")
