"""A real Chromium for every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from driving import Watched, watch
from playwright.sync_api import Browser, BrowserContext, Error, expect, sync_playwright

from chromium import system_browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 30_000
"""What is waited for comes in a fraction of this; a busy machine is no fault of the pages."""

MISSING = (
    "no Chromium was found: install one (Debian, Ubuntu: apt install chromium) or let Playwright fetch its own "
    "(python -m playwright install chromium)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium, else Playwright's own. One a module: its event loop must end with the module."""
    found = system_browser()
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        except Error as error:
            if found is None:
                pytest.fail(MISSING)
            raise RuntimeError(f"{found} does not start") from error
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A fresh browser profile at the width of a desktop."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def watched(context: BrowserContext) -> Watched:
    """A page that remembers errors, exceptions, dialogs and violations of the content security policy."""
    return watch(context.new_page())
