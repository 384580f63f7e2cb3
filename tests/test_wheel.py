"""The packages that users install contain the kernels and the test problems, not only Python files."""

import importlib.resources
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from folders import ROOT

FOLDERS = ("tcsolve", "kernels", "matrices")
SUFFIXES = {".py", ".pyi", ".typed", ".cu", ".cuh", ".csv"}
LEAVE = shutil.ignore_patterns(
    ".git", "*.egg-info", "__pycache__", "build", "dist", ".venv", ".*_cache"
)


def sources(folder):
    """Return the paths, relative to the folder, of all its files that must be installed."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    found = {path.relative_to(ROOT / folder).as_posix() for path in paths}
    assert len(found) >= 3
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The names in the sdist and in the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("build")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=LEAVE)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", tree]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = (list((folder / "dist").glob(p)) for p in ("*.tar.gz", "*.whl"))
    with tarfile.open(sdist) as archive:
        # The first folder is the name and version.
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
        text = {
            name: archive.read(name).decode()
            for name in in_wheel
            if name.endswith(("METADATA", "entry_points.txt"))
        }
    return in_sdist, in_wheel, text


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_source_is_in_the_sdist_and_in_the_wheel(built, folder):
    in_sdist, in_wheel, _ = built
    installed = "tcsolve" if folder == "tcsolve" else f"tcsolve/{folder}"
    from_sdist = {path for path in sources(folder) if f"{folder}/{path}" not in in_sdist}
    from_wheel = {path for path in sources(folder) if f"{installed}/{path}" not in in_wheel}
    assert (from_sdist, from_wheel) == (set(), set())


@pytest.mark.slow
def test_the_wheel_has_the_types(built):
    _, in_wheel, _ = built
    assert {"tcsolve/py.typed", "tcsolve/__init__.pyi", "tcsolve/matrices/__init__.pyi"} <= in_wheel


@pytest.mark.slow
def test_the_sdist_holds_tests_and_the_wheel_holds_none(built):
    in_sdist, in_wheel, _ = built
    assert {"pyproject.toml", "LICENSE", "tests/conftest.py", "tests/bounds.py"} <= in_sdist
    assert all(name.startswith(("tcsolve/", "tcsolve-")) for name in in_wheel)
    assert not [
        name for name in in_wheel if "test" in name or name.endswith((".pyc", ".so", ".mtx"))
    ]


@pytest.mark.slow
def test_the_metadata_names_the_license_and_the_command(built):
    _, in_wheel, text = built
    metadata = next(body for name, body in text.items() if name.endswith("METADATA"))
    assert "License-Expression: BSD-3-Clause" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in in_wheel)
    assert "Requires-Dist: scipy" in metadata and "Requires-Dist: ml_dtypes" in metadata
    entries = next(body for name, body in text.items() if name.endswith("entry_points.txt"))
    assert "tcsolve = tcsolve.__main__:main" in entries


def test_the_kernels_are_found_as_installed():
    installed = importlib.resources.files("tcsolve.kernels")
    assert not [path for path in sources("kernels") if not installed.joinpath(path).is_file()]
