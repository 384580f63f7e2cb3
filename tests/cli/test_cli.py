"""The command line: what it prints, writes and refuses, and its exit codes."""

import contextlib
import dataclasses
import gzip
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from folders import ROOT
from switches import import_or_skip

import tcsolve
from tcsolve import matrices
from tcsolve._backends import select
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._solution import Status
from tcsolve._steps import note
from tcsolve.cli import command as cli
from tcsolve.cli import kernels
from tcsolve.cli.output_files import whole
from tcsolve.cli.progress_line import progress

GAUSS = ["solve", "gen:gauss", "--n", "30", "--precision", "fp64"]
NONFINITE = "%%MatrixMarket matrix array real general\n2 2\n1\nnan\n0\n1\n"


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def write(path, a):
    scipy.io.mmwrite(path, a, symmetry="general")
    return str(path)


def system(n=20, dtype=float):
    a = matrices.generate("gauss", n, dtype=dtype).a
    return a, np.arange(1.0, n + 1)


@pytest.fixture
def refusal(capsys):
    """Run a request that must be refused; return the one line that says why."""

    def run(*argv):
        assert cli.main([str(arg) for arg in argv]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("tcsolve: error: ") and err.count("\n") == 1 and err.endswith("\n")
        return err

    return run


# ---- solve -------------------------------------------------------------------------------------


def test_a_double_double_residual_is_reported(capsys, tmp_path):
    report = tmp_path / "report.json"
    argv = ["solve", "gen:svd_geo", "--n", "40", "--cond", "1e12", "--residual", "double-double"]

    assert cli.main([*argv, "--precision", "fp64", "--json", str(report)]) == 0

    assert "estimated       forward error 1." in capsys.readouterr().out
    assert json.loads(report.read_text())["forward_error_estimate"][0] <= 2.0**-52


def test_report_of_a_solve_shows_the_evidence(capsys):
    assert (
        cli.main(["solve", "gen:svd_geo", "--n", "40", "--cond", "1e3", "--precision", "fp16"]) == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert Status.CONVERGED.value in out
    assert "svd_geo, n = 40, float64, norm" in out and "cond 1.0e+03" in out
    assert "fp16 (tried fp16) on cpu" in out
    for line in ("steps", "backward error", "rcond", "forward error", "seconds", "history fp16"):
        assert f"\n{line}" in out


def test_report_shows_every_rung(capsys):
    argv = ["solve", "gen:svd_geo", "--n", "100", "--cond", "1e12", "--precision", "bf16"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert Status.CONVERGED_AFTER_FALLBACK.value in out
    assert "history bf16 " in out and "history fp64 " in out


def test_ill_conditioned_answer_has_a_code_of_its_own_and_a_warning(capsys):
    argv = ["solve", "gen:svd_geo", "--n", "60", "--cond", "1e25", "--precision", "fp64"]
    assert cli.main(argv) == 3
    out, err = capsys.readouterr()
    assert Status.ILL_CONDITIONED.value in out
    assert err.startswith("tcsolve: warning: rcond = ") and err.count("\n") == 1


def test_an_ill_conditioned_answer_with_a_small_forward_error_tells_the_error(capsys):
    argv = ["solve", "gen:svd_cluster0", "--n", "30", "--cond", "1e15", "--precision", "fp64"]
    assert cli.main([*argv, "--residual", "double-double"]) == 3
    out, err = capsys.readouterr()
    assert "no correct digit" not in out + err
    assert "the forward error, estimated with" in " ".join(out.split())
    assert re.fullmatch(r"tcsolve: warning: rcond = \S+: forward error 1\.\de-16\n", err)


def test_singular_matrix_exits_with_1_and_writes_no_x(tmp_path, capsys):
    argv = ["solve", "gen:zero_column_last", "--n", "10", "-o", str(tmp_path / "x.mtx")]
    assert cli.main(argv) == 1
    out, err = capsys.readouterr()
    assert Status.SINGULAR.value in out and "forward error" not in out
    assert err.startswith("tcsolve: warning: ") and err.count("\n") == 1
    assert not (tmp_path / "x.mtx").exists()


@pytest.mark.parametrize("status", Status)
def test_the_exit_code_is_0_only_for_a_verified_answer_that_is_not_ill_conditioned(
    monkeypatch, capsys, status
):
    solution = tcsolve.solve_ex(*system())
    solution = dataclasses.replace(solution, status=status, statuses=None)
    monkeypatch.setattr(cli, "solve_ex", lambda *_, **__: solution)
    code = cli.main(["solve", "gen:gauss", "--n", "20"])
    good = (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK)
    doubtful = (Status.ILL_CONDITIONED, Status.CONDITION_UNKNOWN)
    assert code == (0 if status in good else 3 if status in doubtful else 1)
    assert f"verdict         {status.value}\n" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--help"], ["solve", "--help"]])
def test_help_lists_the_exit_codes(argv, capsys):
    with pytest.raises(SystemExit):
        cli.main(argv)
    listed = capsys.readouterr().out.partition("exit codes:\n")[2]
    words = [line.split()[0] for line in listed.splitlines()]
    assert [word for word in words if word.isdigit()] == ["0", "1", "2", "3", "130", "141"]


def test_a_matrix_that_is_not_as_asserted_is_no_success(tmp_path, capsys):
    path = write(tmp_path / "a.mtx", np.array([[4.0, 1, 0], [2, 5, 1], [0, 1, 6]]))
    assert cli.main(["solve", path]) == 0
    capsys.readouterr()
    assert cli.main(["solve", path, "--assume-a", "sym"]) == 1
    assert f"verdict         {Status.NOT_AS_ASSERTED.value}\n" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
def test_files_in_and_out_give_the_bits_of_solve(tmp_path, suffix):
    a, b = system()
    path = tmp_path / f"a{suffix}"
    with (gzip.open if suffix.endswith("gz") else open)(path, "wb") as file:
        scipy.io.mmwrite(file, a, symmetry="general", precision=17)
    rhs = write(tmp_path / "b.mtx", b[:, None])
    assert cli.main(["solve", str(path), rhs, "-o", str(tmp_path / "x.mtx")]) == 0
    assert np.array_equal(scipy.io.mmread(tmp_path / "x.mtx")[:, 0], tcsolve.solve(a, b))


@pytest.mark.parametrize("case", ["columns", "sparse", "complex"])
def test_right_hand_sides_may_be_columns_or_sparse_or_complex(tmp_path, case, capsys):
    a, b = system()
    b = np.stack([b, b[::-1], b**2], axis=1) * (1 + 1j if case == "complex" else 1)
    stored = scipy.sparse.coo_array(b) if case == "sparse" else b
    argv = [write(tmp_path / "a.mtx", a), write(tmp_path / "b.mtx", stored)]
    assert cli.main(["solve", *argv, "-o", str(tmp_path / "x.mtx")]) == 0
    x = scipy.io.mmread(tmp_path / "x.mtx")
    error = np.abs(b - a @ x).max(axis=0) / np.abs(a).sum(axis=1).max() / np.abs(x).max(axis=0)
    assert (error <= 2 * np.sqrt(len(a)) * 2.0**-53).all()
    out = capsys.readouterr().out
    assert "3 right-hand sides" in out
    assert "forward error" not in out  # the exact x is not known


def test_complex_matrix_gives_a_complex_x(tmp_path):
    path = tmp_path / "x.mtx"
    assert cli.main([*GAUSS, "--complex", "--rhs", "random", "-o", str(path)]) == 0
    assert scipy.io.mmread(path).dtype == complex


def test_seed_chooses_the_matrix_and_the_solution(tmp_path):
    problem = matrices.generate("gauss", 30, seed=3, rhs="random")
    path = tmp_path / "x.mtx"
    assert cli.main([*GAUSS, "--seed", "3", "--rhs", "random", "-o", str(path)]) == 0
    x = scipy.io.mmread(path)[:, 0]
    assert np.array_equal(x, tcsolve.solve(problem.a, problem.b, precision="fp64"))


def test_suitesparse_name_is_found_in_the_folder(tmp_path, monkeypatch, capsys):
    write(tmp_path / "small.mtx", system()[0])
    monkeypatch.setenv("TCSOLVE_MATRICES", str(tmp_path))
    assert cli.main(["solve", "ss:small"]) == 0
    assert "small, n = 20" in capsys.readouterr().out


def test_structure_is_passed_on(capsys):
    assert cli.main(["solve", "gen:minij", "--n", "20", "--assume-a", "pos"]) == 0
    out = capsys.readouterr().out
    assert "fp64 (tried fp64)" in out and "not estimated" not in out


# ---- files that are written --------------------------------------------------------------------


def test_json_holds_the_solution_but_x(tmp_path):
    path = tmp_path / "report.json"
    assert cli.main([*GAUSS, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    problem = matrices.generate("gauss", 30)
    solution = tcsolve.solve_ex(problem.a, problem.b, precision="fp64")
    assert {*vars(solution)} - {"x"} <= {*report} and "x" not in report
    assert report["status"] == "CONVERGED" and report["message"] == Status.CONVERGED.value
    assert report["backward_error"] == solution.backward_error.tolist()
    assert report["history"] == [
        [p.rung, p.step.tolist(), p.error.tolist(), p.estimated] for p in solution.history
    ]
    assert report["iterations"] == solution.iterations.tolist()
    assert report["rcond"] == solution.rcond and report["bound"] == solution.bound
    # `statuses` and `rconds` have one value for each matrix of a stack, and a single value here.
    assert report["statuses"] == "CONVERGED" and report["rconds"] == solution.rcond
    assert report["seconds"].keys() == solution.seconds.keys()
    assert report["matrix"]["n"] == 30 and report["matrix"]["nrhs"] == 1
    assert report["device"] == "cpu" and report["ok"] is True
    assert 0 <= report["forward_error"] < 1e-10
    assert report["versions"]["numpy"] == np.__version__
    assert report["versions"]["tcsolve"] == tcsolve.__version__


def test_json_has_null_for_nan(tmp_path):
    path = tmp_path / "report.json"
    argv = [
        "solve",
        "gen:zero_column_last",
        "--n",
        "10",
        "--precision",
        "fp64",
        "--json",
        str(path),
    ]
    assert cli.main(argv) == 1
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert report["backward_error"] == [None] and report["forward_error"] is None
    assert report["status"] == report["statuses"] == "SINGULAR"
    assert report["rcond"] == report["rconds"] == 0


@pytest.mark.parametrize("option, name", [("-o", "x.mtx"), ("--json", "report.json")])
def test_a_file_is_overwritten_only_by_force(tmp_path, refusal, option, name):
    path = tmp_path / name
    path.write_text("precious")
    assert "exists" in refusal(*GAUSS, option, path)
    assert path.read_text() == "precious"
    assert cli.main([*GAUSS, option, str(path), "--force"]) == 0
    assert path.read_text() != "precious"


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, reason",
    [
        ([], "command"),
        (["dissolve"], "invalid choice"),
        (["solve"], "required: A"),
        (["solve", "missing.mtx"], "there is no file missing.mtx"),
        (["solve", "a.txt"], "must be a file (such as .mtx, "),
        (["solve", "gen:guass"], "did you mean gauss"),
        (["solve", "ss:missing"], "no matrix missing"),
        (["solve", "ss:no/such/name"], "not the name of a matrix"),
        ([*GAUSS, "--cond", "10"], "no option cond"),
        (["solve", "gen:svd_geo", "--cond", "0.5"], "at least 1"),
        (["solve", "gen:svd_geo", "--cond", "many"], "invalid float"),
        (["solve", "gen:gauss", "--n", "0"], "at least 1"),
        (["solve", "gen:gauss", "--n", "9999999"], "allocate"),
        ([*GAUSS, "--seed", "-1"], "negative"),
        (["solve", "missing.mtx", "--n", "5"], "gen: matrices only"),
        ([*GAUSS[:2], "--precision", "fp8"], "invalid choice: 'fp8'"),
        ([*GAUSS, "--device", "tpu"], "invalid choice: 'tpu'"),
        ([*GAUSS, "--assume-a", "round"], "invalid choice: 'round'"),
        ([*GAUSS, "--rhs", "twos"], "invalid choice: 'twos'"),
        ([*GAUSS, "--frobnicate"], "unrecognized"),
        (
            [*GAUSS, "b.mtx"],
            "b.mtx (b must follow A directly, before the options); see tcsolve solve",
        ),
        (["list", "b.mtx"], "unrecognized arguments: b.mtx; see tcsolve list --help"),
        ([*GAUSS[:1], "gen:gauss", "b.mtx", "--rhs", "ones"], "b is given twice"),
        (["solve", "gen:gauss", "missing.mtx"], "there is no file missing.mtx"),
        (["solve", "gen:nan_entry", "--n", "5"], "NaN"),
        (["solve", "gen:inf_entry", "--n", "5"], "NaN"),
        ([*GAUSS, "-o", "x.npy"], "must end in .mtx, or be -"),
        ([*GAUSS, "-o", "-", "--json", "-"], "-o and --json are both -"),
        (["solve", "-", "-"], "A and b are both -"),
        (["solve", "-", "--n", "5"], "gen: matrices only"),
        ([*GAUSS, "-o", "nowhere/x.mtx"], "no folder nowhere"),
        ([*GAUSS, "--json", "nowhere/report.json"], "no folder nowhere"),
        ([*GAUSS, "--json", "."], "is a folder"),
        ([*GAUSS, "-o", "x.mtx", "--json", "x.mtx"], "both"),
        ([*GAUSS, "-o", "x.mtx", "--json", "sub/../x.mtx"], "both"),
    ],
)
def test_bad_request_is_refused_in_one_line(tmp_path, monkeypatch, refusal, argv, reason):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TCSOLVE_MATRICES", raising=False)
    assert reason in refusal(*argv)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "not a readable"),
        (b"no matrix\n1 2 3\n", "not a readable"),
        (b"\x80\xff\x00" * 100, "not a readable"),
        (b"%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1.0\n", "not a readable"),
        (b"%%MatrixMarket matrix coordinate real general\n2 2 1\n7 7 1.0\n", "not a readable"),
        (b"%%MatrixMarket matrix array real general\n2 3\n1\n2\n3\n4\n5\n6\n", "2 by 3"),
        (NONFINITE.encode(), "A holds NaN"),
        (b"%%MatrixMarket matrix array real general\n0 0\n", "is empty"),
        (b"%%MatrixMarket matrix coordinate real general\n0 0 0\n", "is empty"),
    ],
)
def test_bad_matrix_file_is_refused(tmp_path, refusal, content, reason):
    path = tmp_path / "a.mtx"
    path.write_bytes(content)
    assert reason in refusal("solve", path)


def test_truncated_gzip_is_refused(tmp_path, refusal):
    path = tmp_path / "a.mtx.gz"
    path.write_bytes(gzip.compress(NONFINITE.encode())[:-12])
    assert "not a readable" in refusal("solve", path)


def test_bad_right_hand_side_is_refused(tmp_path, refusal):
    short, bad = write(tmp_path / "short.mtx", np.ones((29, 1))), tmp_path / "bad.mtx"
    bad.write_text(NONFINITE)
    assert "b needs 30 rows" in refusal("solve", "gen:gauss", short, "--n", 30)
    assert "b holds NaN" in refusal("solve", "gen:gauss", bad, "--n", 2)


def test_outputs_are_checked_before_the_solve(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr(cli, "solve_ex", lambda *_, **__: pytest.fail("solved"))
    refusal(*GAUSS, "-o", tmp_path / "nowhere" / "x.mtx")
    # The superuser may write anywhere, so the permission is taken away here.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "permission" in refusal(*GAUSS, "-o", tmp_path / "x.mtx")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
def test_full_disk_is_refused_without_a_traceback_after_the_report(capsys):
    assert cli.main([*GAUSS, "--json", "/dev/full", "--force"]) == 2
    out, err = capsys.readouterr()
    assert Status.CONVERGED.value in out
    assert (
        err.startswith("tcsolve: error: /dev/full could not be written") and "No space left" in err
    )
    assert err.count("\n") == 1 and os.path.exists("/dev/full") and not os.path.isfile("/dev/full")


@pytest.mark.parametrize("option, name", [("-o", "x.mtx"), ("--json", "report.json")])
def test_a_file_that_cannot_be_written_whole_leaves_the_older_one(
    tmp_path, monkeypatch, capsys, option, name
):
    path = tmp_path / name
    path.write_text("precious")

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    assert cli.main([*GAUSS, option, str(path), "--force"]) == 2
    out, err = capsys.readouterr()
    assert Status.CONVERGED.value in out
    assert f"{path} could not be written: No space left" in err
    assert path.read_text() == "precious" and os.listdir(tmp_path) == [name]


def test_a_file_keeps_its_mode_its_names_and_its_neighbours(tmp_path):
    path, neighbour, name = (tmp_path / x for x in ("report.json", "report.json.part", "name.json"))
    path.write_text("old")
    neighbour.write_text("precious")
    path.chmod(0o600)
    assert cli.main([*GAUSS, "--json", str(path), "--force"]) == 0
    assert path.stat().st_mode & 0o777 == 0o600 and neighbour.read_text() == "precious"
    os.link(path, name)
    path.write_text("old")
    assert cli.main([*GAUSS, "--json", str(path), "--force"]) == 0
    assert json.loads(name.read_text())["ok"]
    assert {p.name for p in tmp_path.iterdir()} == {"report.json", "report.json.part", "name.json"}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_of_a_file_that_is_not_finished(tmp_path, interrupt):
    with pytest.raises(interrupt), whole(tmp_path / "x") as file:
        file.write(b"half")
        raise interrupt
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="no /dev/stdout")
def test_a_report_may_go_into_a_pipe():
    process = run_in_a_process(*GAUSS, "--json", "/dev/stdout", "--force", stdout=subprocess.PIPE)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"") and b'"ok": true' in out


