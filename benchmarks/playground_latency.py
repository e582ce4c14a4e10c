"""How long a change takes to be seen on the playground's page: ``python benchmarks/playground_latency.py``.

A key is pressed on the slider of eps, or a value is dragged by a few pixels, in a real Chromium. The clock starts when
the browser has the event. It is read when the new picture has arrived (the answer: there, solved, and back), and two
frames later, when it has been painted.

The machine has its share in this, above all a busy one. So each touch is followed by one on a page that has nothing but
a slider and a dot which it moves, over the same kind of server: what is left when nothing is solved and next to nothing
drawn.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys

from playwright.sync_api import Browser, Page, sync_playwright

from sinksort.explore.presets import PRESETS
from sinksort.explore.state import resized, to_query

PLAYGROUND = [sys.executable, "-m", "sinksort.paper", "explore", "--no-browser", "--port", "0"]
ONE_DOT = [
    sys.executable,
    "-c",
    """
from bokeh.models import ColumnDataSource, Slider
from bokeh.plotting import figure
from bokeh.server.server import Server

def page(document):
    frame = ColumnDataSource(name="frame", data={"x": [0.0]})
    plot = figure(width=300, height=300, x_range=(-5, 5), y_range=(-1, 1), tools="", toolbar_location=None)
    plot.scatter("x", 0.0, source=frame)
    slider = Slider(start=-5, end=5, step=0.01, value=0)
    slider.on_change("value", lambda _name, _old, new: frame.update(data={"x": [new]}))
    document.add_root(slider)
    document.add_root(plot)

server = Server({"/": page}, port=0)
server.start()
print(f"one dot at http://localhost:{server.port}/ ", flush=True)
server.io_loop.start()
""",
]
WATCH = """
() => {
  window.begun = 0; window.taken = []
  const begin = () => { window.begun ||= performance.now() }
  addEventListener("keydown", begin, true)
  addEventListener("pointermove", (event) => event.buttons && begin(), true)
  Bokeh.documents[0].get_model_by_name("frame").change.connect(() => {
    const {begun} = window, arrived = performance.now()
    requestAnimationFrame(() => requestAnimationFrame(() => {
      if (begun && window.begun == begun) {
        window.taken.push([arrived - begun, performance.now() - begun])
        window.begun = 0
      }
    }))
  })
}
"""
HANDLE = """
() => {
  const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name("flow"))
  const {x, y} = view.canvas_view.el.getBoundingClientRect()
  const {place} = Bokeh.documents[0].get_model_by_name("values").data
  return [x + view.frame.x_scale.compute(place[0]), y + view.frame.y_scale.compute(0)]
}
"""


def opened(browser: Browser, address: str) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    page.wait_for_function("() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
    page.wait_for_timeout(1000)
    page.evaluate(WATCH)
    page.get_by_role("slider").focus()
    return page


def seen(page: Page, count: int) -> None:
    page.wait_for_function(f"() => window.taken.length >= {count}")


def slide(page: Page, k: int) -> None:
    page.keyboard.press("ArrowRight" if k % 10 < 5 else "ArrowLeft")
    seen(page, k + 1)


def measure(page: Page, dot: Page, changes: int) -> dict[str, list[list[float]]]:
    """Milliseconds until the answer and until it is painted, for each change."""
    found = {}
    for k in range(changes):
        slide(page, k)
        slide(dot, k)
    found["slider"], found["one dot"] = page.evaluate("window.taken.splice(0)"), dot.evaluate("window.taken.splice(0)")
    x, y = page.evaluate(HANDLE)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 12, y)  # takes hold
    page.wait_for_timeout(1000)
    page.evaluate("() => { window.taken = []; window.begun = 0 }")
    for k in range(changes):
        page.mouse.move(x + 15 + 3 * (k % 10), y)
        seen(page, k + 1)
        slide(dot, k)
    page.mouse.up()
    found["drag"], found["one dot, meanwhile"] = page.evaluate("window.taken"), dot.evaluate("window.taken.splice(0)")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 50, 200])
    options = parser.parse_args()
    servers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in (PLAYGROUND, ONE_DOT)]
    try:
        addresses = [server.stdout.readline().split(" at ")[1].split()[0] for server in servers if server.stdout]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=options.chromium,
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            dot = opened(browser, addresses[1])
            for n in options.sizes:
                page = opened(browser, f"{addresses[0]}?{to_query(resized(PRESETS['Fifty normal values'], n))}")
                for touch, taken in measure(page, dot, options.changes).items():
                    answered, painted = ([times[k] for times in taken] for k in (0, 1))
                    print(
                        f"n = {n:3d}, {touch:18s}: answer after {statistics.median(answered):4.0f}, painted after "
                        f"{statistics.median(painted):4.0f} ms (medians; {min(painted):.0f} to {max(painted):.0f}, "
                        f"{len(painted)} changes)"
                    )
                page.close()
    finally:
        for server in servers:
            server.terminate()


if __name__ == "__main__":
    main()
