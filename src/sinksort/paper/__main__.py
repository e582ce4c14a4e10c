"""``python -m sinksort.paper``: the command ``sinksort`` without its being installed."""

from .cli import main

main()