def test_links_to_nowhere_are_refused_before_the_solve(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr(cli, "solve_ex", lambda *_, **__: pytest.fail("solved"))
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "no folder" in refusal(*GAUSS, "--json", tmp_path / "dangling")
    refusal(*GAUSS, "--json", tmp_path / "loop")


def test_a_report_follows_what_is_printed_into_the_same_file(tmp_path):
    with open(tmp_path / "both", "wb") as file:
        process = run_in_a_process(*GAUSS, "--json", "/dev/stdout", "--force", stdout=file)
        assert process.communicate()[1] == b"" and process.returncode == 0
    text = (tmp_path / "both").read_text()
    assert text.index(Status.CONVERGED.value) < text.index('"ok": true')


def test_a_link_is_written_through(tmp_path):
    link, path = tmp_path / "link.json", tmp_path / "report.json"
    path.write_text("old")
    link.symlink_to(path)
    assert cli.main([*GAUSS, "--json", str(link), "--force"]) == 0
    assert link.is_symlink() and json.loads(path.read_text())["ok"]


def run_in_a_process(*argv, **options):
    command = [sys.executable, "-P", "-m", "tcsolve", *argv]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)


def test_output_that_is_not_read_is_no_error():
    read, write = os.pipe()
    os.close(read)
    process = run_in_a_process("list", stdout=write)
    os.close(write)
    assert (process.communicate()[1], process.returncode) == (b"", 141)


