"""The six regression tables of the paper, with the preprocessing of Romano, Patterson and Candès (2019).

Features and response are taken from the files as they do, including two accidents of theirs that change the numbers:
of ``star`` the pupil's number is a feature and ``lunchk`` is not; and the first row of a facebook variant is taken for
a header. A table is then split at random, its features are standardised and its response is scaled, all by the training
part alone.
"""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Words of the STAR file and the numbers that stand for them. Some words mean different things in different columns.
_ETHNICITY = ("cauc", "afam", "asian", "hispanic", "amindian", "other")
_CODES: dict[str, tuple[str, ...]] = {
    "gender": ("female", "male"),
    "ethnicity": _ETHNICITY,
    "star": ("regular", "small", "regular+aide"),
    "lunch": ("free", "non-free"),
    "school": ("inner-city", "suburban", "rural", "urban"),
    "degreek": ("bachelor", "master", "specialist", "master+"),
    "degree": ("bachelor", "master", "specialist", "phd"),
    "ladderk": ("level1", "level2", "level3", "apprentice", "probation", "pending", "notladder"),
    "ladder": ("level1", "level2", "level3", "apprentice", "probation", "noladder", "notladder"),
    "tethnicity": _ETHNICITY,
}


@dataclass(frozen=True)
class Split:
    """A table cut in two and scaled by its training part."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def read_table(name: str, folder: Path) -> tuple[Array, Array]:
    """(features (N, d), response (N,)) of one of ``TABLES``, from the files in ``folder``."""
    if name not in TABLES:
        raise ValueError(f"table must be one of {', '.join(TABLES)}, got {name!r}.")
    x, y = TABLES[name](folder)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(f"{folder}: the table {name} has entries that are no numbers; check it with: sinksort data")
    return x, y


def split(x: Array, y: Array, seed: int, *, test_share: float = 0.2, response: str = "standard") -> Split:
    """A random split. Features are standardised; ``response`` says how y is scaled.

    ``"standard"``: mean 0 and variance 1, which is the scale of the paper's table. ``"mean-abs"``: divided by its mean
    absolute value, which is that of Romano et al.
    """
    order = np.random.default_rng(seed).permutation(len(x))
    held_out = round(test_share * len(x))
    test, train = order[:held_out], order[held_out:]
    mean, deviation = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(deviation > 0, deviation, 1.0)
    if response == "standard":
        y = (y - y[train].mean()) / y[train].std()
    elif response == "mean-abs":
        y = y / np.abs(y[train]).mean()
    else:
        raise ValueError(f"response must be 'standard' or 'mean-abs', got {response!r}.")
    return Split(x[train], y[train], x[test], y[test])


# ---- one function a file


def _rows(path: Path, *, header: bool) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(
            f"{path} is damaged: its {len(rows)} rows are not all of the same length; check it with: sinksort data"
        )
    return ([name.strip() for name in rows[0]], rows[1:]) if header else ([], rows)


def _numbers(path: Path, rows: list[list[str]]) -> Array:
    try:
        return np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; check it with: sinksort data") from error


def _bio(folder: Path) -> tuple[Array, Array]:
    path = folder / "CASP.csv"
    table = _numbers(path, _rows(path, header=True)[1])
    return table[:, 1:], table[:, 0]


def _bike(folder: Path) -> tuple[Array, Array]:
    path = folder / "bike_train.csv"
    names, rows = _rows(path, header=True)
    when = [dt.datetime.fromisoformat(row[names.index("datetime")]) for row in rows]
    table = _numbers(path, [row[1:] for row in rows])
    column = {name: table[:, i] for i, name in enumerate(names[1:])}
    plain = [column[name] for name in ("holiday", "workingday", "temp", "atemp", "humidity", "windspeed")]
    one_hot = [(column[name] == v) * 1.0 for name in ("season", "weather") for v in np.unique(column[name])]
    clock = np.array([[t.hour, t.weekday(), t.month, t.year - 2011] for t in when], dtype=np.float64)
    return np.column_stack([*plain, *one_hot, clock]), column["count"]


def _facebook(folder: Path) -> tuple[Array, Array]:
    """The first training variant where it is at hand, else the test part of the same collection."""
    variant = folder / "Features_Variant_1.csv"
    path = variant if variant.exists() else folder / "Features_TestSet.csv"
    table = _numbers(path, _rows(path, header=path == variant)[1])
    return table[:, :53], table[:, 53]


def _star(folder: Path) -> tuple[Array, Array]:
    path = folder / "STAR.csv"
    names, rows = _rows(path, header=True)
    complete = [row for row in rows if "NA" not in row and "" not in row]
    coded = [[_code(path, name, entry) for name, entry in zip(names, row, strict=True)] for row in complete]
    table = _numbers(path, coded)
    grades = [i for i, name in enumerate(names) if name.startswith(("read", "math"))]
    left_out = {*grades, grades[-1] + 1}  # lunchk follows the grades
    kept = [i for i in range(len(names)) if i not in left_out]
    return table[:, kept], table[:, grades].sum(1)


def _code(path: Path, name: str, entry: str) -> str:
    words = _CODES.get(name) or _CODES.get(name.rstrip("k123"))
    if words is None:
        return entry
    if entry not in words:
        raise ValueError(f"{path}: {entry!r} is no known value of {name}; expected one of {', '.join(words)}.")
    return str(words.index(entry))


def _concrete(folder: Path) -> tuple[Array, Array]:
    path = folder / "Concrete_Data.csv"
    table = _numbers(path, _rows(path, header=True)[1])
    return table[:, :-1], table[:, -1]


def _community(folder: Path) -> tuple[Array, Array]:
    """Without the five columns that name the place; OtherPerCap filled with its mean, columns with gaps dropped."""
    path = folder / "communities.data"
    rows = _rows(path, header=False)[1]
    attributes = (folder / "communities_attributes.csv").read_text(encoding="utf-8").split()[1:]
    if len(attributes) != len(rows[0]):
        raise ValueError(f"{path} has {len(rows[0])} columns, but communities_attributes.csv names {len(attributes)}.")
    first = attributes.index("fold") + 1
    table = _numbers(path, [["nan" if entry == "?" else entry for entry in row[first:]] for row in rows])
    filled = attributes.index("OtherPerCap") - first
    table[:, filled] = np.where(np.isnan(table[:, filled]), np.nanmean(table[:, filled]), table[:, filled])
    table = table[:, ~np.isnan(table).any(0)]
    return table[:, :100], table[:, 100]


TABLES: dict[str, Callable[[Path], tuple[Array, Array]]] = {
    "bio": _bio,
    "bike": _bike,
    "facebook": _facebook,
    "star": _star,
    "concrete": _concrete,
    "community": _community,
}

#: What each table is read from. Of the two files of ``facebook`` the second is read if it is there.
FILES: dict[str, tuple[str, ...]] = {
    "bio": ("CASP.csv",),
    "bike": ("bike_train.csv",),
    "facebook": ("Features_TestSet.csv", "Features_Variant_1.csv"),
    "star": ("STAR.csv",),
    "concrete": ("Concrete_Data.csv",),
    "community": ("communities.data", "communities_attributes.csv"),
}
