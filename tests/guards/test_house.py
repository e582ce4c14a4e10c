"""Who may import whom, and numbers that may only become smaller. Both are read from the source.

A number that has become smaller is written down here as such: the next change then cannot take it back unseen.
"""

from __future__ import annotations

import functools
import importlib.util
from collections import defaultdict
from pathlib import Path

import pytest

from tests import sources
from tests.sources import LAYERS

#: What -> how much of it there is. Nothing here may grow.
RATCHETS = {
    "lines in kernels/": 28209,
    "files in kernels/": 144,
    "files flat in kernels/": 11,
    "files flat in the package": 5,
    "lines of the longest file in kernels/": 485,
    "functions in kernels/ with more than 16 parameters": 50,
    "parameters of the function with most": 38,
    "families": 9,
    "lines of the largest family": 3119,
}
_SLACK = 0.02  #: a number that is smaller by more than this part has to be written down

# ---- kernels: families use the engine, and never each other

#: A family is a folder of kernels/cpu or kernels/gpu. The engine of a device belongs to all its families.
DEVICES = ("cpu", "gpu")
ENGINE = "engine"
#: Files beside the families: they say which kernels answer a request, so they may import all of kernels/.
ENTRIES = "cpu.by_nodes cpu.payloads cpu.rows cpu.long cpu.rejected gpu.rows gpu.long"

#: Imports that break the contract: file -> what it should not import. None may be added.
BROKEN: dict[str, str] = {
    "core.plan": "show",
    "kernels.ahead": "kernels.cache",
    "kernels.cpu.exact.autograd": "core.costs core.cotangents core.gradients core.semidual",
    "kernels.cpu.exact.nodes": "linear.rules",
    "kernels.cpu.lanes.band_push": (
        "kernels.cpu.row.double_backward kernels.cpu.row.push kernels.cpu.row.read kernels.cpu.row.solve "
        "kernels.cpu.row.work"
    ),
    "kernels.cpu.lanes.band_read": "kernels.cpu.row.read",
    "kernels.cpu.lanes.band_others": (
        "kernels.cpu.row.all_targets kernels.cpu.row.double_backward kernels.cpu.row.solve kernels.cpu.row.work"
    ),
    "kernels.cpu.lanes.rows_backward": "kernels.cpu.row.double_backward",
    "kernels.cpu.row.work": "kernels.cpu.sort.rows",
    "kernels.cpu.thresholds.read": "kernels.cpu.row.double_backward",
    "kernels.gpu.exact.pieces_nodes": "core.modes linear.rules",
    "kernels.gpu.grid.spread": "core.modes",
    "linear.choose": "kernels.backends kernels.dispatch kernels.plan",
    "paper.cli": "explore.server",
    "schedules": "nn",
}

# ---- the package: a room imports rooms that stand before it in LAYERS

#: Whoever stands above operators asks them, not kernels.
ABOVE_OPERATORS = LAYERS.index("operators") + 1
#: Rooms above operators that have kernels of their own: these use the engine, as families do.
WITH_KERNELS = "relaxations"


def _room(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def _level(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if _room(module) in names.split())


def _of_kernels(module: str) -> str:
    """The family, "engine", "front" or "entry" that a module of kernels/ belongs to."""
    inside = module.removeprefix("kernels").removeprefix(".")
    device, _, rest = inside.partition(".")
    if inside == "cache":
        return ENGINE
    if device not in DEVICES or not rest:
        return "front"
    if inside in ENTRIES.split():
        return "entry"
    folder = rest.split(".", maxsplit=1)[0]
    return ENGINE if folder == ENGINE else f"{device}/{folder}"


def _modules_of_kernels() -> list[str]:
    return [name for name in sources.modules() if _room(name) == "kernels"]


def _forbidden_in_kernels(importer: str, imported: str) -> bool:
    room = _of_kernels(importer)
    if _room(imported) != "kernels":
        return room not in ("front", "entry")  # families and the engine need nothing of the package
    if room == "entry":
        return False
    other = _of_kernels(imported)
    return other != room and not (room not in (ENGINE, "front") and other == ENGINE)


def _forbidden_above(importer: str, imported: str) -> bool:
    uses_engine = _room(importer) in WITH_KERNELS.split() and _of_kernels(imported) == ENGINE
    return _level(importer) >= ABOVE_OPERATORS and not uses_engine


def _broken() -> set[tuple[str, str]]:
    found = set()
    for importer in sources.modules():
        if importer in ("", "__main__"):
            continue
        for imported in sources.imports(importer) - {""}:
            kernels = "kernels" in (_room(importer), _room(imported))
            if (
                (_room(importer) == "kernels" and _forbidden_in_kernels(importer, imported))
                or _level(imported) > _level(importer)
                or (kernels and _room(importer) != "kernels" and _forbidden_above(importer, imported))
            ):
                found.add((importer, imported))
    return found


def test_every_module_has_a_room() -> None:
    known = {name for names in LAYERS for name in names.split()}
    rooms = {_room(name) for name in sources.modules() if name}
    assert rooms == known, f"LAYERS names other rooms than there are: {sorted(rooms ^ known)}"


def test_imports_point_one_way() -> None:
    found, known = _broken(), {(importer, each) for importer, names in BROKEN.items() for each in names.split()}
    assert not found - known, f"these imports break the contract: {sorted(found - known)}"
    assert not known - found, f"these imports are mended, take them out of BROKEN: {sorted(known - found)}"


def test_the_diagram_in_design_is_drawn_from_the_imports() -> None:
    path = sources.PACKAGE.parents[1] / "docs/scripts/rooms.py"
    spec = importlib.util.spec_from_file_location("rooms", path)
    assert spec is not None
    assert spec.loader is not None
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    assert rooms.in_design() == rooms.diagram(), "run python docs/scripts/rooms.py --write"


def test_importing_the_package_needs_torch_and_numpy_only() -> None:
    import sys

    needed = {name for module in sources.imported_at_once("") for name in sources.required(module)}
    assert needed - set(sys.stdlib_module_names) <= {"torch", "numpy"}


@functools.cache
def _measured() -> dict[str, int]:
    files = {name: sources.modules()[name] for name in _modules_of_kernels()}
    lines = {name: sources.lines(path) for name, path in files.items()}
    family: dict[str, int] = defaultdict(int)
    for name in files:
        if "/" in _of_kernels(name):
            family[_of_kernels(name)] += lines[name]
    exempt = sources.triton_entry_points()
    counts = [
        sources.parameters(function)
        for path in files.values()
        for function in sources.functions(path)
        if f"{path.stem}.{function.name}" not in exempt
    ]
    return {
        "lines in kernels/": sum(lines.values()),
        "files in kernels/": len(files),
        "files flat in kernels/": _flat(sources.KERNELS),
        "files flat in the package": _flat(sources.PACKAGE),
        "lines of the longest file in kernels/": max(lines.values()),
        "functions in kernels/ with more than 16 parameters": sum(count > 16 for count in counts),
        "parameters of the function with most": max(counts),
        "families": len(family),
        "lines of the largest family": max(family.values()),
    }


def _flat(folder: Path) -> int:
    return len(list(folder.glob("*.py")))


@pytest.mark.parametrize("what", RATCHETS)
def test_nothing_grows(what: str) -> None:
    now, most = _measured()[what], RATCHETS[what]
    assert now <= most, f"{what}: {now}, at most {most}. Make it smaller elsewhere, or say in the commit why it grows."
    assert now >= (1 - _SLACK) * most, f"{what}: {now} instead of {most}. Write {now} into RATCHETS, so that it stays."
