"""Who imports whom, read from the sources: the diagram in DESIGN.md, which a test compares with this.

python docs/scripts/rooms.py          prints it
python docs/scripts/rooms.py --write  puts it into DESIGN.md
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import sources  # noqa: E402

DESIGN = ROOT / "DESIGN.md"
_BLOCK = re.compile(r"(?s)(<!-- rooms -->\n```text\n).*?(\n```)")


def room(module: str) -> str:
    """The folder of a module, two folders deep in kernels/: a family is a room of its own."""
    parts = module.split(".")
    if parts[0] != "kernels":
        return parts[0]
    return "/".join(parts[:3]) if len(parts) > 3 else "kernels"


def imports() -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in sources.modules():
        if module:
            found[room(module)] |= {room(other) for other in sources.imports(module) if other}
    return {name: others - {name} for name, others in found.items()}


def order(found: dict[str, set[str]]) -> list[str]:
    """The rooms as they stand in ``LAYERS``; families after the front of kernels/."""
    rooms = [name for names in sources.LAYERS for name in names.split()]
    return sorted(found, key=lambda name: (rooms.index(name.split("/")[0]), name))


def diagram() -> str:
    """A line for each room: its name, and the rooms that it imports."""
    found = imports()
    width = max(map(len, found))
    return "\n".join(f"{name:{width}}  {', '.join(sorted(found[name])) or '-'}" for name in order(found))


def in_design() -> str:
    match = _BLOCK.search(DESIGN.read_text(encoding="utf-8"))
    return match[0].split("```text\n")[1].removesuffix("\n```") if match else ""


if __name__ == "__main__":
    if "--write" in sys.argv:
        text = DESIGN.read_text(encoding="utf-8")
        DESIGN.write_text(_BLOCK.sub(lambda match: match[1] + diagram() + match[2], text), encoding="utf-8")
    else:
        print(diagram())
