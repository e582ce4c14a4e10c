"""The command ``sinksort``, also as ``python -m sinksort``. A plain install has its help and its version.

``sinksort compile`` needs nothing more either. The other commands are in ``sinksort.paper``, which needs packages of
the extra of that name.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from . import __version__, compile  # noqa: A004 - as torch.compile
from .kernels.ahead import OPERATORS

HELP = """Usage: sinksort COMMAND [OPTIONS]

Differentiable ranks and sorting by optimal transport.

  compile     compile kernels ahead of the first call, and say where they are kept

  list        what of the paper can be reproduced, and from which data
  data        list, place or download the data sets
  reproduce   reproduce a figure or a table of the paper
  report      collect finished runs into a report
  demo        the paper in small, in minutes
  explore     a page to play with, on this machine only

  --version   print the version
  --help      print this text

All but compile need packages that a plain install does not bring. Install them with:
  pip install 'sinksort[explore,sklearn]'
"""


def main() -> None:
    """Run the command that the arguments name."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"sinksort {__version__}")
        return
    if words and words[0] == "compile":
        raise SystemExit(compile_kernels(words[1:]))
    try:
        from .paper import cli
    except ModuleNotFoundError as error:
        if not words or words[0] in ("--help", "-h", "help"):
            print(HELP, end="")
            return
        print(f"sinksort {words[0]}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    cli.main()


def compile_kernels(words: list[str]) -> int:
    """``sinksort compile``: returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="sinksort compile", description="Compile kernels ahead of the first call, and keep them on disk."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="for rows of any length")
    what.add_argument("--like", nargs="+", metavar="128x100", type=_shape, help="for x of these shapes")
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=OPERATORS, metavar="NAME")
    parser.add_argument("--dtype", default="float32", help="of x (default: float32)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--eps", type=float, help="softness, where it is not the default")
    parser.add_argument("--processes", type=int, help="how many compile at once")
    given = parser.parse_args(words)
    try:
        made = compile(
            None if given.all else given.like,
            operators=given.operators,
            dtype=given.dtype,
            device=given.device,
            options={} if given.eps is None else {"eps": given.eps},
            processes=given.processes,
            progress=_show,
        )
    except (ValueError, RuntimeError) as error:
        print(f"sinksort compile: {error}", file=sys.stderr)
        return 1
    print(f"{made.files} compiled kernels, {made.bytes / 1e6:.1f} MB, are kept in:")
    for folder in made.folders:
        print(f"  {folder}")
    return 0


def _shape(word: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in word.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a shape such as 128x100, got {word!r}") from None


def _show(done: int, total: int, call: dict[str, Any]) -> None:
    """A line for each call; in a terminal, a bar before it."""
    shape = "x".join(map(str, call["shape"]))
    line = f"[{done}/{total}] {call['operator']} {shape} {call['dtype']}: {call['seconds']:.1f} s"
    if sys.stdout.isatty():
        full = round(20 * done / total)
        print(f"\r\x1b[K{'#' * full}{'.' * (20 - full)} {line}", end="\n" if done == total else "", flush=True)
    else:
        print(line, flush=True)


if __name__ == "__main__":
    main()
