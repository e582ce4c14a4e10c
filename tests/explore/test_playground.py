"""The playground without a browser: states and URLs, what is drawn, what a touch does, and who may connect."""

from __future__ import annotations

import asyncio
import http.client
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from dataclasses import replace
from urllib.parse import parse_qsl

import numpy as np
import pytest
import torch
from bokeh.client import pull_session
from bokeh.document import Document
from bokeh.events import Pan, PanEnd, PanStart, Tap
from hypothesis import given
from hypothesis import strategies as st
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect
from typer.testing import CliRunner

import sinksort
from sinksort.explore import picture, state
from sinksort.explore.picture import ALL_MASS, MOST_ARROWS, axis_for, solve
from sinksort.explore.playground import Playground
from sinksort.explore.plots import apart
from sinksort.explore.presets import PRESETS
from sinksort.explore.state import COSTS, DEFAULT, MOST, SQUASHES, State, StateError, from_query, to_query
from sinksort.paper import cli, figure1, figure3

REFERENCE = sinksort.Newton(compress=False)

# ---- states and URLs

values = st.floats(-1e6, 1e6).map(lambda v: float(f"{v:.6g}"))
weights = st.floats(0.01, 100).map(lambda v: float(f"{v:.6g}"))


@st.composite
def states(draw):
    x = tuple(draw(st.lists(values, min_size=1, max_size=8)))
    a = draw(st.none() | st.lists(weights, min_size=len(x), max_size=len(x)).map(tuple))
    m = draw(st.none() | st.integers(1, 9))
    many = len(x) if m is None else m
    b = draw(st.none() | st.lists(weights, min_size=many, max_size=many).map(tuple))
    reads = draw(st.sampled_from(["rank", "sorted"]))
    return State(
        x=x,
        weights=a,
        num_targets=m,
        target_weights=b,
        eps=float(f"{draw(st.floats(1e-4, 10)):.4g}"),
        cost=draw(st.sampled_from(list(COSTS))),
        squash=draw(st.sampled_from(list(SQUASHES))),
        reads=reads,
        index=draw(st.integers(0, (len(x) if reads == "rank" else many) - 1)),
    )


def as_query(text):
    return dict(parse_qsl(text))


@given(states())
def test_a_state_survives_its_url(asked):
    assert from_query(as_query(to_query(asked))) == (asked, [])


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_their_urls(name):
    assert from_query(as_query(to_query(PRESETS[name]))) == (PRESETS[name], [])


def test_presets_are_the_figures():
    one, three = PRESETS["Figure 1: sorting as transport"], PRESETS["Figure 3: a 30% quantile"]
    plan = sinksort.transport(figure1.X, target_weights=figure1.B, eps=figure1.EPS, squash=None)
    np.testing.assert_allclose(solve(one).row.P, plan.matrix(), atol=1e-12)
    assert solve(three).row.sorted[1] == pytest.approx(figure3.quantile().item(), abs=1e-9)