# ---- pipes -------------------------------------------------------------------------------------


@pytest.fixture
def piped(monkeypatch, capsysbinary):
    """A function that runs the command with data on standard input: (exit code, output, errors)."""

    def run(*argv, data=b""):
        stream = io.BufferedReader(io.BytesIO(data))
        stream.raw.name = "<stdin>"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        code = cli.main(argv)
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


def text_of(a):
    file = io.BytesIO()
    scipy.io.mmwrite(file, a, symmetry="general")
    return file.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_from_standard_input_and_x_to_standard_output(tmp_path, pack, piped):
    a, b = system()
    rhs = write(tmp_path / "b.mtx", b[:, None])
    code, out, err = piped("solve", "-", rhs, "-o", "-", data=pack(text_of(a)))
    assert code == 0
    assert np.array_equal(scipy.io.mmread(io.BytesIO(out))[:, 0], tcsolve.solve(a, b))
    assert err.startswith("matrix          <stdin>, n = 20") and "backward error" in err


def test_b_from_standard_input(tmp_path, piped):
    a, b = system()
    path = write(tmp_path / "a.mtx", a)
    code, out, _ = piped("solve", path, "-", "-o", "-", data=gzip.compress(text_of(b[:, None])))
    assert code == 0
    assert np.array_equal(scipy.io.mmread(io.BytesIO(out))[:, 0], tcsolve.solve(a, b))


