"""Sphinx's configuration. `make docs` builds the site into build/docs; it opens from disk and needs no network."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Making a task compiles a few small programs: quickly, and only in the first build.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(HERE.parent / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

project = "covey"
author = "the covey developers"
copyright = "the covey developers, Apache-2.0"
version = release = importlib.metadata.version("covey")

extensions = [
    "myst_nb",  # Markdown and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "docstrings",  # docs/_ext: covey's docstrings for autodoc
    "registry_pages",  # docs/_ext: a page for every task, algorithm and model
    "sidebars",  # docs/_ext: made once for the tasks of a suite
]
exclude_patterns = ["_ext", "pictures", "generated/lists"]  # the last are included by pages
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type"]

# Notebooks show the outputs they were committed with; tests/test_notebooks.py executes them.
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 90

html_theme = "sphinx_book_theme"
html_title = "covey"
html_static_path = ["_static"]
html_css_files = ["covey.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "home_page_in_toc": False,
    "navbar_persistent": [],  # the sidebar has a search field already
    "show_navbar_depth": 1,
    "max_navbar_depth": 2,  # all tasks in every sidebar would take half as long again to build
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
}

# MathJax comes out of a Python package, so that the site holds its own copy and nothing is loaded from elsewhere.
MATHJAX = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"
mathjax_path = "mathjax.js"


def copy_mathjax(app: object, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":  # type: ignore[attr-defined]
        source = importlib.metadata.distribution("sphinx-mathjax-offline").locate_file(MATHJAX)
        shutil.copyfile(str(source), Path(app.outdir) / "_static" / mathjax_path)  # type: ignore[attr-defined]


def setup(app: object) -> None:
    app.connect("build-finished", copy_mathjax)  # type: ignore[attr-defined]
