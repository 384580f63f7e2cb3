"""How Sphinx builds the pages; `sphinx-build -W docs OUTPUT` needs no network."""

import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(HERE / "_ext"))

project = "tcsolve"
author = "The tcsolve developers"
copyright = "the tcsolve developers, BSD-3-Clause"
release = importlib.metadata.version("tcsolve")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "mathml",
]
exclude_patterns = ["_ext", "_templates"]
default_role = "py:obj"
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
autosummary_generate = True
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "tcsolve"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["tcsolve.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}


def _bring_results(app):
    """Copy the pages of measurements, and draw the figures, into folders that git ignores."""
    import figures

    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    wanted = {path.name: path for path in [*RESULTS.glob("*.md"), *RESULTS.glob("*.png")]}
    for stale in {path.name for path in folder.iterdir()} - set(wanted):
        (folder / stale).unlink()
    for name, path in wanted.items():
        _copy_if_newer(path, folder / name)
    figures.draw_all(HERE / "_figures", RESULTS)


def _copy_if_newer(source, target):
    if not target.exists() or source.read_bytes() != target.read_bytes():
        shutil.copyfile(source, target)


def _link_within(app, name, text):
    """Change the links between docs/ and benchmarks/results/ in the repository to links between pages."""
    text[0] = re.sub(r"\]\((?:\.\./)+benchmarks/results/", "](/results/", text[0])
    text[0] = re.sub(r"\]\((?:\.\./)+docs/", "](/", text[0])


# Classes whose objects are made by the library, not by its users.
MADE_HERE = {
    "Entry",
    "Factorization",
    "GemmBound",
    "LeastSquares",
    "Problem",
    "Solution",
    "StackFactorization",
    "Status",
}


def _without_signature(app, what, name, obj, options, signature, returns):
    """Hide the arguments of constructors that users do not call."""
    if what == "class" and name.rpartition(".")[2] in MADE_HERE:
        return "", None
    return None


def setup(app):
    app.connect("autodoc-process-signature", _without_signature)
    app.connect("builder-inited", _bring_results)
    app.connect("source-read", _link_within)
