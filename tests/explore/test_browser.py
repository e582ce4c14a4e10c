"""The playground in a real browser: load, slide, drag, presets, bad URLs, two tabs, the keyboard, the picture, a phone,
and a server that goes away."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import contextmanager, suppress
from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from playwright.sync_api import sync_playwright

from sinksort.explore.presets import PRESETS
from sinksort.explore.state import DEFAULT, from_query, to_query
from tests.browsers import ARGUMENTS, CHROMIUM

LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}

#: Where on the screen the handle of value i is, and the place p of the targets' axis beside it.
PLACES = """
([i, p]) => {
  const flow = Bokeh.documents[0].get_model_by_name("flow")
  const view = Bokeh.index.find_one(flow)
  const corner = view.canvas_view.el.getBoundingClientRect()
  const place = Bokeh.documents[0].get_model_by_name("values").data.place[i]
  const {x_scale, y_scale} = view.frame
  return [corner.x + x_scale.compute(place), corner.y + y_scale.compute(0), corner.x + x_scale.compute(p)]
}
"""
#: Soft ranks as the page has them.
RANKS = """() => Array.from(Bokeh.documents[0].get_model_by_name("values").data.rank)"""


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def context(browser, server):
    made = browser.new_context(viewport=LAPTOP, base_url=f"http://127.0.0.1:{server.port}")
    made.set_default_timeout(60_000)
    made.grant_permissions(["clipboard-read", "clipboard-write"])
    yield made
    made.close()


def opened(context, query=""):
    """A page that has been drawn. It may ask only its own server, and complain of nothing."""
    page = context.new_page()
    page.wrong = []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda said: page.wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on(
        "request", lambda asked: None if urlsplit(asked.url).hostname == "127.0.0.1" else page.wrong.append(asked.url)
    )
    page.goto("/" + query)
    page.wait_for_function("() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
    return page


def state(page):
    """The state in the address, once it satisfies a wish."""
    return from_query(dict(parse_qsl(urlsplit(page.url).query)))[0]


def wait_for_address(page, wish):
    page.wait_for_function(f"() => new URLSearchParams(location.search).{wish}")
    return state(page)


def pixels(page):
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"), dtype=float)


def test_the_page_loads_and_fits_a_laptop(context):
    page = opened(context)
    np.testing.assert_allclose(page.evaluate(RANKS), [2.9591, 4.1148, 2.0544, 4.8701, 1.0016], atol=1e-4)  # the README
    assert page.evaluate(
        "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
    )
    for name in ("flow", "matrix", "ranks", "sorted", "gradient"):
        box = page.evaluate(
            """(name) => {
              const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(name))
              const {x, y, right, bottom} = view.el.getBoundingClientRect()
              return [x, y, right, bottom]
            }""",
            name,
        )
        assert box[0] >= 290
        assert box[1] > 40
        assert box[2] <= 1280
        assert box[3] <= 800
    shown = pixels(page)
    assert (shown[90:480, 380:960] < 200).mean() > 0.1  # the plan is drawn
    assert page.wrong == []


def test_the_slider_by_keyboard(context):
    page = opened(context)
    before = page.evaluate(RANKS)
    page.get_by_role("slider").focus()
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    assert wait_for_address(page, "get('eps') == '0.03162'").eps == 0.03162  # 25 steps of 0.02 from 10^-2
    after = page.evaluate(RANKS)
    assert abs(after[3] - 3) < abs(before[3] - 3)  # softer: nearer to the mean rank
    assert page.wrong == []


def until_it_moves(page, drag):
    """Drag the second smallest value until it has overtaken 4. Whoever holds a handle still for 0.3 s presses it
    instead of dragging it, and so may we while the machine is busy; then we try again, as everybody does."""
    overtaken = f"({RANKS})()[2] > ({RANKS})()[1]"
    for _ in range(5):
        drag()
        with suppress(PlaywrightTimeoutError):
            page.wait_for_function(overtaken, timeout=10_000)
            return
    page.wait_for_function(overtaken)


def test_dragging_a_value_past_another(context):
    page = opened(context)

    def drag():
        x, y, to = page.evaluate(PLACES, [2, 0.9])
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(to, y - 4, steps=12)
        page.mouse.up()

    until_it_moves(page, drag)
    asked = wait_for_address(page, "get('x') == '0.38,4,4.5,6,-9'")
    assert asked.x == (0.38, 4.0, 4.5, 6.0, -9.0)
    assert page.get_by_label("Values x, with commas").input_value() == "0.38, 4, 4.5, 6, -9"
    assert page.wrong == []


def test_presets(context):
    page = opened(context)
    for name, asked in PRESETS.items():
        if asked == DEFAULT:
            continue
        page.get_by_label("Begin with").select_option(name)
        page.wait_for_function(f"() => location.search == '?{to_query(asked)}'")
        assert page.evaluate("Array.from(Bokeh.documents[0].get_model_by_name('values').data.x)") == list(asked.x)
    assert page.wrong == []


def test_a_bad_url_is_survived(context):
    page = opened(context, "?x=1,2,oops&eps=-3&m=2")
    page.get_by_text("values x: 'oops' is not a number").wait_for()
    page.get_by_text("eps: expected a number from 0.0001 to 10, got -3").wait_for()
    assert page.evaluate("Bokeh.documents[0].get_model_by_name('targets').data.number.length") == 2
    page.get_by_label("Values x, with commas").fill("3, 1, 2")
    page.keyboard.press("Enter")
    wait_for_address(page, "get('x') == '3,1,2'")
    assert not page.get_by_text("is not a number").is_visible()
    assert page.wrong == []


def test_too_many_values_are_refused(context):
    page = opened(context)
    page.get_by_label("Values x, with commas").fill(",".join(["1"] * 300))
    page.keyboard.press("Enter")
    page.get_by_text("at most 200 can be told apart on a screen, got 300").wait_for()
    assert len(page.evaluate(RANKS)) == 5


def test_two_tabs_do_not_disturb_each_other(context):
    one, other = opened(context), opened(context, "?x=5,6,7")
    one.get_by_label("Values x, with commas").fill("9, 8")
    one.keyboard.press("Enter")
    wait_for_address(one, "get('x') == '9,8'")
    other.get_by_role("slider").focus()
    other.keyboard.press("ArrowRight")
    assert wait_for_address(other, "get('eps') == '0.01047'").x == (5.0, 6.0, 7.0)
    assert one.wrong + other.wrong == []


def test_a_link_opens_the_same_state(context):
    page = opened(context, "?x=3,1,2&squash=arctan&eps=0.05&gradient=sorted-2")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Link copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    again = opened(context, "?" + urlsplit(link).query)
    assert again.evaluate(RANKS) == page.evaluate(RANKS)
    assert from_query(dict(parse_qsl(urlsplit(link).query))) == (state(page), [])


def test_the_picture_is_saved(context):
    page = opened(context)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save picture").click()
    assert download.value.suggested_filename == "sinksort.png"
    saved = np.asarray(Image.open(download.value.path()).convert("L"), dtype=float)
    assert saved.shape[0] > 500
    assert saved.shape[1] > 900
    assert 0.05 < (saved < 200).mean() < 0.6  # drawn upon, on white


def test_everything_is_reached_by_the_tab_key(context):
    page = opened(context)
    page.locator("body").click(position={"x": 5, "y": 5})
    reached = set()
    focus = """() => {
      let at = document.activeElement
      while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement
      if (at.getAttribute("role") == "slider") return "slider"
      return (at.labels?.[0]?.textContent || at.textContent || "").trim()
    }"""
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(focus))
    wanted = {"Begin with", "slider", "Values x, with commas", "How many", "Weights a of the values"}
    wanted |= {"Weights b of the targets", "Targets m", "Cost of moving by a distance", "Squash values into [0, 1]"}
    wanted |= {"Gradient of (or tap a value or target)", "Copy link", "Save picture"}
    assert wanted - reached == set()


def boxes(page):
    """Left, top, right and bottom of each plot, on the page."""
    return page.evaluate(
        """() => Object.fromEntries(["flow", "matrix", "ranks", "sorted", "gradient"].map((name) => {
          const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(name))
          const {left, top, right, bottom} = view.el.getBoundingClientRect()
          return [name, [left, top + scrollY, right, bottom + scrollY]]
        }))"""
    )


def test_no_plot_moves_when_numbers_change(context):
    page = opened(context, "?" + to_query(PRESETS["Fifty normal values"]))
    page.evaluate(
        "() => { window.resized = 0; new ResizeObserver(() => resized++).observe(document.getElementById('flow')) }"
    )
    before = boxes(page)
    page.get_by_role("slider").focus()
    for key, wish in (("Home", "get('eps') == '0.0001'"), ("End", "get('eps') == '10'")):
        page.keyboard.press(key)
        wait_for_address(page, wish)
        assert boxes(page) == before
    assert page.evaluate("resized") == 1  # when it began to look
    assert page.wrong == []


@pytest.fixture
def phone(browser, server):
    made = browser.new_context(
        viewport=PHONE, has_touch=True, is_mobile=True, base_url=f"http://127.0.0.1:{server.port}"
    )
    made.set_default_timeout(60_000)
    yield made
    made.close()


def test_on_a_phone_the_plan_and_the_slider_are_seen_together(phone):
    page = opened(phone)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    placed = boxes(page)
    for left, top, right, bottom in placed.values():
        assert left >= 0
        assert right <= PHONE["width"]
        assert right - left > 250
        assert bottom - top > 200
    ordered = sorted(placed.values(), key=lambda box: box[1])
    assert all(above[3] <= below[1] + 1 for above, below in pairwise(ordered))  # none hides another
    slider = page.get_by_role("slider").bounding_box()
    assert placed["flow"][3] <= slider["y"] < PHONE["height"]
    assert page.wrong == []


def test_a_finger_drags_a_value(phone):
    page = opened(phone)
    fingers = phone.new_cdp_session(page)

    def drag():
        x, y, to = page.evaluate(PLACES, [2, 0.9])
        fingers.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
        for k in range(1, 13):
            at = {"x": x + (to - x) * k / 12, "y": y}
            fingers.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [at]})
        fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    until_it_moves(page, drag)
    assert page.wrong == []


@contextmanager
def started(port):
    """``sinksort explore`` in a process of its own."""
    command = [sys.executable, "-m", "sinksort.paper", "explore", "--no-browser", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split(" at ")[1].split()[0]
        finally:
            process.terminate()


def test_a_page_says_when_the_playground_has_been_stopped(browser):
    context = browser.new_context(viewport=LAPTOP)
    context.set_default_timeout(60_000)
    with started(0) as address:
        context.new_page().goto(address + "?x=3,1,2")
        (page,) = context.pages
        page.wait_for_function("() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
        said = page.get_by_text("The playground has been stopped. Start it again with sinksort explore")
        assert not said.is_visible()
    said.wait_for()
    assert page.get_by_text("connection was lost").count() == 0  # said once, in our words
    with started(urlsplit(address).port):
        said.wait_for(state="hidden")  # the page looks for it, and loads itself again
        page.wait_for_function("() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
        page.get_by_role("slider").focus()
        page.keyboard.press("ArrowRight")
        assert wait_for_address(page, "get('eps') == '0.01047'").x == (3.0, 1.0, 2.0)
    context.close()
