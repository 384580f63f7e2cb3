"""The table of time and energy: its problems, its rows, its page; with a stand-in for cuSOLVER."""

import json
import sys

import numpy as np
import pytest
from pages import FACTS, redraw, seconds


@pytest.fixture
def training(script):
    return script("training")


def run(module, monkeypatch, path, *words):
    monkeypatch.setattr(sys, "argv", ["training", "--device", "cpu", "--json", str(path), *words])
    module.main()
    return json.loads(path.read_text())["rows"]


@pytest.mark.parametrize("name", ["poisson", *(f"type {i}" for i in range(2, 7))])
def test_a_problem_has_the_condition_number_that_it_tells(script, name):
    a, kappa, _ = script("_dense_problems").make(np, name, 100)
    assert np.linalg.cond(a) == pytest.approx(kappa, rel=1e-8)
    if name in ("poisson", "type 2", "type 3", "type 5"):
        assert np.linalg.eigvalsh((a + a.T) / 2).min() > 0


def test_the_other_problems_are_what_they_say(script):
    make = script("_dense_problems").make
    a, kappa, _ = make(np, "covariance", 300)
    assert kappa / 10 < np.linalg.cond(a) <= kappa * (1 + 1e-6)
    a, *_ = make(np, "boundary", 200)
    assert np.array_equal(a, a.T) and np.linalg.eigvalsh(a).min() > 0
    # The sum of the charges is the capacitance of the sphere, which is its radius.
    assert np.linalg.solve(a, np.ones(200)).sum() == pytest.approx(1, rel=0.1)
    a, *_ = make(np, "type 1", 50)
    rest = np.abs(a).sum(axis=1) - np.abs(a.diagonal())
    assert (np.abs(a.diagonal()) > 0.9 * rest).all()


def test_every_answer_is_checked_and_its_rows_are_kept(training, monkeypatch, tmp_path):
    path = tmp_path / "t.json"
    rows = run(
        training, monkeypatch, path, "--problem", "type 4:60", "poisson:64", "--repeats", "1"
    )

    assert {row["problem"] for row in rows} == {"type 4 n=60", "poisson n=64"}
    assert all(row["solved"] and row["backward_error"] <= row["bound"] for row in rows)
    timed = [row for row in rows if "seconds" in row]
    assert {row["solver"] for row in timed} == set(training.OURS)
    assert all("not measured: NVML measures GPUs only" in row["energy"] for row in timed)
    text = path.with_suffix(".md").read_text()
    assert "| type 4 n=60 | 60 | 1.0e+02 |" in text and "Energy: not measured" in text


def test_a_wrong_answer_has_no_time(training, monkeypatch, tmp_path):
    wrong = {"FP64": lambda a, b: (b, 0), "gives up": lambda a, b: (np.linalg.solve(a, b), -1)}

    def breaks(a, b):
        raise MemoryError("too large")

    found = {name: training.Solver(f, f) for name, f in (wrong | {"FP32": breaks}).items()}
    monkeypatch.setattr(training, "solvers", lambda on_device, n: found)
    rows = run(training, monkeypatch, tmp_path / "t.json", "--problem", "type 4:60")

    assert not any(row["solved"] or "seconds" in row for row in rows)
    assert rows[2]["error"] == "MemoryError: too large"
    assert (tmp_path / "t.md").read_text().count("–") >= 3


def test_problems_that_had_no_time_are_done_by_a_resumed_run(
    training, monkeypatch, tmp_path, capsys
):
    path, problems = tmp_path / "t.json", ["--problem", "type 4:40", "type 6:40"]
    names = list(training.solvers(False, 40))
    known = [{"problem": "type 4 n=40", "solver": name, "n": 40} for name in names]
    path.write_text(json.dumps({"machine": {}, "rows": known}))
    monkeypatch.setattr(training, "page", lambda *_: "")

    assert run(training, monkeypatch, path, *problems, "--resume", "--seconds", "-1") == known
    assert "no time was left for type 6 n=40" in capsys.readouterr().out
    rows = run(training, monkeypatch, path, *problems, "--resume", "--repeats", "1")
    added = [(row["problem"], row["solver"]) for row in rows[len(names) :]]
    assert added == [("type 6 n=40", name) for name in names]


def test_a_problem_that_was_interrupted_gets_the_solvers_that_are_missing(
    training, monkeypatch, tmp_path
):
    path, problem = tmp_path / "t.json", ["--problem", "type 4:40", "--repeats", "1"]
    rows = run(training, monkeypatch, path, *problem)
    path.write_text(json.dumps({"machine": {}, "rows": rows[:2]}))
    monkeypatch.setattr(training, "page", lambda *_: "")

    again = run(training, monkeypatch, path, *problem, "--resume")

    assert again[:2] == rows[:2]
    assert [row["solver"] for row in again] == [row["solver"] for row in rows]


