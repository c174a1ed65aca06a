"""Make sure the browser tests find a Chromium: the system's, else Playwright's, else Debian's package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")


def system_browser() -> str | None:
    """The path of a Chromium that is installed, or None."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or (str(MAC) if MAC.exists() else None)


def playwright_browser() -> str | None:
    """The path of Playwright's own Chromium if it has been fetched, or None."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return str(path) if path.exists() else None


def quietly(*command: str) -> bool:
    """Run an installer; its output is shown only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{' '.join(command)} did not work: {(done.stderr or done.stdout).strip()[-300:]}\n")
    return done.returncode == 0


def install() -> bool:
    """Fetch a browser: Playwright's, else Debian's where apt-get may be used."""
    if quietly(sys.executable, "-m", "playwright", "install", "chromium") and playwright_browser():
        return True
    if shutil.which("apt-get") and os.geteuid() == 0:
        quietly("apt-get", "update")
        return quietly("apt-get", "install", "--yes", "chromium")
    return False


def main() -> int:
    if system_browser() or playwright_browser():
        return 0
    sys.stderr.write("no Chromium on this machine: fetching one for the browser tests …\n")
    if install():
        return 0
    sys.stderr.write(
        "roundoff: the browser tests need Chromium or Google Chrome. Debian, Ubuntu: apt install chromium; "
        "macOS: brew install --cask google-chrome\n"
    )
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
