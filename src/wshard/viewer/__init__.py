"""See episodes in a browser: the page, the server behind `wshard view`, and the widget for notebooks.

    from wshard.viewer import to_html

    to_html(episode, "ep.html")  # one file, with the episode inside

The page itself is `viewer/` in the repository; `make viewer` builds it into this package. It reads files with the
TypeScript library, so that nothing here parses them.
"""

from wshard.viewer._files import LARGEST_RANGE, MOST_FILES, ViewedFile, ViewedFiles
from wshard.viewer._page import LARGEST_EMBEDDED, export_page, to_html
from wshard.viewer._server import LOOPBACK, ViewerServer
from wshard.viewer._widget import LARGEST_IN_WIDGET, widget

__all__ = [
    "LARGEST_EMBEDDED",
    "LARGEST_IN_WIDGET",
    "LARGEST_RANGE",
    "LOOPBACK",
    "MOST_FILES",
    "ViewedFile",
    "ViewedFiles",
    "ViewerServer",
    "export_page",
    "to_html",
    "widget",
]