@pytest.mark.parametrize(
    ("query", "kept", "said"),
    [
        ({"x": "1,abc,3"}, {}, r"values x: 'abc' is not a number; write them as in 0.3, 1, 2.5"),
        ({"x": "1,nan"}, {}, r"values x: 'nan' is not a finite number"),
        ({"x": "1,-inf"}, {}, r"values x: '-inf' is not a finite number"),
        ({"x": "1e7"}, {}, r"values x: each must be a number between -1,000,000 and 1,000,000"),
        ({"x": ""}, {}, r"values x: expected at least one"),
        (
            {"x": ",".join(["1"] * 201)},
            {},
            r"values x: at most 200 can be told apart on a screen, got 201; the library",
        ),
        ({"x": ",".join(["1"] * 5000)}, {}, r"values x: at most 200 can be told apart on a screen, got 5,000"),
        ({"eps": "0"}, {}, r"eps: expected a number from 0.0001 to 10, got 0"),
        ({"eps": "soft"}, {}, r"eps: 'soft' is not a number"),
        ({"eps": ""}, {}, r"eps: expected a number from 0.0001 to 10, got nan"),
        ({"eps": "1,2"}, {}, r"eps: expected one number, got 2"),
        ({"m": "1e9"}, {}, r"targets m: expected a whole number, got '1e9'"),
        ({"m": "0"}, {}, r"targets m: expected at least one"),
        ({"m": "100000000000"}, {}, r"targets m: at most 200 can be told apart on a screen, got 100,000,000,000"),
        ({"a": "1,2"}, {}, r"weights a: expected 5 numbers, one for each of the values, got 2"),
        ({"a": "1,1,1,1,-1"}, {}, r"weights a: expected numbers from 0 to 1,000,000"),
        ({"b": "0,0,0,0,0"}, {}, r"target weights b: at least one must be larger than 0"),
        ({"cost": "7"}, {}, r"cost: expected one of 2, 1, 1.5, 3, huber, got '7'"),
        ({"squash": "relu"}, {}, r"squash: expected one of sigmoid, arctan, none, got 'relu'"),
        ({"gradient": "rank-9"}, {}, r"gradient: expected rank-1 to rank-5, got rank-9"),
        ({"gradient": "rank"}, {}, r"gradient: expected a whole number, got ''"),
        ({"gradient": "median-1"}, {}, r"gradient: expected one of rank, sorted, got 'median'"),
        ({"epsilon": "1"}, {}, r"'epsilon' is no part of a state; known are x, a, eps, m, b, cost, squash, gradient"),
        ({"x": "1,2,3", "eps": "?", "m": "2"}, {"x": (1.0, 2.0, 3.0), "num_targets": 2}, r"eps: '\?' is not a number"),
    ],
)
def test_bad_parts_of_a_url_are_told_and_the_rest_is_kept(query, kept, said):
    found, told = from_query(query)
    assert found == replace(DEFAULT, **kept)
    assert len(told) == 1
    assert re.match(said, told[0])


@given(
    st.dictionaries(st.sampled_from(["x", "a", "eps", "m", "b", "cost", "squash", "gradient"]), st.text(max_size=12))
)
def test_any_text_gives_a_state_that_can_be_drawn(query):
    found, _ = from_query(query)
    assert solve(found).row.P.shape == (found.n, found.m)


def test_more_values_keep_those_that_were_there():
    grown = state.resized(replace(DEFAULT, weights=(1.0, 2.0, 3.0, 4.0, 5.0)), 8)
    assert grown.x[:5] == DEFAULT.x
    assert grown.weights == (1, 2, 3, 4, 5, 3, 3, 3)
    assert grown.m == 8
    assert state.resized(grown, 5).x == DEFAULT.x


def test_targets_that_are_as_many_as_values_stay_so():
    three = state.with_targets(DEFAULT, 3)
    assert (state.resized(three, 7).m, state.resized(state.with_targets(three, 5), 7).m) == (3, 7)


def test_a_gradient_that_is_no_longer_there_becomes_the_last_one():
    assert state.resized(replace(DEFAULT, index=4), 2).index == 1
    assert state.with_targets(replace(DEFAULT, reads="sorted", index=4), 3).index == 2


# ---- what is drawn


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("squash", SQUASHES)
def test_numbers_are_those_of_the_operators(cost, squash):
    asked = State(x=(0.1, 0.8, 0.45, 0.5), weights=(1, 2, 1, 1), target_weights=(1, 2, 1), num_targets=3, cost=cost,
                  squash=squash, eps=0.03)  # fmt: skip
    x = torch.tensor(asked.x, dtype=torch.float64)
    options = {
        "weights": torch.tensor([1.0, 2.0, 1.0, 1.0], dtype=x.dtype),
        "target_weights": torch.tensor([1.0, 2.0, 1.0], dtype=x.dtype),
    }
    how = {"eps": 0.03, "cost": COSTS[cost][1], "squash": None if squash == "none" else squash, "solver": REFERENCE}
    row = solve(asked).row
    np.testing.assert_allclose(row.ranks, sinksort.soft_rank(x, **options, **how), atol=1e-9)
    np.testing.assert_allclose(row.sorted, sinksort.soft_sort(x, **options, **how), atol=1e-9)
    np.testing.assert_allclose(row.hard_ranks, sinksort.kantorovich_rank(x, **options), atol=1e-12)


