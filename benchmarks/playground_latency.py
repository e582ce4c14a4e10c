"""How long a change takes to be seen on the playground's page: ``python benchmarks/playground_latency.py``.

A key is pressed on the slider of eps, or a value is dragged by a few pixels. The clock starts when the browser has
the event; it stops two frames after the last column of the new picture has arrived, when it has been painted.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys

from playwright.sync_api import Page, sync_playwright

from sinksort.explore.presets import PRESETS
from sinksort.explore.state import resized, to_query

WATCH = """
() => {
  window.begun = 0; window.taken = []
  const begin = () => { window.begun ||= performance.now() }
  addEventListener("keydown", begin, true)
  addEventListener("pointermove", (event) => event.buttons && begin(), true)
  Bokeh.documents[0].get_model_by_name("arrows").change.connect(() => {
    const begun = window.begun
    requestAnimationFrame(() => requestAnimationFrame(() => {
      if (begun && window.begun == begun) { window.taken.push(performance.now() - begun); window.begun = 0 }
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


def measure(page: Page, changes: int) -> dict[str, list[float]]:
    """Milliseconds of each change."""
    page.evaluate(WATCH)
    page.get_by_role("slider").focus()
    for k in range(changes):
        page.keyboard.press("ArrowRight" if k % 10 < 5 else "ArrowLeft")
        page.wait_for_function(f"() => window.taken.length > {k}")
    slid = page.evaluate("window.taken.splice(0)")
    x, y = page.evaluate(HANDLE)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 12, y)  # takes hold
    page.wait_for_timeout(1000)
    page.evaluate("() => { window.taken = []; window.begun = 0 }")
    for k in range(changes):
        page.mouse.move(x + 12 + 3 * (k % 10), y - 1)
        page.wait_for_function(f"() => window.taken.length > {k}")
    page.mouse.up()
    return {"slider": slid, "drag": page.evaluate("window.taken")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 50, 200])
    options = parser.parse_args()
    command = [sys.executable, "-m", "sinksort.paper", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" at ")[1].split()[0]
            browser = playwright.chromium.launch(
                executable_path=options.chromium,
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            for n in options.sizes:
                state = resized(PRESETS["Fifty normal values"], n)
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.goto(f"{address}?{to_query(state)}")
                page.wait_for_function("() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
                for touch, taken in measure(page, options.changes).items():
                    shown = f"min {min(taken):.0f}, median {statistics.median(taken):.0f}, max {max(taken):.0f} ms"
                    print(f"n = {n}, {touch}: {shown} over {len(taken)} changes")
                page.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
