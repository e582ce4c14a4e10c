"""Which browser tests of the page can run in: Chromium, where one is installed."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM: str | None = next((path for name in NAMES if (path := shutil.which(name))), None)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
