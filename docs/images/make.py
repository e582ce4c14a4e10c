"""Draw the pictures of the README: ``python docs/images/make.py``."""

from pathlib import Path

from sinksort.paper import figure1
from sinksort.paper.style import save

if __name__ == "__main__":
    for path in save(figure1.draw(), Path(__file__).parent, "transport", formats=("png",), dpi=120):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
