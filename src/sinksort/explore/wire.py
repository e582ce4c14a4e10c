"""How what follows a touch gets to the page: all of it in one message, taken in at once, and painted once.

Bokeh sends one message for each property that changes, and two parts of a message for each column: for a plan of fifty
values more than a hundred, each of which wakes the browser. Here all columns are one array behind each other in one
property; the page cuts it up again, and says that it has it. Until then no other picture is made: a hand is faster than
a browser paints, and would soon be followed by a queue of pictures of where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.core.properties import Any as Anything
from bokeh.core.properties import Dict, Int, String
from bokeh.model import DataModel
from bokeh.models import ColumnDataSource, CustomJS, Range1d

from ..snapshot import Array

#: Columns by name: an entry a glyph, which is a number, a row of numbers (a shape), or something that is sent as it is.
Table = Mapping[str, Array | list[Any]]

#: ``numbers`` holds the columns whose names and shapes are in ``columns``; ``others`` holds those sent as they are.
_TAKE = """
const {count, numbers, columns, others, spans, facts, query} = frame.now
frame.seen = count
const tables = new Map()
const put = (source, name, column) => {
  if (!tables.has(source)) tables.set(source, {})
  tables.get(source)[name] = column
}
let at = 0
const cut = (length) => {
  const part = new Float64Array(numbers.buffer, numbers.byteOffset + 8 * at, length)
  at += length
  return part
}
for (const [source, name, length, each] of columns)
  put(source, name, each == 1 ? cut(length) : Array.from({length}, () => cut(each)))
for (const [source, name, column] of others) put(source, name, column)
for (const [source, data] of tables) sources[source].data = data
for (const [span, start, end] of spans) ranges[span].setv({start, end})
const shown = document.querySelectorAll("#facts b")
facts.forEach((text, k) => { if (shown[k].textContent != text) shown[k].textContent = text })
clearTimeout(window.sinksort_follow)  // browsers allow a few changes of the address a second
if (location.search != "?" + query)
  window.sinksort_follow = setTimeout(() => history.replaceState(null, "", "?" + query), 250)
"""


class Frame(DataModel):  # type: ignore[misc]  # which has no types
    """What the page shows now."""

    now = Dict(String, Anything)
    seen = Int(0)  # the last one that the page has taken in, counted from 0, with which it begins


_PATIENCE = 1.0  # seconds; a page that has not answered by then may have lost a message


class Wire:
    """The way from here to the page, for these sources and ranges by name."""

    def __init__(self, sources: Mapping[str, ColumnDataSource], ranges: Mapping[str, Range1d]) -> None:
        self.sources, self.ranges = sources, ranges
        self.tables: dict[str, Table] = {}  #: what each source holds on the page
        self._spans: dict[str, tuple[float, float]] = {}
        self._count, self._sent_at = -1, 0.0
        for model in (*sources.values(), *ranges.values()):
            model.syncable = False  # the page does not tell us what it has from us
        self.frame = Frame(name="frame")
        self.take = CustomJS(args={"frame": self.frame, "sources": dict(sources), "ranges": dict(ranges)}, code=_TAKE)
        self.frame.js_on_change("now", self.take)

    @property
    def busy(self) -> bool:
        """Whether a picture is on its way."""
        return bool(self.frame.seen < self._count) and time.monotonic() - self._sent_at < _PATIENCE

    def on_taken(self, call: Callable[[], None]) -> None:
        """``call`` whenever the page has taken in a picture."""
        self.frame.on_change("seen", lambda _name, _old, _new: call())

    def send(
        self, tables: Mapping[str, Table], spans: Mapping[str, tuple[float, float]], facts: Sequence[str], query: str
    ) -> None:
        """Show these columns between these ends, with these numbers above; what the page has already is not sent."""
        new = {name: table for name, table in tables.items() if not _same(table, self.tables.get(name))}
        moved = {name: ends for name, ends in spans.items() if ends != self._spans.get(name)}
        if not self.tables:  # nobody has opened the page: with this it begins
            for name, table in new.items():
                self.sources[name].data = {key: list(column) for key, column in table.items()}
            for name, (start, end) in moved.items():
                self.ranges[name].update(start=start, end=end)
        self.tables |= new
        self._spans |= moved
        self._count, self._sent_at = self._count + 1, time.monotonic()
        self.frame.now = {
            "count": self._count,
            **_packed(new),
            "spans": [[name, *ends] for name, ends in moved.items()],
            "facts": list(facts),
            "query": query,
        }


def _packed(tables: Mapping[str, Table]) -> dict[str, Any]:
    numbers: list[Array] = []
    columns: list[list[Any]] = []
    others: list[list[Any]] = []
    for source, table in tables.items():
        for name, column in table.items():
            if isinstance(column, np.ndarray):
                numbers.append(column.ravel())
                columns.append([source, name, len(column), 1 if column.ndim == 1 else column.shape[1]])
            else:
                others.append([source, name, column])
    joined = np.concatenate(numbers) if numbers else np.empty(0)
    return {"numbers": joined.astype(np.float64, copy=False), "columns": columns, "others": others}


def _same(table: Table, other: Table | None) -> bool:
    return (
        other is not None
        and table.keys() == other.keys()
        and all(np.array_equal(np.asarray(column), np.asarray(other[name])) for name, column in table.items())
    )