def test_json_alone_goes_to_standard_output(tmp_path, piped):
    a, _ = system()
    path = tmp_path / "x.mtx"
    code, out, err = piped("solve", "-", "--json", "-", "-o", str(path), data=text_of(a))
    report = json.loads(out)
    assert code == 0 and report["ok"] and report["matrix"]["n"] == 20
    assert Status.CONVERGED.value in err
    assert scipy.io.mmread(path).shape == (20, 1)


def test_quiet_prints_nothing_but_what_is_asked_for(piped, tmp_path):
    a, b = system()
    rhs = write(tmp_path / "b.mtx", b[:, None])
    assert piped(*GAUSS, "--quiet") == (0, b"", "")
    code, out, err = piped("solve", "-", rhs, "--quiet", "-o", "-", data=text_of(a))
    assert (code, err) == (0, "")
    assert np.array_equal(scipy.io.mmread(io.BytesIO(out))[:, 0], tcsolve.solve(a, b))
    code, out, err = piped("solve", "-", "--quiet", "--json", "-", data=text_of(a))
    assert (code, err) == (0, "") and json.loads(out)["matrix"]["n"] == 20


def test_quiet_keeps_the_exit_code_and_the_errors(piped):
    singular = ["solve", "gen:zero_column_last", "--n", "10", "--quiet", "-o", "-"]
    assert piped(*singular) == (1, b"", "")
    ill = ["solve", "gen:svd_geo", "--n", "60", "--cond", "1e25", "--precision", "fp64"]
    assert piped(*ill, "--quiet") == (3, b"", "")
    code, out, err = piped("solve", "gen:gues", "--quiet")
    assert (code, out) == (2, b"") and err.startswith("tcsolve: error: ")


