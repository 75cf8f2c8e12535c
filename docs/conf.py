"""Sphinx builds these pages: `make docs`, then open site/index.html."""

from ragboost import __version__

project = "RAGBoost"
author = "The RAGBoost developers"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["Thumbs.db", ".DS_Store"]
nitpicky = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3  # `page.md#a-heading` links are checked

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"RAGBoost {release}"
html_copy_source = False
html_show_sourcelink = False
