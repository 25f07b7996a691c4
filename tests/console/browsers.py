"""The Chromium of this machine."""

import os
import shutil

from playwright.async_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium_path() -> str | None:
    """None if there is none on the PATH."""
    return next(filter(None, map(shutil.which, NAMES)), None)


async def chromium(playwright: Playwright) -> Browser:
    """A new Chromium without a window."""
    # Its sandbox refuses to work for the superuser.
    no_sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return await playwright.chromium.launch(executable_path=chromium_path(), args=no_sandbox)