@pytest.mark.parametrize(("reads", "index"), [("rank", 2), ("sorted", 1)])
def test_gradient_is_the_difference_quotient(reads, index):
    asked = State(x=(0.1, 0.8, 0.45, 0.5), eps=0.05, reads=reads, index=index)

    def read(x):
        row = solve(replace(asked, x=tuple(x))).row
        return (row.ranks if reads == "rank" else row.sorted)[index]

    h = 1e-5
    moved = [(np.array(asked.x) + h * e, np.array(asked.x) - h * e) for e in np.eye(4)]
    np.testing.assert_allclose(
        solve(asked).gradient, [(read(up) - read(down)) / (2 * h) for up, down in moved], atol=1e-6
    )


def test_hard_gradient_of_a_sorted_value_is_one_at_its_value():
    assert solve(replace(DEFAULT, reads="sorted", index=4)).hard_gradient.tolist() == pytest.approx([0, 0, 0, 1, 0])
    assert not solve(replace(DEFAULT, reads="rank", index=4)).hard_gradient.any()


@pytest.mark.parametrize(
    "asked",
    [
        State(x=(2.0,)),
        State(x=(3.0, 3.0, 3.0)),
        State(x=(1e6, -1e6, 0.0), squash="none", cost="3", eps=1e-4),
        State(x=(0.1, 0.2), weights=(0.0, 1.0), target_weights=(0.0, 1.0), reads="sorted", index=0),
        state.resized(DEFAULT, MOST),
    ],
    ids=["one", "equal", "huge", "weightless", "most"],
)
def test_edges_are_drawn_with_finite_numbers(asked):
    drawn, axis = solve(asked), axis_for(asked)
    columns = (picture.values(drawn, axis), picture.targets(drawn), picture.arrows(drawn, 500.0))
    assert all(np.isfinite(column).all() for table in columns for column in table.values())
    assert len(columns[2]["x0"]) <= MOST_ARROWS


def test_arrows_lie_side_by_side_on_their_bars():
    drawn = solve(replace(DEFAULT, eps=0.3))
    pixels = 800.0
    arrows, bars = picture.arrows(drawn, pixels), picture.targets(drawn)
    assert arrows["width"].sum() == pytest.approx(ALL_MASS * pixels, rel=1e-2)  # all mass but what cannot be seen
    for left, right in zip(bars["left"], bars["right"], strict=True):
        on = (left < arrows["x1"]) & (arrows["x1"] < right) & (arrows["width"] > 0.5)
        ends, half = arrows["x1"][on], arrows["width"][on] / pixels / 2
        order = ends.argsort()
        touching = (ends[order][1:] - half[order][1:]) - (ends[order][:-1] + half[order][:-1])
        assert (touching > -1e-9).all()
        assert ends.min() - half[ends.argmin()] >= left - 1e-9
        assert ends.max() + half[ends.argmax()] <= right + 1e-9


def test_values_that_are_not_squashed_stand_among_the_targets():
    drawn = solve(PRESETS["Figure 1: sorting as transport"])
    axis = axis_for(drawn.state)
    np.testing.assert_allclose(axis.place(drawn.row.x), drawn.squashed)
    assert axis.value(0.3) == 0.3
    assert axis.left < axis.value(-99) < 0
    bars = picture.targets(drawn)
    assert axis.left < bars["left"].min()
    assert bars["right"].max() < axis.right


def test_numbers_keep_apart_and_move_little():
    at = np.array([0.9, 0.1, 0.5, 0.52, 0.51])
    moved = apart(at, 0.1)
    np.testing.assert_allclose(moved, [0.9, 0.1, 0.41, 0.61, 0.51])
    np.testing.assert_allclose(np.sort(apart(np.zeros(4), 0.1)), [-0.15, -0.05, 0.05, 0.15])


# ---- touches


def turn(document):
    """What the server's loop does next."""
    for callback in list(document.session_callbacks):
        document.remove_next_tick_callback(callback)
        callback.callback()


