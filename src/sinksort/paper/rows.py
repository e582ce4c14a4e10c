"""Which runs belong in one row of a table, the command that makes them, and the code that made them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from .experiments import EXPERIMENTS
from .results import Unit, groups

#: Settings that say which part of the work is done, or that change no number.
_PARTS = ("runs", "sizes", "compare", "networks", "losses", "tables", "levels", "kinds", "solvers", "measure_every",
          "compiled")  # fmt: skip
#: Settings that only some methods read, and these methods.
_OF_METHODS: dict[str, tuple[str, ...]] = {
    "raw_eps": ("transport-raw", "top1-raw", "top5-raw"),
    "temperature": ("cross-entropy-tempered",),
    "svm_temperature": ("top1-svm", "top5-svm"),
    "tau": ("neuralsort", "neuralsort-stochastic"),
    "noise": ("neuralsort-stochastic",),
    "samples": ("neuralsort-stochastic",),
    "sigma": ("softrank",),
    "pairwise_tau": ("pairwise",),
}

Settings = tuple[tuple[str, Any], ...]


def settings(unit: Unit) -> Settings:
    """All settings that a table of runs shares, by name; of runs from before a setting was there, its default."""
    knobs = _knobs(unit)
    return tuple((name, _hashable(knobs[name])) for name in knobs if name not in (*_PARTS, *_OF_METHODS))


def own_settings(unit: Unit) -> Settings:
    """The settings that the method of a run has for itself."""
    knobs = _knobs(unit)
    own = [name for name in knobs if unit["method"] in _OF_METHODS.get(name, ())]
    return tuple((name, _hashable(knobs[name])) for name in own)


def unusual_own(unit: Unit) -> list[str]:
    """The settings that the method of a run has for itself and that are not the defaults, in words."""
    fields = {f.name: f for f in dataclasses.fields(EXPERIMENTS[unit["experiment"]].knobs)}
    return [f"{name} = {_words(value)}" for name, value in own_settings(unit) if fields[name].default != value]


def tables_of(units: Iterable[Unit]) -> dict[Settings, list[Unit]]:
    """Runs that may stand in one table, in the order in which they come."""
    return groups(units, settings)


def command(units: Sequence[Unit]) -> list[str]:
    """The command lines that make these runs, and no others."""
    wanted: dict[tuple[Any, ...], list[tuple[str, Settings]]] = {}
    for (method, own), runs in groups(units, lambda u: (u["method"], own_settings(u))).items():
        counted = [(case, len(of)) for case, of in groups(runs, lambda u: u["case"]).items()]
        for count, some in groups(counted, lambda pair: pair[1]).items():
            cases = tuple(sorted(case for case, _ in some))
            wanted.setdefault((count, cases), []).append((method, own))
    lines = []
    for (count, cases), methods in wanted.items():
        # A command has one value for each setting: a method with two values of its own needs two commands.
        rounds: list[dict[str, Settings]] = []
        for method, own in methods:
            free = next((r for r in rounds if _agree(own, *r.values()) and method not in r), None)
            if free is None:
                rounds.append({method: own})
            else:
                free[method] = own
        for values in rounds:
            of = [u for u in units if u["case"] in cases and values.get(u["method"]) == own_settings(u)]
            lines.append(_one_command(of, count))
    return lines


def _agree(own: Settings, *others: Settings) -> bool:
    mine = dict(own)
    return all(mine.get(name, value) == value for other in others for name, value in other)


def _one_command(units: Sequence[Unit], runs: int) -> str:
    name = units[0]["experiment"]
    fields: dict[str, Any] = {f.name: f for f in dataclasses.fields(EXPERIMENTS[name].knobs)}
    chosen: dict[str, Any] = {**dict(settings(units[0])), "runs": runs}
    for unit in units:
        chosen.update(own_settings(unit))
    every = {_knobs(u)["measure_every"] for u in units if "measure_every" in fields}
    if len(every) == 1:
        chosen["measure_every"] = every.pop()
    for part in ("sizes", "compare", "networks", "losses", "tables", "levels", "kinds", "solvers"):
        if part in fields:
            chosen[part] = _part(part, units, tuple(fields[part].default))
    given = {key: chosen.get(key, field.default) for key, field in fields.items()}
    options = [
        _option(key, value) for key, value in given.items() if _hashable(value) != _hashable(fields[key].default)
    ]
    return " ".join([f"sinksort reproduce {name}", *options])


def _part(part: str, units: Sequence[Unit], order: Sequence[Any]) -> tuple[Any, ...]:
    """Which of the cases or methods there are, in the order of the defaults."""
    cases, methods = {u["case"] for u in units}, {u["method"] for u in units}
    found: set[Any]
    if part in ("compare", "losses", "solvers"):
        found = methods
    elif part == "sizes":
        found = {int(case[1:]) for case in cases}
    elif part == "tables":
        found = {case.rpartition("-")[0] for case in cases}
    elif part == "levels":
        found = {float(case.rpartition("-")[2]) for case in cases}
    else:
        found = cases
    return tuple(sorted(found, key=lambda each: (order.index(each) if each in order else len(order), str(each))))


def _option(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{flag}"
    if isinstance(value, (tuple, list)):
        return f"--{flag} {','.join(_word(each) for each in value)}"
    return f"--{flag} {_word(value)}"


def _words(value: Any) -> str:
    return " and ".join(map(_word, value)) if isinstance(value, tuple) else _word(value)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def unusual(unit: Unit, *told: str) -> str:
    """Which settings of a table are not the defaults, in words, but for those that are ``told`` elsewhere."""
    fields = {f.name: f for f in dataclasses.fields(EXPERIMENTS[unit["experiment"]].knobs)}
    rest = [(name, value) for name, value in settings(unit) if name not in told]
    words = [f"{name} = {_words(v)}" for name, v in rest if _hashable(fields[name].default) != v]
    return "".join(f"; {word}" for word in words)


# ---- by which code


def code_of(unit: Unit) -> str:
    """What is known of the code that made a run: the digest of its files, or else its version and its settings."""
    known = unit.get("code")
    if known:
        return f"{known['commit']}, files {known['digest']}"
    return f"not recorded, sinksort {unit['machine']['sinksort']}, settings {sorted(unit['knobs'])}"


def mixed_code(rows: dict[str, list[Unit]]) -> list[str]:
    """A warning that names the rows whose runs are from different code, and another for runs that do not say theirs."""
    said = []
    mixed = [name for name, runs in rows.items() if len({code_of(unit) for unit in runs}) > 1]
    if mixed:
        said.append(f"**Runs of different code are joined in these rows**: {'; '.join(mixed)}.")
    silent = sum("code" not in unit for runs in rows.values() for unit in runs)
    if silent:
        every = sum(map(len, rows.values()))
        which = "These runs are" if silent == every else f"{silent} of these {every} runs are"
        said.append(f"{which} from before results recorded the commit of their code.")
    commits = sorted({u["code"]["commit"] for runs in rows.values() for u in runs if "code" in u})
    if commits:
        said.append(f"Commit: {', '.join(commits)}.")
    return said


# ---- superseded


def superseded(tables: dict[Settings, list[Unit]]) -> set[Settings]:
    """Tables all of whose rows stand in another that has trained longer, with at least as many runs in each row."""

    def counts(units: Sequence[Unit]) -> dict[tuple[str, str], int]:
        return {key: len(runs) for key, runs in groups(units, lambda u: (u["case"], u["method"])).items()}

    def below(one: Settings, other: Settings) -> bool:
        longer = dict(other).get("epochs", 0) > dict(one).get("epochs", 0)
        mine, theirs = counts(tables[one]), counts(tables[other])
        return longer and all(theirs.get(key, 0) >= count for key, count in mine.items())

    return {one for one in tables if any(below(one, other) for other in tables)}


def _knobs(unit: Unit) -> dict[str, Any]:
    fields = dataclasses.fields(EXPERIMENTS[unit["experiment"]].knobs)
    return {f.name: unit["knobs"].get(f.name, f.default) for f in fields}


def _hashable(value: Any) -> Any:
    return json.loads(json.dumps(value)) if not isinstance(value, (list, tuple)) else tuple(value)
