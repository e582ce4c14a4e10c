"""The command ``sinksort``, also as ``python -m sinksort``. A plain install has its help and its version.

Everything else is in ``sinksort.paper``, which needs packages of the extra of that name.
"""

from __future__ import annotations

import sys

from . import __version__

HELP = """Usage: sinksort COMMAND [OPTIONS]

Differentiable ranks and sorting by optimal transport.

  list        what of the paper can be reproduced, and from which data
  data        list, place or download the data sets
  reproduce   reproduce a figure or a table of the paper
  report      collect finished runs into a report
  demo        the paper in small, in minutes
  explore     a page to play with, on this machine only

  --version   print the version
  --help      print this text

These commands need packages that a plain install does not bring. Install them with:
  pip install 'sinksort[explore,sklearn]'
"""


def main() -> None:
    """Run the command that the arguments name."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"sinksort {__version__}")
        return
    try:
        from .paper import cli
    except ModuleNotFoundError as error:
        if not words or words[0] in ("--help", "-h", "help"):
            print(HELP, end="")
            return
        print(f"sinksort {words[0]}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    cli.main()


if __name__ == "__main__":
    main()