def taken(document):
    """The page says that it has the last picture."""
    frame = document.get_model_by_name("frame")
    frame.seen = frame.now["count"]


def flush(document):
    turn(document)
    taken(document)


@pytest.fixture
def playground():
    return Playground(Document(), {})


def ranks(playground):
    return playground.page.wire.tables["values"]["rank"]


def test_the_slider_sets_eps(playground):
    playground.page.eps.value = -1.0
    flush(playground.document)
    x = torch.tensor(DEFAULT.x, dtype=torch.float64)
    np.testing.assert_allclose(ranks(playground), sinksort.soft_rank(x, eps=0.1, solver=REFERENCE), atol=1e-9)
    assert as_query(playground.page.wire.frame.now["query"])["eps"] == "0.1"


def test_a_slider_is_not_corrected_while_it_moves(playground):
    playground.page.eps.value = power = -1.9199999999999995  # 46 steps of 0.02; written back, it would undo later steps
    flush(playground.document)
    assert playground.page.eps.value == power
    playground.page.preset.value = "Figure 1: sorting as transport"
    flush(playground.document)
    assert playground.page.eps.value == pytest.approx(np.log10(figure1.EPS), abs=1e-4)


def test_many_touches_are_one_drawing(playground):
    for power in np.linspace(-2, -1, 30):
        playground.page.eps.value = float(power)
    assert len(playground.document.session_callbacks) == 1


@pytest.mark.parametrize(
    ("widget", "given", "changed"),
    [
        ("x", "3 1; 2", {"x": (3.0, 1.0, 2.0)}),
        ("n", 3, {"x": DEFAULT.x[:3]}),
        ("weights", "1,2,3,4,5", {"weights": (1.0, 2.0, 3.0, 4.0, 5.0)}),
        ("m", 3, {"num_targets": 3}),
        ("target_weights", "1, 2, 1", {"num_targets": 3, "target_weights": (1.0, 2.0, 1.0)}),
        ("cost", "1.5", {"cost": "1.5"}),
        ("squash", "arctan", {"squash": "arctan"}),
        ("gradient", "sorted-2", {"reads": "sorted", "index": 1}),
    ],
)
def test_each_widget_changes_its_part(playground, widget, given, changed):
    getattr(playground.page, widget).value = given
    flush(playground.document)
    assert playground.state == replace(DEFAULT, **changed)
    assert playground.page.preset.value == "Your own"
    assert not playground.page.message.visible


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_shown_by_every_widget(playground, name):
    playground.page.preset.value = name
    flush(playground.document)
    asked = PRESETS[name]
    assert playground.state == asked
    assert state.numbers(playground.page.x.value, "x") == asked.x
    assert (playground.page.n.value, playground.page.m.value) == (asked.n, asked.m)
    assert playground.page.preset.value == name


@pytest.mark.parametrize(
    ("widget", "given", "said"),
    [
        ("x", "1, two", "values x: &#x27;two&#x27; is not a number"),
        ("x", "", "values x: expected at least one"),
        ("x", "1, <script>alert(1)</script>", "&lt;script&gt;"),
        ("x", ",".join("1" * 201), "at most 200"),
        ("weights", "1, 2", "expected 5 numbers"),
        ("target_weights", "nan", "is not a finite number"),
        ("n", None, "values x: expected a whole number"),
        ("n", 100_000, "at most 200"),
        ("m", 2.5, "targets m: expected a whole number"),
    ],
)
def test_bad_input_is_told_and_nothing_else_changes(playground, widget, given, said):
    before = ranks(playground)
    getattr(playground.page, widget).value = given
    flush(playground.document)
    assert said in playground.page.message.text
    assert "<script>" not in playground.page.message.text
    assert playground.page.message.visible
    assert playground.state == DEFAULT
    np.testing.assert_array_equal(ranks(playground), before)
    playground.page.eps.value = -1.0
    assert not playground.page.message.visible