def test_x_that_is_not_finite_is_not_written_to_standard_output(piped):
    code, out, err = piped("solve", "gen:zero_column_last", "--n", "10", "-o", "-")
    assert (code, out) == (1, b"")
    assert Status.SINGULAR.value in err and "tcsolve: warning: x is not written to -" in err


@pytest.mark.parametrize("n, rows", [(20, 1), (4000, 1)], ids=["short", "long"])
def test_the_command_stands_in_a_pipeline(tmp_path, n, rows):
    a = scipy.sparse.diags_array(np.arange(1.0, n + 1)) if n > 100 else system(n)[0]
    b = write(tmp_path / "b.mtx", np.ones((n, 1)))
    path = write(tmp_path / "a.mtx", scipy.sparse.coo_array(a) if n > 100 else a)
    command = shlex.join([sys.executable, "-P", "-m", "tcsolve", "solve", "-", b, "-o", "-"])
    line = f"cat {shlex.quote(path)} | {command} | head -n {rows}"
    run = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0
    assert run.stdout == "%%MatrixMarket matrix array real general\n"
    assert Status.CONVERGED.value in run.stderr and "tcsolve: " not in run.stderr


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "<stdin> is not a readable Matrix Market file"),
        (b"1 2\n3 4\n", "<stdin> is not a readable Matrix Market file"),
        (gzip.compress(NONFINITE.encode())[:-9], "<stdin> is not a readable Matrix Market file"),
        (NONFINITE.encode(), "A holds NaN"),
        (
            b"%%MatrixMarket matrix array real general\n1000000000 1000000000\n",
            "<stdin> is 1000000000 by 1000000000: dense it takes",
        ),
    ],
    ids=["empty", "no banner", "cut off", "nan", "huge"],
)
def test_bad_standard_input_is_refused_in_one_line(data, reason, piped):
    code, out, err = piped("solve", "-", "-o", "-", data=data)
    assert (code, out) == (2, b"")
    assert err.startswith("tcsolve: error: ") and reason in err and err.count("\n") == 1


