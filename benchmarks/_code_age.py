"""Find results that are older than the code that made them; comments and docstrings are no code."""

import ast
import functools
import json
import pathlib
import re
import subprocess

from _code_lines import COMMENT
from _harness import RESULTS

__all__ = ["results_before_their_code"]

ROOT = pathlib.Path(__file__).parents[1]
# The script of each results file that is not named after its script.
SCRIPTS = {
    "ablation_removed": "ablation",  # of paths that the library does not have any more
    "accurate_cuda": "accurate",
    "convergence_cuda": "convergence",
    "corrections_rates": "corrections",
    "corrections_steps": "corrections",
    "cpu_ratios": "cpu",
    "emulated": "cpu",
    "emulator_host": "emulator",
    "published_bf16": "published",
    "published_limits": "published",
    "published_scaling": "published",
    "published_spd": "published",
    "stacks_types": "stacks",
    "study_cuda": "study",
    "suitesparse_cpu": "suitesparse",
    "suitesparse_h200": "suitesparse",
    "training_emulated": "training",
    "versions_large": "versions",
}
WRITERS = ("tables", "_code_age", "_code_lines")
LIBRARY = ("tcsolve", "kernels")
PRODUCTS = (
    "tcsolve/_gemm",
    "tcsolve/_backends/cuda/gemm",
    "tcsolve/_backends/cpu/gemm.py",
    "kernels",
)
# The parts of the library on which a results file depends, if it does not depend on the whole library.
PARTS = dict.fromkeys(("gemm", "gemm_batched", "gemm_error", "boris_push"), PRODUCTS)
COMPILER = "tcsolve/_backends/cuda/runtime/compiler.py"  # its flags
PARTS |= {"mma_rate": (), "binaries": ("kernels", COMPILER)}
# Files that only a device runs, besides CUDA sources.  A change of these files does not make results from a
# host old.  One exception is ignored: on the host, `tcsolve.factor` of a stack uses the second folder.  Of
# the benchmarks only fuzz.py calls it there.
FOR_DEVICES = ("tcsolve/_backends/cuda/", "tcsolve/_solve/vendor/")
# Files that only the results of STUDIES depend on.
STUDY = "tcsolve/_study/"
STUDIES = ("convergence", "convergence_exact", "published", "study", "training")
# The command only reads arguments and prints, so it changes no results, except for its measured rates.
COMMAND, RATES = "tcsolve/cli/", "tcsolve/cli/rates.py"


def results_before_their_code(root=ROOT, folder=RESULTS):
    """Yield (name of a results file, its commit, paths that have changed since) for each outdated file.

    If git does not know the commit, None takes the place of the list of paths.
    """
    code_of = functools.cache(functools.partial(_code_of, root))
    for path in sorted(folder.glob("*.json")):
        machine = json.loads(path.read_text()).get("machine", {})
        commit = machine.get("commit", "").removesuffix("+")
        script = f"benchmarks/{SCRIPTS.get(path.stem, path.stem)}.py"
        known = commit and _git(root, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0
        if not known:
            yield path.name, commit, None
            continue
        asked = [*_parts_of_script(root / script, root), *PARTS.get(path.stem, LIBRARY)]
        on_device = "gpu" in machine or path.stem in PARTS
        how = {"on_device": on_device, "is_study": pathlib.Path(script).stem in STUDIES}
        changed = [x for x in asked if _has_other_code(root, code_of, commit, x, **how)]
        if changed:
            yield path.name, commit, changed


def _parts_of_script(script, root):
    """Return the paths of a script and of the files in its folder that it needs.

    They are the CUDA sources that it names, and the modules that it imports.
    """
    found, todo = [], [script]
    while todo:
        path = todo.pop()
        if path in found or not path.exists():
            continue
        found.append(path)
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"\w+\.cu\b", text)
        if path.suffix == ".py":
            names += [f"{name}.py" for name in _imported(ast.parse(text))]
        todo += [script.parent / name for name in sorted(set(names))]
    return [str(path.relative_to(root)) for path in found] or [str(script.relative_to(root))]


def _imported(tree):
    """Return the names of the modules that a module imports, except WRITERS: they measure nothing."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return [name for name in found if name not in WRITERS]


def _has_other_code(root, code_of, commit, path, *, on_device, is_study):
    """Tell whether a file, or a file in the folder `path`, has other code now than in the commit.

    Files that the results do not depend on do not count.  `code_of` is `_code_of` for `root`.
    """
    names = _git(root, "diff", "--name-only", "-z", commit, "--", path).stdout.decode().split("\0")
    for name in filter(None, names):
        for_devices = name.startswith(FOR_DEVICES) or re.match(r"kernels/.*\.cuh?$", name)
        others = COMMAND if is_study else (COMMAND, STUDY)
        if for_devices and not on_device or name.startswith(others) and name != RATES:
            continue
        if code_of(commit, name) != code_of(None, name):
            return True
    return False


def _code_of(root, commit, name):
    """Return a form of a file's code to compare, in a commit or now; None if there is no such file.

    Comments and docstrings of Python and C++ files are left out; of other files it is the whole text.
    """
    if commit is None:
        text = (root / name).read_text("utf-8") if (root / name).exists() else None
    else:
        shown = _git(root, "show", f"{commit}:{name}")
        text = None if shown.returncode else shown.stdout.decode()
    if text is None:
        return None
    if name.endswith(".py"):
        return ast.dump(_without_docstrings(ast.parse(text)))
    return COMMENT.sub("", text).split() if name.endswith((".cu", ".cuh", ".h")) else text


def _without_docstrings(tree):
    for node in ast.walk(tree):
        has_body = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if has_body and ast.get_docstring(node) is not None:
            del node.body[0]
    return tree


def _git(root, *args):
    return subprocess.run(("git", "-C", str(root), *args), capture_output=True, check=False)