def test_dragging_moves_the_value_that_was_taken(playground):
    flow, axis = playground.page.plots.flow, playground.axis
    at = float(axis.place(np.array([-2.0]))[0])
    flow._trigger_event(PanStart(flow, x=at + 0.01, y=0.0))
    for place in (0.5, 0.7, 0.9):
        flow._trigger_event(Pan(flow, x=place, y=0.1))
    flush(playground.document)
    assert playground.state.x == (0.38, 4.0, 4.5, 6.0, -9.0)  # nine tenths of the way from -9 to 6
    assert playground.axis == axis  # nothing runs away under the hand
    flow._trigger_event(Pan(flow, x=50.0, y=0.1))
    assert playground.state.x[2] < axis.ends[1]  # held at the edge
    flow._trigger_event(PanEnd(flow, x=50.0, y=0.1))
    flow._trigger_event(Pan(flow, x=0.1, y=0.1))
    assert playground.state.x[2] > 6


def test_dragging_nothing_moves_nothing(playground):
    flow = playground.page.plots.flow
    flow._trigger_event(PanStart(flow, x=0.3, y=0.9))
    flow._trigger_event(Pan(flow, x=0.5, y=0.9))
    assert playground.state == DEFAULT


def test_tapping_chooses_whose_gradient_is_shown(playground):
    flow = playground.page.plots.flow
    flow._trigger_event(Tap(flow, x=1.0, y=0.0))
    assert (playground.state.reads, playground.state.index) == ("rank", 3)  # the largest is the fourth
    flow._trigger_event(Tap(flow, x=0.27, y=1.02))
    assert (playground.state.reads, playground.state.index) == ("sorted", 1)
    flush(playground.document)
    assert playground.page.plots.gradient.title.text == "Gradient of soft sorted at target 2"


def test_a_bad_url_is_told_at_the_top():
    opened = Playground(Document(), {"eps": "<b>", "x": "1,2,3"})
    assert opened.state.x == (1.0, 2.0, 3.0)
    assert "eps: &#x27;&lt;b&gt;&#x27; is not a number" in opened.page.message.text


