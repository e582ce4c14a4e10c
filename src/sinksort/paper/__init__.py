"""The paper's figures, drawn with the library: ``python -m sinksort.paper demo``.

Reproductions import the library, never the reverse; what they need on top of it is the extra ``sinksort[paper]``.
"""

from importlib.util import find_spec

for _needed in ("matplotlib", "rich"):
    if find_spec(_needed) is None:
        raise ModuleNotFoundError(
            f"sinksort.paper draws with matplotlib and prints with rich, and {_needed} is not installed; "
            "run: pip install 'sinksort[paper]'"
        )
