"""``python -m sinksort.paper``: the command ``sinksort`` without its being installed."""

from .cli import main

if __name__ == "__main__":
    main()
