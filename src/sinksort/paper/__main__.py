"""``python -m sinksort.paper demo [--out FOLDER]``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from .demo import run


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m sinksort.paper", description="The paper's figures, with sinksort.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="draw Figures 1, 2 and 3 as PNG and SVG, and print the numbers behind them")
    demo.add_argument("--out", type=Path, default=Path("out"), help="folder for the figures (default: out)")
    run(parser.parse_args(arguments).out, Console())


if __name__ == "__main__":
    main()
