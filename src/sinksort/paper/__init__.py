"""The paper's figures and tables, made with the library: the command ``sinksort``, or ``python -m sinksort.paper``.

Reproductions import the library, never the reverse; what they need on top of it is the extra ``sinksort[paper]``.
"""

from importlib.util import find_spec

for _needed in ("matplotlib", "rich", "typer"):
    if find_spec(_needed) is None:
        raise ModuleNotFoundError(
            f"sinksort.paper needs matplotlib, rich and typer, and {_needed} is not installed; "
            "run: pip install 'sinksort[paper]'"
        )
