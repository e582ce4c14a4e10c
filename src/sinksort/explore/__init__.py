"""The playground: a local web page where a plan follows what is dragged, slid and typed; ``sinksort explore``.

The page is drawn by Bokeh, and every number on it comes from the library in the process behind it. What it needs is the
extra ``sinksort[explore]``.
"""

from importlib.util import find_spec

for _needed in ("bokeh", "matplotlib", "rich", "typer"):
    if find_spec(_needed) is None:
        raise ModuleNotFoundError(
            f"sinksort.explore needs bokeh and what sinksort.paper needs, and {_needed} is not installed; "
            "run: pip install 'sinksort[explore]'"
        )
