"""Take the screenshots of both pages: `python scripts/screenshots.py BASE_URL RUN_ID FOLDER`.

Needs Playwright for Python and a Chromium. Writes `{runs,run}-{light,dark}-{1280,390}.png`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from chromium import system_browser

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


def take(browser: Browser, base: str, path: str, name: str, theme: str, width: int, folder: Path) -> None:
    """One full-page picture, after every figure on the page is drawn."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if theme == "dark" else "light",
        has_touch=width < 600,
        device_scale_factor=2 if width < 600 else 1,
    )
    page = context.new_page()
    page.goto(f"{base.rstrip('/')}{path}")
    for box in page.locator("[data-figure]").all():
        box.locator(".main-svg, .blank").first.wait_for()
    page.wait_for_timeout(300)
    page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=True)
    context.close()


def main() -> None:
    """Read the arguments and take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("base", help="address of the server, as http://127.0.0.1:8765")
    parser.add_argument("run", help="id of the run to show")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=system_browser(), args=FLAGS)
        for path, name in (("/", "runs"), (f"/runs/{arguments.run}", "run")):
            for theme in ("light", "dark"):
                for width in (1280, 390):
                    take(browser, arguments.base, path, name, theme, width, arguments.folder)
        browser.close()


if __name__ == "__main__":
    main()
