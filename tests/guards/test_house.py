"""Who may import whom, and numbers that may only become smaller. Both are read from the source.

A number that has become smaller is written down here as such: the next change then cannot take it back unseen.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from pathlib import Path

import pytest

from tests import sources

#: What -> how much of it there is. Nothing here may grow.
RATCHETS = {
    "lines in kernels/": 22556,
    "files in kernels/": 108,
    "files flat in kernels/": 96,
    "files flat in the package": 29,
    "lines of the longest file in kernels/": 444,
    "functions in kernels/ with more than 16 parameters": 48,
    "parameters of the function with most": 38,
    "families": 22,
    "lines of the largest family": 1612,
}
_SLACK = 0.02  #: a number that is smaller by more than this part has to be written down

# ---- kernels: families use the engine, and never each other

#: Family -> its files in kernels/.
FAMILIES = {
    "cpu lanes": "numba_rows_lanes numba_rows_lanes_newton numba_rows_lanes_push numba_rows_short "
    "numba_rows_short_back",
    "cpu many": "numba_rows_many numba_rows_many_read numba_rows_many_pull numba_rows_many_carry",
    "cpu wide": "numba_rows_wide numba_rows_newton numba_rows_read numba_rows_grid numba_rows_laplacian "
    "numba_rows_work",
    "cpu whole": "numba_rows_whole",
    "cpu careful": "numba_rows_careful",
    "cpu logs": "numba_rows_logs numba_rows_links",
    "cpu two": "numba_rows_two",
    "cpu exact": "cpu.exact cpu.exact.autograd cpu.exact.costs cpu.exact.laplacian cpu.exact.lines cpu.exact.newton "
    "cpu.exact.nodes cpu.exact.read cpu.exact.solve cpu.exact.start cpu.exact.work",
    "cpu few": "numba_rows_few numba_rows_select",
    "cpu sort": "numba_sort numba_sort_solve numba_sort_panels numba_sort_small numba_sort_passes",
    "cpu late": "numba_late numba_sort_pull",
    "cpu long": "numba_long numba_long_blocks numba_long_values numba_long_solve numba_long_grid",
    "cpu long few": "numba_long_few",
    "gpu held": "triton_held triton_held_tiles triton_held_secant triton_held_newton triton_held_guess "
    "triton_held_frail",
    "gpu short": "triton_short",
    "gpu whole": "triton_whole",
    "gpu rows late": "triton_rows_late triton_rows_late_back triton_rows_late_nodes triton_rows_late_launch",
    "gpu grid": "triton_long_by_grid triton_long_spread triton_long_nodes triton_long_grid triton_long_plan "
    "triton_long_solve triton_long_solve_back",
    "gpu long late": "triton_long_late triton_long_late_nodes triton_long_late_passes triton_long_late_launch",
    "gpu two": "triton_long_few_two",
    "gpu several": "triton_long_few_several triton_long_few_shares",
    "gpu chunks": "triton_long_few_chunks",
}
#: What families are made of: it imports nothing but itself.
ENGINE = (
    "cache numba_cache numba_compile numba_parts numba_tasks numba_simd numba_simd_eights numba_maths numba_staircase "
    "numba_rows_sources triton_cache triton_launch triton_state triton_sums triton_parts triton_laplacian "
    "triton_long_maths triton_long_few triton_long_few_row triton_long_few_exchange triton_long_few_start "
    "triton_long_few_back"
)
#: What is asked and who answers. Families are imported by name when they are needed, so these import none.
FRONT = "kernels cpu asks choice reads carried posing posed padded ops tables reference"
#: The ways in to the families of a device: they may import all of kernels/.
ENTRIES = "numba_rows numba_carry triton_rows triton_long"

#: Imports that break the contract: file -> what it should not import. None may be added.
BROKEN: dict[str, str] = {
    "choose": "kernels.choice",
    "exact_plan": "kernels.choice",
    "kernels.cpu.exact.autograd": "costs cotangents gradients semidual",
    "kernels.cpu.exact.nodes": "rules",
    "kernels.numba_late": "kernels.asks kernels.numba_rows",
    "kernels.numba_long": "kernels.asks kernels.numba_long_few kernels.numba_rows kernels.numba_rows_wide rules",
    "kernels.numba_long_few": "kernels.numba_long_blocks kernels.numba_long_solve kernels.numba_long_values",
    "kernels.numba_rows_links": "kernels.numba_rows_laplacian kernels.numba_rows_work",
    "kernels.numba_rows_logs": (
        "kernels.numba_rows_laplacian kernels.numba_rows_newton kernels.numba_rows_wide kernels.numba_rows_work "
    ),
    "kernels.numba_rows_many_carry": "kernels.numba_rows_lanes",
    "kernels.numba_rows_many_pull": (
        "kernels.numba_rows_careful kernels.numba_rows_lanes kernels.numba_rows_read kernels.numba_rows_whole "
        "kernels.numba_rows_wide kernels.numba_rows_work "
    ),
    "kernels.numba_rows_many_read": "kernels.numba_rows_read",
    "kernels.numba_rows_select": "kernels.numba_rows_careful",
    "kernels.numba_rows_short_back": "kernels.numba_rows_careful",
    "kernels.numba_rows_two": "kernels.numba_rows_few",
    "kernels.numba_rows_whole": "kernels.numba_rows_wide kernels.numba_rows_work",
    "kernels.numba_rows_wide": "kernels.numba_rows_careful",
    "kernels.numba_rows_work": "kernels.numba_sort",
    "kernels.numba_sort_pull": "kernels.numba_sort_passes kernels.numba_sort_solve",
    "kernels.triton_long_few_back": "kernels.triton_long_late_passes",
    "kernels.triton_long_few_exchange": "kernels.triton_long_late_passes",
    "kernels.triton_long_late": "kernels.triton_long_grid kernels.triton_short",
    "kernels.triton_long_late_launch": "kernels.triton_long_by_grid",
    "kernels.triton_long_late_nodes": "modes rules",
    "kernels.triton_long_late_passes": "kernels.triton_long_grid",
    "kernels.triton_long_plan": "kernels.triton_held_newton kernels.triton_held_tiles",
    "kernels.triton_long_solve": "kernels.triton_held kernels.triton_held_newton kernels.triton_held_tiles",
    "kernels.triton_long_solve_back": "kernels.triton_held kernels.triton_held_newton kernels.triton_held_tiles",
    "kernels.triton_long_spread": "modes",
    "kernels.triton_rows_late": (
        "kernels.triton_held kernels.triton_held_newton kernels.triton_held_tiles kernels.triton_long_grid "
        "kernels.triton_long_late kernels.triton_long_late_nodes kernels.triton_long_late_passes "
        "kernels.triton_short "
    ),
    "kernels.triton_rows_late_back": (
        "kernels.triton_held kernels.triton_held_newton kernels.triton_held_tiles kernels.triton_long_grid "
        "kernels.triton_long_late kernels.triton_long_late_nodes kernels.triton_long_late_passes "
    ),
    "kernels.triton_rows_late_launch": (
        "kernels.triton_long_by_grid kernels.triton_long_late_launch kernels.triton_long_late_nodes "
    ),
    "kernels.triton_rows_late_nodes": (
        "kernels.triton_held_tiles kernels.triton_long_grid kernels.triton_long_late_nodes "
        "kernels.triton_long_late_passes "
    ),
    "kernels.triton_whole": "kernels.triton_short",
    "paper.cli": "explore.server",
    "plan": "show",
    "schedules": "nn",
}

# ---- the package: what stands above imports what stands below

LAYERS = (
    "_checks modes cotangents",
    "costs squash semidual",
    "solvers gradients",
    "problem plan kantorovich",
    (
        "rules grid places streamed banded banded_factor banded_plan smooth refine choose pooled elsewhere piecewise "
        "thresholds exact_plan"
    ),
    "kernels",
    "operators",
    "losses schedules relaxations distributed streaming",
    "nn sklearn",
    "snapshot",
    "show plot",
    "paper",
    "explore",
)
#: Whoever stands above operators asks them, not kernels.
ABOVE_OPERATORS = LAYERS.index("operators") + 1


def _room(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def _level(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if _room(module) in names.split())


def _of_kernels() -> dict[str, str]:
    """File in kernels/ -> the family, "engine", "front" or "entry" that it belongs to."""
    rooms = {file: family for family, files in FAMILIES.items() for file in files.split()}
    for room, files in (("engine", ENGINE), ("front", FRONT), ("entry", ENTRIES)):
        rooms |= dict.fromkeys(files.split(), room)
    return rooms


def _modules_of_kernels() -> list[str]:
    return [name for name in sources.modules() if _room(name) == "kernels"]


def _last(module: str) -> str:
    """The name of a module inside kernels/."""
    return module.removeprefix("kernels.")


def _forbidden_in_kernels(importer: str, imported: str) -> bool:
    rooms = _of_kernels()
    room = rooms[_last(importer)]
    if _room(imported) != "kernels":
        return room not in ("front", "entry")  # families and the engine need nothing of the package
    other = rooms[_last(imported)]
    if room == "entry":
        return False
    return other != room and not (room not in ("engine", "front") and other == "engine")


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
                or (kernels and _room(importer) != "kernels" and _level(importer) >= ABOVE_OPERATORS)
            ):
                found.add((importer, imported))
    return found


def test_every_module_has_a_room() -> None:
    known = {name for names in LAYERS for name in names.split()}
    rooms = {_room(name) for name in sources.modules() if name}
    assert rooms <= known, f"write {sorted(rooms - known)} into LAYERS"
    files = {_last(name) for name in _modules_of_kernels()}
    assert files <= set(_of_kernels()), f"write {sorted(files - set(_of_kernels()))} into FAMILIES, ENGINE or FRONT"
    assert set(_of_kernels()) <= files, f"take {sorted(set(_of_kernels()) - files)} away: these files are gone"


def test_imports_point_one_way() -> None:
    found, known = _broken(), {(importer, each) for importer, names in BROKEN.items() for each in names.split()}
    assert not found - known, f"these imports break the contract: {sorted(found - known)}"
    assert not known - found, f"these imports are mended, take them out of BROKEN: {sorted(known - found)}"


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
        if _of_kernels()[_last(name)] in FAMILIES:
            family[_of_kernels()[_last(name)]] += lines[name]
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
