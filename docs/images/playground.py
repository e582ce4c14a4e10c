"""Photograph the playground in Chromium: ``python docs/images/playground.py``."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from sinksort.explore.state import DEFAULT, to_query

if __name__ == "__main__":
    path = Path(__file__).parent / "playground.png"
    command = [sys.executable, "-m", "sinksort.paper", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" at ")[1].split()[0]
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 760})
            page.goto(f"{address}?{to_query(replace(DEFAULT, eps=0.03))}")
            page.wait_for_function("() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
            page.wait_for_timeout(2000)  # the first drawing is made again when the width of the plot is known
            page.screenshot(path=path)
            browser.close()
        finally:
            server.terminate()
    Image.open(path).convert("RGB").save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
