"""A real browser, if one is installed, for pages that gtrace writes."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def browse(folder):
    """Return what the script of `page.html` in `folder` left in the element `results`, as JSON."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,700", "--virtual-time-budget=2000",
        f"--user-data-dir={folder / 'profile'}", "--dump-dom", (folder / "page.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="results">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))
