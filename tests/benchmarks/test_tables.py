"""Results that are older than the code that made them are named."""

import json
import subprocess


def git(root, *args):
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ("git", "-C", str(root), *who, *args), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_results_are_named_whose_script_or_library_changed(script, tmp_path):
    age, results = script("_code_age"), tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for folder in ("tcsolve/_gemm", "kernels"):
        (tmp_path / folder).mkdir(parents=True)
    files = {
        "lu": tmp_path / "benchmarks" / "lu.py",
        "gemm": tmp_path / "benchmarks" / "gemm.py",
        "library": tmp_path / "tcsolve" / "api.py",
        "products": tmp_path / "tcsolve" / "_gemm" / "api.py",
    }
    for path in files.values():
        path.write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    for name, of in (("lu", commit), ("gemm", commit), ("gone", "0123abc"), ("none", "")):
        (results / f"{name}.json").write_text(json.dumps({"machine": {"commit": of}, "rows": []}))

    def named():
        return {name: paths for name, _, paths in age.results_before_their_code(tmp_path, results)}

    unknown = {"gone.json": None, "none.json": None}
    assert named() == unknown
    files["library"].write_text("2\n")
    assert named() == unknown | {"lu.json": ["tcsolve"]}
    files["products"].write_text("2\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "second")
    assert named() == unknown | {"lu.json": ["tcsolve"], "gemm.json": ["tcsolve/_gemm"]}
    files["lu"].write_text("2\n")
    assert named()["lu.json"] == ["benchmarks/lu.py", "tcsolve"]


def test_a_change_counts_only_for_results_of_machines_that_run_it(script, tmp_path):
    age, results = script("_code_age"), tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    files = {
        "kernel": tmp_path / "kernels" / "lu.cu",
        "calls": tmp_path / "tcsolve" / "_backends" / "cuda" / "lu.py",
        "rows": tmp_path / "tcsolve" / "_study" / "rows.py",
    }
    for path in files.values():
        path.parent.mkdir(parents=True)
        path.write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    for name, gpu in (("cpu", {}), ("lu", {"gpu": "one"}), ("convergence", {})):
        machine = {"commit": commit} | gpu
        (results / f"{name}.json").write_text(json.dumps({"machine": machine, "rows": []}))

    def named():
        return {name: paths for name, _, paths in age.results_before_their_code(tmp_path, results)}

    assert not named()
    files["kernel"].write_text("2\n")
    assert named() == {"lu.json": ["kernels"]}
    files["calls"].write_text("2\n")
    assert named() == {"lu.json": ["tcsolve", "kernels"]}
    files["rows"].write_text("2\n")
    assert named() == {"lu.json": ["tcsolve", "kernels"], "convergence.json": ["tcsolve"]}


def test_results_are_named_if_a_part_of_their_script_changed(script, tmp_path):
    age, results = script("_code_age"), tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    texts = {
        "lu.py": "from _rates import KERNEL\n",
        "_rates.py": 'KERNEL = "rates.cu"\n',
        "rates.cu": "",
    }
    for name, text in texts.items():
        (tmp_path / "benchmarks" / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    (results / "lu.json").write_text(json.dumps({"machine": {"commit": commit}, "rows": []}))
    assert not list(age.results_before_their_code(tmp_path, results))

    def add(lines):
        for name, line in zip(("_rates.py", "rates.cu"), lines, strict=True):
            with (tmp_path / "benchmarks" / name).open("a") as file:
                file.write(f"{line}\n")

    add(("# only a comment", "// only a comment"))
    assert not list(age.results_before_their_code(tmp_path, results))

    add(("RATE = 1", "int rate;"))
    (found,) = age.results_before_their_code(tmp_path, results)
    assert found == ("lu.json", commit, ["benchmarks/_rates.py", "benchmarks/rates.cu"])