def in_a_shell(redirection, *argv):
    command = shlex.join([sys.executable, "-P", "-m", "tcsolve", *argv])
    line = f"{command} {redirection}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=100)


def test_closed_streams_are_named():
    for redirection, argv in (("<&-", ["solve", "-"]), (">&-", [*GAUSS, "-o", "-"])):
        run = in_a_shell(redirection, *argv)
        assert run.returncode == 2 and run.stdout == ""
        assert "is closed; open it" in run.stderr and run.stderr.count("\n") == 1


def test_no_report_comes_between_the_lines_of_x_where_standard_error_is_closed():
    run = in_a_shell("2>&-", "solve", "gen:minij", "--n", "3", "-o", "-")
    assert run.returncode == 0 and scipy.io.mmread(io.StringIO(run.stdout)).shape == (3, 1)


# ---- Ctrl-C ------------------------------------------------------------------------------------

SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SCRIPT = SCRIPT["project"]["scripts"]["tcsolve"].split(":")
STARTS = {
    "module": ["-m", "tcsolve"],
    # The code that an installer writes into the script `tcsolve`.
    "script": ["-c", f"import sys; from {SCRIPT[0]} import {SCRIPT[1]}; sys.exit({SCRIPT[1]}())"],
}
needs_signals = pytest.mark.skipif(os.name != "posix", reason="signals are of POSIX")