def test_what_the_library_refuses_is_told(playground, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise ValueError("x must be something else")

    monkeypatch.setattr(picture, "transport", refuse)
    playground.page.eps.value = -1.0
    flush(playground.document)
    assert playground.page.message.text == "This cannot be solved: x must be something else"


def test_pages_are_independent():
    one, other = Playground(Document(), {}), Playground(Document(), {})
    one.page.eps.value = -1.0
    flush(one.document)
    assert other.state == DEFAULT


# ---- what is sent


def cut(sent, source, name):
    """One column of a message, as the page cuts it out."""
    at = 0
    for owner, column, count, each in sent["columns"]:
        if (owner, column) == (source, name):
            return sent["numbers"][at : at + count * each]
        at += count * each
    raise KeyError(name)


def patches(document):
    """The changes of a document that a session would send, from now on."""
    seen = []
    document.on_change(seen.append)
    return seen


def test_a_touch_is_one_message(playground):
    seen = patches(playground.document)
    playground.page.eps.value = -1.0
    turn(playground.document)
    told = [event for event in seen if getattr(event, "model", None) is not playground.page.eps]
    told = [event.attr for event in told if hasattr(event, "attr")]
    assert told == ["now", "value"]  # all numbers, and that the preset is no longer what is shown
    x = torch.tensor(DEFAULT.x, dtype=torch.float64)
    sent = playground.page.wire.frame.now
    np.testing.assert_allclose(cut(sent, "values", "rank"), sinksort.soft_rank(x, eps=0.1, solver=REFERENCE), atol=1e-9)
    np.testing.assert_allclose(
        cut(sent, "targets", "sorted"), sinksort.soft_sort(x, eps=0.1, solver=REFERENCE), atol=1e-9
    )


def test_a_hand_that_is_faster_than_the_page_leaves_no_queue(playground):
    page, frame = playground.page, playground.page.wire.frame
    for power in (-1.0, -0.9, -0.8, -0.7):
        page.eps.value = power
        turn(playground.document)
    assert (frame.now["count"], frame.now["query"].split("eps=")[1]) == (1, "0.1")  # the first, as the page was free
    taken(playground.document)
    turn(playground.document)
    assert (frame.now["count"], frame.now["query"].split("eps=")[1]) == (2, "0.1995")  # the last, and none between
    taken(playground.document)
    assert not playground.document.session_callbacks


def test_a_page_that_lost_a_picture_gets_the_next(playground, monkeypatch):
    playground.page.eps.value = -1.0
    turn(playground.document)
    later = time.monotonic() + 60
    monkeypatch.setattr("sinksort.explore.wire.time.monotonic", lambda: later)
    playground.page.eps.value = -0.5
    turn(playground.document)
    assert playground.page.wire.frame.now["query"].endswith("eps=0.3162")


def test_what_the_page_has_is_not_sent_again(playground):
    wire = playground.page.wire
    playground.page.eps.value = -1.0
    flush(playground.document)
    sent = {source for source, *_ in wire.frame.now["columns"] + wire.frame.now["others"]}
    assert sent == {"values", "targets", "written", "image", "heads", "arrows"}  # hard cells do not depend on eps
    assert [span for span, *_ in wire.frame.now["spans"] if not span.startswith("gradient")] == []
    playground.draw()
    assert (wire.frame.now["columns"], wire.frame.now["spans"]) == ([], [])


def test_a_page_begins_with_all_columns_and_ranges(playground):
    plots, wire = playground.page.plots, playground.page.wire
    for name, table in wire.tables.items():
        held = plots.sources[name].data
        assert {key: len(column) for key, column in held.items()} == {key: len(column) for key, column in table.items()}
    assert (plots.matrix.x_range.start, plots.matrix.x_range.end) == (0.5, 5.5)


# ---- the server


def test_the_page_loads_nothing_from_elsewhere(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/") as answer:
        page = answer.read().decode()
    sources = re.findall(r"""(?:src|href)=["']([^"']+)""", page)
    assert any("bokeh-widgets" in source for source in sources)
    assert [source for source in sources if not source.startswith("/static/")] == []
    for source in sources:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{source}") as answer:
            assert answer.status == 200
    assert "cdn." not in page


def test_it_listens_on_the_loopback_only(server):
    assert server.address == "127.0.0.1"
    addresses = {address[0] for *_, address in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in {"127.0.0.2", *addresses} - {"127.0.0.1"}:
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((address, server.port)) != 0, address


@pytest.mark.parametrize(("origin", "welcome"), [("127.0.0.1", True), ("localhost", True), ("evil.example", False)])
def test_only_its_own_pages_may_connect(server, origin, welcome):
    from bokeh.util.token import generate_jwt_token, generate_session_id

    async def connect():
        request = HTTPRequest(
            f"ws://127.0.0.1:{server.port}/ws", headers={"Origin": f"http://{origin}:{server.port}"}, request_timeout=30
        )
        token = generate_jwt_token(generate_session_id())
        connection = await websocket_connect(request, subprotocols=["bokeh", token])
        connection.close()

    if welcome:
        asyncio.run(connect())
    else:
        with pytest.raises(HTTPClientError, match="403"):
            asyncio.run(connect())


def asked(server, host, path="/", **headers):
    """(status, reason) of a request that names this host."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.putrequest("GET", path, skip_host=True)
        for name, value in {"Host": host, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.reason


def connected(server, host, origin, token=None):
    """What becomes of a websocket: ``"open"``, or why it is refused."""
    from bokeh.util.token import generate_jwt_token, generate_session_id

    async def connect():
        headers = {"Host": host} if origin is None else {"Host": host, "Origin": origin}
        request = HTTPRequest(f"ws://127.0.0.1:{server.port}/ws", headers=headers, request_timeout=30)
        protocols = ["bokeh", token or generate_jwt_token(generate_session_id())]
        try:
            connection = await websocket_connect(request, subprotocols=protocols)
        except HTTPClientError as error:
            return str(error)
        await connection.read_message()
        connection.close()
        return "open"

    return asyncio.run(connect())


FOREIGN = ["evil.example:{}", "evil.example", "127.0.0.1.evil.example:{}", "localhost.evil.example", "me@localhost:{}"]
FOREIGN += ["", "[::2]:{}", "192.168.0.1:{}", "[", "localhost:port"]


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_gets_nothing(server, host):
    """A site whose name stands for 127.0.0.1 is what the browser takes for the origin of everything it loads here."""
    host = host.format(server.port)
    for path in ("/", "/metadata", "/autoload.js?bokeh-autoload-element=1"):
        status, reason = asked(server, host, path)
        assert (status, reason[:45]) in ((403, "The playground answers to the names 127.0.0.1"), (400, "Bad Request"))
    assert "40" in connected(server, host, f"http://{host}")
    assert "40" in connected(server, host, None)


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "LOCALHOST:8888", "[::1]:{}"])
def test_names_of_this_machine_are_welcome(server, host):
    """With any port: it may be another one on this side of a tunnel."""
    host = host.format(server.port)
    assert asked(server, host) == (200, "OK")
    assert connected(server, host, f"http://{host}") == "open"


@pytest.mark.parametrize(
    "origin", ["http://evil.example:{}", "http://localhost:1", "null", "", "http://a@localhost:{}"]
)
def test_a_foreign_origin_gets_nothing(server, origin):
    host = f"localhost:{server.port}"
    origin = origin.format(server.port)
    assert asked(server, host, Origin=origin) == (403, "The playground answers to its own pages only")
    assert "403" in connected(server, host, origin)


def test_the_number_of_pages_is_bounded(server, monkeypatch):
    from bokeh.util.token import generate_jwt_token

    from sinksort.explore import visitors

    host, open_now = f"localhost:{server.port}", len(server.get_sessions("/"))
    monkeypatch.setattr(visitors, "MOST_PAGES", open_now + 1)
    assert asked(server, host) == (200, "OK")
    status, reason = asked(server, host)
    assert (status, reason) == (503, f"{open_now + 1} pages of the playground are open: close some, and wait a little")
    assert "503" in connected(server, host, f"http://{host}")
    known = generate_jwt_token(server.get_sessions("/")[0].id)
    assert connected(server, host, f"http://{host}", known) == "open"  # it is one of these pages
    assert len(server.get_sessions("/")) <= open_now + 1


BUSY = """
import atexit, hashlib, sys
from sinksort.explore import server
from sinksort.paper import cli

def busy(_):  # in a library, where Python cannot be interrupted, as a compiler is
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)

if sys.argv.pop() == "busy":
    server.solve = busy
atexit.register(print, "Python takes everything apart")
cli.main()
"""


@pytest.mark.parametrize("when", ["busy", "open"])
def test_it_stops_at_once(when):
    command = [sys.executable, "-c", BUSY, "explore", "--no-browser", "--port", "0", when]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout.readline().startswith("busy" if when == "busy" else "The playground is at http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, said.strip()) == (0, "")


def test_a_session_answers_to_its_widgets(server):
    url = f"http://127.0.0.1:{server.port}/"
    with pull_session(url=url, arguments={"x": "3,1,2", "eps": "0.5"}) as session:
        assert session.document.get_model_by_name("x").value == "3, 1, 2"
        session.document.get_model_by_name("eps").value = -4.0
        session.force_roundtrip()  # the server has it, and draws at its next turn
        session.pull()
        sent = session.document.get_model_by_name("frame").now
        np.testing.assert_allclose(cut(sent, "values", "rank"), [3, 1, 2], atol=1e-6)


def test_a_taken_port_is_told_in_one_line(server):
    result = CliRunner().invoke(cli.app, ["explore", "--no-browser", "--port", str(server.port)])
    assert result.exit_code == 1
    assert result.output.startswith(
        f"error: port {server.port} cannot be used (Address already in use): perhaps another"
    )
    assert "choose another port with --port" in result.output
    result = CliRunner().invoke(cli.app, ["explore", "--no-browser", "--port", "70000"])
    assert "--port must be between 1 and 65535, or 0 for any that is free, got 70000" in result.output


def test_missing_bokeh_is_named():
    code = (
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'bokeh' else real(name, *a)\n"
        "import sinksort.explore"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stderr.strip().endswith("and bokeh is not installed; run: pip install 'sinksort[explore]'")


def test_states_say_what_is_wrong_with_them():
    with pytest.raises(StateError, match="values x: each must be a number"):
        State(x=(float("nan"),))
