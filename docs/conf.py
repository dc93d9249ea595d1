"""Sphinx configuration: `make docs` builds with warnings as errors and runs every gallery script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bpa
from bpa.cli.main import build_app

project = "bpa"
author = "The bpa developers"
copyright = "The bpa developers"
release = bpa.__version__
version = release

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/**/*.ipynb", "gallery/**/*.py", "gallery/**/*.zip"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
default_role = "literal"
suppress_warnings = ["config.cache", "myst.header"]  # included tables bring their own headings

html_theme = "pydata_sphinx_theme"
html_title = "bpa"
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "plot_gallery": "True",
    "copyfile_regex": r"^$",
    "reset_modules": ("matplotlib",),
}


def _write_command_reference(_: Any) -> None:
    """The reference of the command line is what its verbs say of themselves."""
    page = Path(__file__).parent / "reference" / "generated" / "command-line.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(build_app(eager=True).generate_docs(output_format="markdown", heading_level=1))


def setup(app: Any) -> None:
    """Write what is generated before anything is read."""
    app.connect("builder-inited", _write_command_reference, priority=1)
