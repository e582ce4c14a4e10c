"""What happens when somebody touches the page: a new state, and then all that follows from it.

A touch changes the state at once and asks for a drawing, which is made when the page has taken in the last one; it
serves all touches that came before it, so that a fast hand is never followed by a queue.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from bokeh.document import Document
from bokeh.events import Pan, PanEnd, PanStart, Tap
from bokeh.models import CustomJS

from .page import LOST, OWN, TEMPLATE, Page
from .picture import SQUASHED, Axis, axis_for, solve
from .presets import PRESETS
from .state import State, StateError, from_query, numbers, resized, weights, with_targets, with_value, with_values

_NEAR = 0.035  # of the width of the plot: who touches within takes hold
_GONE = "The playground has been stopped. Start it again with <code>sinksort explore</code>, and this page goes on."


class Playground:
    """One open page: its state, and what changes it."""

    def __init__(self, document: Document, query: dict[str, str]) -> None:
        self.document, self.page = document, Page()
        self.state, said = from_query(query)
        self.axis: Axis = axis_for(self.state)
        self._held: int | None = None  # the value that is being dragged
        self._stale = False  # whether the state has changed since the last drawing
        self._asked = False  # whether the next drawing is about to be made
        self._showing = False  # whether widgets change because of us
        self._listen()
        for root in self.page.roots:
            document.add_root(root)
        document.template = TEMPLATE
        document.title = "sinksort playground"
        document.config.update(reconnect_session=False, notify_connection_status=False)  # the page sees to that
        document.js_on_event("document_ready", self.page.wire.take)
        document.js_on_event("connection_lost", CustomJS(args={"message": self.page.message, "text": _GONE}, code=LOST))
        self.draw()
        self.page.say("<br>".join(html.escape(line) for line in said))

    # ---- changes

    def change(self, make: Callable[[State], State], keep_axis: bool = False) -> None:
        """The state becomes ``make(state)``, or, if that cannot be, a message says why and everything stays."""
        try:
            self.state = make(self.state)
        except StateError as error:
            self.page.say(f"{html.escape(str(error))} The last good state is shown.")
            return
        if not keep_axis:
            self.axis = axis_for(self.state)
        self.page.say("")
        self._ask()

    def _ask(self) -> None:
        self._stale = True
        self._draw_soon()

    def _draw_soon(self) -> None:
        if self._stale and not self._asked and not self.page.wire.busy:
            self._asked = True
            self.document.add_next_tick_callback(self.draw)

    def draw(self) -> None:
        """Everything follows the state."""
        self._asked = self._stale = False
        try:
            picture = solve(self.state)
        except StateError as error:
            self.page.say(html.escape(str(error)))
            return
        self.page.draw(picture, self.axis)  # first, as it is what is waited for
        self._showing = True
        try:
            self.page.show(self.state)
        finally:
            self._showing = False

    # ---- touches

    def _listen(self) -> None:
        page, flow = self.page, self.page.plots.flow
        self._on(page.preset, lambda state, name: state if name == OWN else PRESETS[name])
        self._on(page.eps, lambda state, power: replace(state, eps=10.0**power))
        self._on(page.x, lambda state, text: with_values(state, numbers(text, "values x")))
        self._on(page.n, lambda state, n: resized(state, _whole(n, "values x")))
        self._on(page.weights, lambda state, text: replace(state, weights=weights(text, "weights a")))
        self._on(page.m, lambda state, m: with_targets(state, _whole(m, "targets m")))
        self._on(page.target_weights, _with_target_weights)
        self._on(page.cost, lambda state, cost: replace(state, cost=cost))
        self._on(page.squash, lambda state, squash: replace(state, squash=squash))
        self._on(page.gradient, _reading)
        flow.on_event(PanStart, self._take)
        flow.on_event(Pan, self._move)
        flow.on_event(PanEnd, self._let_go)
        flow.on_event(Tap, self._choose)
        flow.on_change("inner_width", self._resize)
        page.wire.on_taken(self._draw_soon)

    def _on(self, widget: object, make: Callable[..., State]) -> None:
        def changed(_name: str, _old: object, new: object) -> None:
            if not self._showing:
                self.change(lambda state: make(state, new))

        widget.on_change("value", changed)  # type: ignore[attr-defined]

    def _resize(self, _name: str, _old: object, width: float) -> None:
        self.page.plots.width = width  # arrows have widths in pixels
        self._ask()

    def _take(self, event: PanStart) -> None:
        self._held = self._value_at(event)

    def _move(self, event: Pan) -> None:
        held, place = self._held, event.x
        if held is None or place is None or held >= self.state.n:
            return
        self.change(lambda state: with_value(state, held, self.axis.value(place)), keep_axis=True)

    def _let_go(self, _event: PanEnd) -> None:
        self._held = None

    def _choose(self, event: Tap) -> None:
        """Tapping a value or a target shows its gradient."""
        value = self._value_at(event)
        if value is not None:
            self.change(lambda state: replace(state, reads="rank", index=value), keep_axis=True)
        elif event.y is not None and event.x is not None and event.y > 0.93:
            at = [abs(place - event.x) for place in self.page.wire.tables["targets"]["place"]]
            target = at.index(min(at))
            self.change(lambda state: replace(state, reads="sorted", index=target), keep_axis=True)

    def _value_at(self, event: PanStart | Tap) -> int | None:
        """The value whose handle is nearest to a touch, if it is near."""
        if event.x is None or event.y is None or not -0.15 <= event.y <= 0.8 * SQUASHED:
            return None
        away = [abs(place - event.x) for place in self.axis.place(np.array(self.state.x))]
        nearest = away.index(min(away))
        return nearest if away[nearest] <= _NEAR * (self.axis.right - self.axis.left) else None


def _whole(count: object, name: str) -> int:
    """What a spinner says: None when its text is no number."""
    if not isinstance(count, (int, float)) or count != int(count):
        raise StateError(f"{name}: expected a whole number.")
    return int(count)


def _with_target_weights(state: State, text: str) -> State:
    """As many targets as weights: who writes three means three targets."""
    b = weights(text, "target weights b")
    if b is not None and len(b) != state.m:
        state = with_targets(replace(state, target_weights=None), len(b))
    return replace(state, target_weights=b)


def _reading(state: State, chosen: str) -> State:
    reads, _, count = chosen.partition("-")
    return replace(state, reads=reads, index=int(count) - 1)
