"""How Sphinx makes the website from the sources that `python -m course.tools.site` wrote beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "How large models are trained"
author = "the authors of the course"
copyright = "text and figures CC-BY-4.0, code BSD 3-Clause"
language = "en"

extensions = ["myst_nb", "course_site"]
exclude_patterns = ["static"]
nb_execution_mode = "off"  # the outputs are those that are committed
nb_merge_streams = True
nb_render_markdown_format = "myst"  # a table that a cell shows is a table
nb_render_error_lexer = "text"  # hang reports are no tracebacks of Python
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Annotations are shown, not linked: two modules may have a class of one name.
suppress_warnings = ["ref.python"]
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"
myst_heading_slug_func = "course_site.slug"

smartquotes = False  # `--timeout` is no dash

html_theme = "pydata_sphinx_theme"
html_title = "How large models are trained"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["print_open.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "navigation_depth": 1,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "back_to_top_button": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"exercises": [], "study": [], "docs/glossary": []}
