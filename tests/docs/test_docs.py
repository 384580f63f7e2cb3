"""The pages in docs/ and the README: they build, they are whole, and their examples run."""

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from folders import ROOT

import tcsolve
from tcsolve import matrices

DOCS = ROOT / "docs"
GENERATED = ("results", "_figures", "generated", "_build", "__pycache__")
SOURCES = [
    path
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if not set(GENERATED) & set(path.relative_to(ROOT).parts[1:-1])
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Pages that Sphinx makes by itself.
INDICES = {"genindex.html", "search.html", "py-modindex.html"}
FEWEST_WORDS, FEWEST_IN_REFERENCE = 60, 8
STUB = re.compile(r"\b(TODO|TBD|FIXME|coming soon|to be written|lorem ipsum)\b", re.IGNORECASE)
MOST_LINES_OF_README = 150


def blocks(path, *languages):
    """Return (language, text) of the code blocks of a page."""
    return [found for found in FENCE.findall(path.read_text()) if found[0] in languages]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


# ---- examples


def run_examples(path, with_cupy):
    """Run the Python blocks of a page one after the other, in one namespace."""
    names = {}
    for language, text in blocks(path, "python", "pycon"):
        if "cupy" in text and not with_cupy:
            continue
        if language == "python":
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("error")
                exec(compile(text, name_of(path), "exec"), names)
            continue
        example = doctest.DocTestParser().get_doctest(text, names, name_of(path), None, None)
        report = []
        failed, _ = doctest.DocTestRunner().run(example, out=report.append, clear_globs=False)
        assert not failed, "".join(report)
        names |= example.globs


@pytest.mark.parametrize("path", [p for p in SOURCES if blocks(p, "python", "pycon")], ids=name_of)
def test_the_examples_of_a_page_run(path):
    run_examples(path, with_cupy=False)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "path", [p for p in SOURCES if any("cupy" in t for _, t in blocks(p, "python"))], ids=name_of
)
def test_the_examples_of_a_page_run_on_a_device(cupy, path):
    run_examples(path, with_cupy=True)


COMMANDS = [
    line.removeprefix("$ ")
    for path in SOURCES
    for _, text in blocks(path, "console")
    for line in text.splitlines()
    if line.startswith("$ tcsolve")
]


# Two commands compile all kernels, and have tests of their own.
@pytest.mark.parametrize("line", [c for c in COMMANDS if c.split()[1] not in ("info", "warm")])
def test_the_commands_of_the_pages_run(line, tmp_path):
    for name, entries in (("A.mtx", "2 2\n4\n1\n1\n3\n"), ("b.mtx", "2 1\n5\n4\n")):
        (tmp_path / name).write_text(f"%%MatrixMarket matrix array real general\n{entries}")
    command = [sys.executable, "-m", "tcsolve", *shlex.split(line)[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr


# ---- the README


def test_the_changelog_of_a_version_is_short():
    versions = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert versions and all(len(text.splitlines()) < 40 for text in versions)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES_OF_README


def test_the_links_of_the_readme_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text())
    local = [link for link in links if "://" not in link]
    assert local and all((ROOT / link).exists() for link in local)


# ---- the pages


class Page(HTMLParser):
    """The links, the loaded files, the anchors and the text of a page."""

    LOADING = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.ids, self.words = [], [], set(), []
        self._article = self._skipped = 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if attributes.get(self.LOADING.get(tag)):
            self.loaded.append(attributes[self.LOADING[tag]])
        self._article += tag == "article"
        self._skipped += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._article -= tag == "article"
        self._skipped -= tag in ("script", "style")

    def handle_data(self, data):
        if self._article and not self._skipped:
            self.words += data.split()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the pages, built from a copy with every warning an error."""
    folder = tmp_path_factory.mktemp("pages")
    results = Path("benchmarks", "results")
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns(*GENERATED))
    shutil.copytree(ROOT / results, folder / results)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += [folder / "docs", folder / "html"]
    # Sphinx does not run in the checkout: there Python would import the packages of the checkout, not the
    # installed ones.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(built):
    """Every page, by its path."""
    return {
        path.relative_to(built).as_posix(): Page(path)
        for path in sorted(built.rglob("*.html"))
        if "_static" not in path.parts
    }


def targets(pages, name):
    """Return (page, anchor) for each link of a page to another page."""
    for link in pages[name].links:
        if re.match(r"[a-z]+:|//", link):
            continue
        path, anchor = urldefrag(link)
        path = (
            os.path.normpath(os.path.join(os.path.dirname(name), unquote(path))) if path else name
        )
        yield path, unquote(anchor)


@pytest.mark.slow
def test_no_page_is_empty_or_a_stub(pages):
    for name in set(pages) - INDICES:
        text = " ".join(pages[name].words)
        fewest = FEWEST_IN_REFERENCE if "generated/" in name else FEWEST_WORDS
        assert len(pages[name].words) >= fewest, name
        assert not STUB.search(text), name


@pytest.mark.slow
def test_every_page_is_reached_by_links(pages):
    reached, waiting = set(), ["index.html"]
    while waiting:
        name = waiting.pop()
        if name in pages and name not in reached:
            reached.add(name)
            waiting += [path for path, _ in targets(pages, name)]
    assert set(pages) - reached <= INDICES


@pytest.mark.slow
def test_every_link_between_pages_has_its_target(pages, built):
    for name in pages:
        for path, anchor in targets(pages, name):
            assert (built / path).exists(), f"{name} links to {path}"
            if anchor and path in pages:
                assert anchor in pages[path].ids, f"{name} links to {path}#{anchor}"


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(pages, built):
    for name, page in pages.items():
        assert page.loaded and not [x for x in page.loaded if re.match(r"https?:|//", x)], name
    for sheet in built.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text()), sheet


@pytest.mark.slow
def test_the_reference_has_every_public_name(pages):
    documented = {x for name, page in pages.items() if name.startswith("api/") for x in page.ids}
    wanted = {f"tcsolve.{name}" for name in tcsolve.__all__}
    wanted |= {f"tcsolve.matrices.{name}" for name in matrices.__all__}
    wanted |= {
        f"tcsolve.{kind}.{name}"
        for kind in ("Factorization", "StackFactorization")
        for name in ("solve", "solve_ex", "rcond", "slogdet")
    }
    assert wanted <= documented