def test_a_row_without_an_energy_is_measured_again(training, monkeypatch, tmp_path):
    path, problem = tmp_path / "t.json", ["--problem", "type 4:40", "--repeats", "1"]
    rows = run(training, monkeypatch, path, *problem)
    del rows[1]["energy"]
    path.write_text(json.dumps({"machine": json.loads(path.read_text())["machine"], "rows": rows}))

    again = run(training, monkeypatch, path, *problem, "--resume")

    assert [row["solver"] for row in again] == [
        *(row["solver"] for row in rows if "energy" in row),
        rows[1]["solver"],
    ]
    assert all("energy" in row for row in again)


def test_unknown_condition_numbers_are_estimated_when_it_resumes(training, monkeypatch, tmp_path):
    path, problem = tmp_path / "t.json", ["--problem", "type 1:40"]
    rows = run(training, monkeypatch, path, *problem, "--repeats", "1")
    known = json.loads(path.read_text())
    exact = np.linalg.cond(training.make(np, "type 1", 40)[0], 1)
    for row in known["rows"]:
        assert exact / 3.1 <= row["kappa"] <= exact * 1.01 and "estimated" in row["kappa_is"]
        row["kappa"] = None
    path.write_text(json.dumps(known | {"machine": known["machine"] | {"commit": "earlier"}}))

    again = run(training, monkeypatch, path, *problem, "--resume")

    assert [row["kappa"] for row in again] == [row["kappa"] for row in rows]
    assert (
        json.loads(path.read_text())["machine"]["commit"] == "earlier"
    )  # the times are of that commit


def test_rows_of_a_resumed_run_keep_their_commit(training, monkeypatch, tmp_path):
    path, problem = tmp_path / "t.json", ["--problem", "type 4:40", "--repeats", "1"]
    run(training, monkeypatch, path, *problem, "--commit", "earlier")
    known = json.loads(path.read_text())
    first, second, *_, last = known["rows"]
    # One row is missing, and one lacks its energy, so that it is measured again.
    del second["energy"]
    path.write_text(json.dumps(known | {"rows": known["rows"][:-1]}))

    rows = run(training, monkeypatch, path, *problem, "--resume", "--commit", "later")

    assert json.loads(path.read_text())["machine"]["commit"] == "earlier"
    assert rows[0] == first
    assert {r["solver"] for r in rows if "commit" in r} == {second["solver"], last["solver"]}
    text = path.with_suffix(".md").read_text()
    for row in (second, last):
        assert f"'{row['solver']}' for {first['problem']} are of commit later, " in text
    assert text.count("are of commit") == 2


@pytest.mark.parametrize(("kind", "n"), [("type 2", 150), ("type 4", 300), ("poisson", 144)])
def test_fp16_without_tensor_cores_solves_to_the_bound(script, kind, n):
    plain = script("_fp16_plain")
    a = script("_dense_problems").make(np, kind, n)[0] * np.logspace(-9, 9, n)[:, None]
    x, steps = plain.solve(a, a @ np.ones(n))
    assert 1 <= steps <= 20
    error = np.abs(a @ (x - 1)).max() / (np.abs(a).sum(axis=1).max() * np.abs(x).max())
    assert error <= 2 * 2.0**-53 * n**0.5


def test_the_factors_in_fp16_are_those_of_a_scaled_matrix_with_pivots(script):
    plain, n = script("_fp16_plain"), 200  # two panels
    a = script("_dense_problems").make(np, "type 4", n)[0] * np.logspace(-3, 3, n)
    found = plain.factor(a)
    lower = np.tril(found.lu, -1) + np.eye(len(found.lu))
    product = (lower @ np.triu(found.lu))[:n, :n]
    scaled = (found.rows[:, None] * a * found.columns)[found.order[:n]]
    assert np.abs(product - scaled).max() < 100 * 2.0**-11 * np.abs(scaled).max()
    assert np.abs(lower).max() == 1 and (found.order[:n] < n).all()


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_kernel_of_fp16_without_tensor_cores_compiles(script, arch, nvrtc):
    cubin = script("_kernels").compile_cubin("fp16_update.cu", arch)
    assert cubin.startswith(b"\x7fELF")


@pytest.mark.gpu
def test_the_kernel_of_fp16_without_tensor_cores_rounds_each_sum(cupy, script):
    plain, rng = script("_fp16_plain"), np.random.default_rng(0)
    w = rng.standard_normal((640, 640)).astype(np.float16)
    on_device = cupy.asarray(w)
    for xp, matrix in ((np, w), (cupy, on_device)):
        plain.update(xp, matrix, 128, 256)
    assert np.array_equal(on_device.get().view(np.uint16), w.view(np.uint16))


