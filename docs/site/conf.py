"""Sphinx's settings; ``make docs`` builds the site."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gtrace.version import __version__

project = "gtrace"
author = "gtrace contributors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "extension"]

html_theme = "furo"
html_title = f"gtrace {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
pygments_style, pygments_dark_style = "tango", "github-dark"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# indented blocks are commands
highlight_language = "text"

# the style of the docstrings: Google's headings, and backticks that mean code
default_role = "code"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [
    ("Raises (when called)", "raises"), ("Raises (when run)", "raises"), ("Raises (the function)", "raises"),
    ("Raises (update)", "raises"), ("Every update takes these keywords", "params_style"),
]  # fmt: skip
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