def interrupted_after(module, command, cwd=None):
    """Start the command and interrupt it when it writes the name of the module; return the process."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell that starts the suite in the background makes it ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = threading.Timer(60, process.kill)
    deadline.start()
    while line := process.stderr.readline():
        if line.split(b"|")[-1].strip() == module.encode():
            break
    deadline.cancel()
    assert line, f"the command ends without {module}"
    process.send_signal(signal.SIGINT)
    return process


def own_errors(err):
    return [line for line in err.decode().splitlines() if not line.startswith("import time:")]


@needs_signals
@pytest.mark.parametrize(
    "start, module",
    [
        *(("module", "numpy.version"), ("script", "numpy._core._multiarray_umath")),
        *(("module", "ml_dtypes"), ("script", "scipy.linalg"), ("module", "tcsolve._solve.api")),
        *(("module", "tcsolve.cli.command"), ("script", "tcsolve.cli.command")),
    ],
)
def test_an_interrupt_at_the_start_leaves_one_line_and_no_traceback(start, module):
    command = [sys.executable, "-P", "-X", "importtime", *STARTS[start], "solve", "-"]
    process = interrupted_after(module, command)  # the command waits for standard input
    _, err = process.communicate(timeout=60)
    assert own_errors(err) == ["tcsolve: error: interrupted"]
    assert process.returncode == 130


@needs_signals
def test_an_interrupt_that_the_shell_ignores_is_ignored_at_the_start():
    command = [sys.executable, "-P", "-X", "importtime", "-m", "tcsolve", "solve", "-"]
    process = interrupted_after("numpy", ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command])
    out, err = process.communicate(text_of(system()[0]), timeout=60)
    assert (process.returncode, own_errors(err)) == (0, [])
    assert Status.CONVERGED.value in out.decode()


@needs_signals
def test_an_interrupt_of_a_program_is_that_of_python(tmp_path):
    text = "import sys, time\nprint('hello')\nprint('ready', file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    (tmp_path / "program.py").write_text(text)
    found = []
    for command in (["program.py"], [*STARTS["module"], "run", "program.py"]):
        process = interrupted_after("ready", [sys.executable, *command], cwd=tmp_path)
        out, err = process.communicate(timeout=60)
        found.append((out, process.returncode, own_errors(err)[-1]))
    assert found[0] == found[1] and found[0][0] == b"hello\n"


def test_an_interrupt_is_told_in_one_line(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "solve_ex", interrupted)
    assert cli.main(GAUSS) == 130
    assert capsys.readouterr().err == "tcsolve: error: interrupted\n"


def test_missing_gpu_is_refused(monkeypatch, refusal):
    monkeypatch.setattr(select, "why_no_cuda", lambda: "there is none")
    assert "there is none" in refusal(*GAUSS, "--device", "cuda")


# ---- progress ----------------------------------------------------------------------------------


@pytest.fixture(params=["tqdm", "plain"])
def ticker(request, monkeypatch):
    """With tqdm, and without."""
    if request.param == "tqdm":
        import_or_skip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)


def test_progress_shows_the_time_and_clears_it(ticker):
    stream = Terminal()
    with progress("solving", stream, delay=0.01):
        time.sleep(0.4)
    text = stream.getvalue()
    assert "solving: 0 s" in text and "\n" not in text
    after = text.rpartition("\r")[2]
    assert after.replace("\x1b[K", "").strip() == ""


def test_progress_of_a_quick_block_is_silent(ticker):
    stream = Terminal()
    with progress("solving", stream):
        pass
    assert stream.getvalue() == ""


def test_progress_is_silent_without_a_terminal(ticker):
    stream = io.StringIO()
    with progress("solving", stream, delay=0.0):
        time.sleep(0.05)
    assert stream.getvalue() == ""


def test_progress_ends_with_an_error():
    stream = Terminal()
    with pytest.raises(ZeroDivisionError), progress("solving", stream, delay=0.0):
        raise ZeroDivisionError


def test_progress_may_tell_what_is_going_on_now(ticker):
    stream, doing = Terminal(), ["copying"]
    with progress(lambda: doing[-1], stream, delay=0.01):
        time.sleep(0.3)
        doing.append("solving")
        time.sleep(0.4)
    assert "copying: 0 s" in stream.getvalue() and "solving: 0 s" in stream.getvalue()


@pytest.fixture
def shown(monkeypatch):
    """The list of the progress lines that the command shows, each with its last text."""
    seen = []

    @contextlib.contextmanager
    def watched(label):
        yield
        seen.append(label() if callable(label) else label)

    monkeypatch.setattr(cli, "progress", watched)
    return seen


def test_progress_covers_the_matrix_and_the_solve(shown, tmp_path):
    path = write(tmp_path / "a.mtx", system()[0])
    assert cli.main(GAUSS) == cli.main(["solve", path]) == 0
    assert shown == [
        "generating gen:gauss",
        "solving: gauss, n = 30",
        f"reading {path}",
        f"solving: {path}, n = 20",
    ]
    shown.clear()
    assert cli.main([*GAUSS, "--quiet"]) == 0 and not shown


def test_progress_tells_of_a_copy_to_the_device(shown, monkeypatch):
    solution = tcsolve.solve_ex(*system(30))

    def copies(*_, **__):
        note("move")
        return solution

    monkeypatch.setattr(cli, "solve_ex", copies)
    assert cli.main(GAUSS) == 0
    assert shown[-1] == "copying to the GPU: gauss, n = 30"


# ---- info and list -----------------------------------------------------------------------------


@pytest.fixture
def no_compiler(monkeypatch):
    """A compiler that accepts all but one kernel, at once."""
    from tcsolve._backends.cuda.runtime import compiler as jit

    def compile_cubin(name, arch, defines=()):
        if name == "pack_operands":
            raise tcsolve.KernelCompileError(name, arch, ["-DX=1"], "line 1: error\nline 2: error")
        return b""

    monkeypatch.setattr(jit, "compile_cubin", compile_cubin)


def test_info_without_a_gpu_says_why_and_what_to_do(monkeypatch, nvrtc, no_compiler, capsys):
    monkeypatch.setattr(select, "why_no_cuda", lambda: "there is no driver")
    monkeypatch.setenv("TCSOLVE_MATRICES", "/some/folder")
    assert cli.main(["info"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"numpy           {np.__version__}" in out
    assert f"nvrtc           {'.'.join(map(str, nvrtc.getVersion()))}" in out
    assert "none: there is no driver" in out and "pip install 'tcsolve[cuda13]'" in out
    assert "cost model      rates of a CPU" in out
    assert "/some/folder" in out
    assert "compile for sm_90a" in out
    assert "FAILS: kernel 'pack_operands'" in out and "line 2: error" in out


def test_info_without_cupy_gives_the_remedy(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(select, "why_no_cuda", lambda: "CuPy is not installed")
    monkeypatch.delenv("TCSOLVE_MATRICES", raising=False)
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "not compiled: CuPy with NVRTC is needed; pip install 'tcsolve[cuda13]'" in out
    assert "set TCSOLVE_MATRICES" in out


@pytest.mark.gpu
def test_info_names_the_gpu(cupy, no_compiler, capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "compute capability" in out and "GiB" in out


@pytest.fixture
def few_kernels(monkeypatch, tmp_path):
    """Two kernels to compile, into an empty folder, which is returned."""
    few = {name: kernels.KERNELS[name] for name in ("wait_for_panel", "move_rows")}
    monkeypatch.setattr(kernels, "KERNELS", few)
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.nvrtc
def test_warm_compiles_for_named_architectures_without_a_gpu(few_kernels, nvrtc, capsys):
    assert cli.main(["warm", "--arch", "sm_80", "9.0"]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first.split()[:2] == ["sm_80", "5"] and second.split()[:2] == ["sm_90a", "5"]
    assert str(few_kernels) in first and err == ""
    made = {file: file.stat().st_mtime_ns for file in few_kernels.iterdir()}
    assert len(made) == 10
    assert cli.main(["warm", "--arch", "sm_80"]) == 0  # finds them
    assert {file: file.stat().st_mtime_ns for file in few_kernels.iterdir()} == made


@pytest.mark.nvrtc
def test_what_warm_compiles_is_what_a_launch_reads(few_kernels, nvrtc, monkeypatch):
    assert cli.main(["warm", "--arch", "sm_90"]) == 0
    monkeypatch.setattr(nvrtc, "compileProgram", None)
    cubin = compiler.compile_cubin("move_rows", compiler.arch_for(90), (("CHUNK", 4),))
    assert len(cubin) > 1000


@pytest.mark.nvrtc
def test_warm_refuses_a_folder_that_cannot_be_written(few_kernels, nvrtc, refusal):
    few_kernels.write_text("in the way")
    error = refusal("warm", "--arch", "sm_80")
    assert str(few_kernels) in error and "TCSOLVE_CACHE_DIR" in error


@pytest.mark.parametrize(
    "arch, reason",
    [("sm_70", "7.5 or later"), ("hopper", "'hopper'"), ("sm_9", "'sm_9'"), ("", "''")],
)
def test_warm_refuses_what_is_no_architecture(arch, reason, refusal):
    assert reason in refusal("warm", "--arch", arch)


@pytest.mark.nvrtc
def test_warm_without_a_gpu_needs_an_architecture(few_kernels, nvrtc, monkeypatch, refusal):
    monkeypatch.setattr(select, "why_no_cuda", lambda: "there is no driver")
    error = refusal("warm")
    assert "there is no driver" in error and "tcsolve warm --arch sm_90" in error


@pytest.mark.nvrtc
def test_warm_names_an_architecture_that_the_compiler_lacks(few_kernels, nvrtc, refusal):
    assert "sm_99" in refusal("warm", "--arch", "sm_99")


def test_warm_without_a_compiler_gives_the_remedy(monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    assert "pip install 'tcsolve[cuda13]'" in refusal("warm", "--arch", "sm_90")


def test_list_describes_every_generator(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [entry.name for entry in matrices.catalog()]
    assert all(len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["solve", "--help"]])
def test_help_and_version_exit_with_0(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 0
    assert capsys.readouterr().out
