"""Settings of Sphinx: the pages of this folder, and a reference made from the docstrings.

The source folder is the root of the repository, so that links between README, docs, jobs and
results are the same files here and where the repository is browsed. `make docs` builds it.
"""

from importlib.metadata import version as installed_version

project = "spdnn"
author = "The spdnn developers"
copyright = "The spdnn developers"
release = version = installed_version("spdnn")

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "data/*.md", "jobs/*.md", "results/*.md"]
exclude_patterns = ["docs/_build", ".*"]

# Anchors of headings are those of GitHub.
myst_heading_anchors = 4

# The docstrings name the types of parameters, as words; annotations would say them again, in the
# long form of what NumPy's aliases stand for.
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "member-order": "bysource"}
numpydoc_show_class_members = False  # autodoc lists them

html_theme = "furo"
html_title = f"spdnn {release}"
html_copy_source = False