def test_cusolver_gets_copies_in_its_order(training):
    a, b = np.arange(9.0).reshape(3, 3), np.ones(3)

    def stand_in(arguments):
        own, rhs = arguments
        assert own.flags.f_contiguous and np.array_equal(own, a)
        own[:], rhs[:] = 0, 0
        return rhs, 4

    assert training.by_vendor(stand_in).count(a, b)[1] == 4
    assert a[2, 2] == 8 and b.all()


def test_an_unknown_problem_is_refused(training, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="write name:n with one of poisson"):
        run(training, monkeypatch, tmp_path / "t.json", "--problem", "type 9:40")


def test_the_page_has_speed_ups_counts_and_energy(training, monkeypatch, tmp_path):
    base = {"problem": "type 4 n=8", "n": 8, "kappa": None, "solved": True, "backward_error": 1e-17}
    told = {"joules": 30.0, "watts": 300.0, "gflops_per_watt": 12.5, "energy": "NVML"}
    rows = [
        base | {"solver": "FP64", "steps": 0, "seconds": seconds(0.4)} | told,
        base | {"solver": "FP32", "steps": 3, "seconds": seconds(0.2)} | told,
        base | {"solver": "cuSOLVER FP16", "steps": 7, "seconds": seconds(0.1)},
        base | {"solver": "cuSOLVER TF32", "steps": 14, "solved": False},
        base | {"solver": "FP16 on tensor cores", "steps": 200, "solved": False},
        base | {"solver": training.PLAIN, "steps": 8, "seconds": seconds(0.2)},
    ]
    text = redraw(training, monkeypatch, tmp_path / "t.json", rows, FACTS)

    assert (
        "| unknown | 0.4000 | 3, 0.2000, 2.00x | – | 8, 0.2000, 2.00x | 7, 0.1000, 4.00x | (14) |"
        in text
    )
    assert "| 30 J, 12.5 | 30 J, 12.5 |" in text
    rows[3]["steps"] = -3  # cuSOLVER gave up
    text = redraw(training, monkeypatch, tmp_path / "t.json", rows, FACTS)
    assert "7, 0.1000, 4.00x | – |" in text


def test_one_command_has_all_problems_of_the_page(training, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["training"])
    options = training.read_options()
    made = training.problems_of(options.problem, options.matrix, None)
    names = [name for name, _ in made]
    known = training.read(training.RESULTS / "training.json")[1]
    assert {row["problem"] for row in known} <= set(names)
    each = {f"type {i} n={n}" for i in range(1, 7) for n in (2048, 8192, 16384)}
    assert each | {"type 2 n=34000", "type 4 n=34000"} <= set(names)
    assert len(set(names)) == len(names)
    monkeypatch.setattr(sys, "argv", ["training", "--problem", "type 4:40"])
    options = training.read_options()
    assert list(options.problem) == ["type 4:40"] and not options.matrix


def test_the_page_has_the_problems_in_the_order_of_the_list(training):
    names = ["other", "cage10", "type 1 n=2048", "poisson n=32041"]
    rows = [{"problem": name} for name in names]
    assert [row["problem"] for row in training.in_order(rows)] == [*names[:0:-1], "other"]


def test_a_matrix_that_is_not_there_is_left_out(training, monkeypatch, tmp_path, capsys):
    words = ["--matrix", "absent", "--problem", "type 4:40", "--folder", str(tmp_path)]
    rows = run(training, monkeypatch, tmp_path / "t.json", *words, "--repeats", "1")
    assert {row["problem"] for row in rows} == {"type 4 n=40"}
    assert "absent is left out: no matrix absent in" in capsys.readouterr().err


def test_the_steps_of_models_have_a_file_and_a_table_of_their_own(training, monkeypatch, tmp_path):
    path, problem = tmp_path / "t.json", ["--problem", "type 4:60"]
    timed = run(training, monkeypatch, path, *problem, "--repeats", "1")
    before = path.with_suffix(".md").read_text()
    assert "FP16 without tensor cores" not in before

    assert run(training, monkeypatch, path, *problem, "--emulated") == timed

    facts, rows = training.read(tmp_path / "t_emulated.json")
    each, tensor = rows
    assert "rounded" in each["solver"] and each["solved"] and "seconds" not in each
    assert each["steps"] >= tensor["steps"] >= 2
    told = f"| type 4 n=60 | 60 | 1.0e+02 | {each['steps']} | {tensor['steps']} |"
    assert told in path.with_suffix(".md").read_text()
    each["solved"] = False
    assert "| type 4 n=60 | 60 | 1.0e+02 | – |" in "\n".join(training.lines(facts, rows))
    each["backward_error"] = np.nan
    assert "| type 4 n=60 | 60 | 1.0e+02 | no LU |" in "\n".join(training.lines(facts, rows))


def test_the_models_have_all_problems_in_two_sizes(script):
    words = script("_training_emulated").EMULATED
    kinds = [word.partition(":")[0] for word in words]
    problems = script("_dense_problems").PROBLEMS
    assert sorted(kinds) == sorted([*problems, *problems])
