"""Which pages of the built site are wider than a phone or a desktop window: `python -m tools.docs.layout`.

Needs Chromium, which loads each page of site/ in a frame of that width from a server on this machine.
"""

from __future__ import annotations

import functools
import html
import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tools.docs.links import ROOT
from tools.screenshots import browser

WIDTHS = (390, 1280)
LIMIT_S = 600
PAGE = "layout-check.html"
SCRIPT = """<!doctype html><body><script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms))
async function measure(page, width) {
  const frame = document.createElement("iframe")
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`
  frame.src = page
  document.body.append(frame)
  await new Promise((done) => (frame.onload = done))
  await wait(200)
  const found = frame.contentDocument.documentElement.scrollWidth
  const wide = [...frame.contentDocument.querySelectorAll("article *")]
    .filter((each) => each.getBoundingClientRect().right > width + 1)
    .filter((each) => !each.closest(".md-typeset__scrollwrap, pre"))
    .slice(0, 3).map((each) => each.outerHTML.slice(0, 100))
  frame.remove()
  return { page, width, found, wide }
}
async function main() {
  const results = []
  for (const page of PAGES) for (const width of WIDTHS) results.push(await measure(page, width))
  document.body.textContent = "RESULTS" + JSON.stringify(results) + "END"
}
main()
</script>
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, *_: object) -> None:
        return


def too_wide(site: Path) -> list[str]:
    """A line for each page and width at which the page scrolls sideways.

    Args:
        site: the folder of the built site; a file is written to it for the time of the check.

    Raises:
        MissingToolError: there is no Chromium.
        TimeoutError: Chromium has not measured the pages in time.
    """
    program = browser()
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html") if page.name != "404.html")
    script = SCRIPT.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))
    (site / PAGE).write_text(script, encoding="utf-8")
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            text = _dump(program, f"http://127.0.0.1:{server.server_port}/{PAGE}", profile)
    finally:
        server.shutdown()
        (site / PAGE).unlink()
    found = re.search(r"RESULTS(.*)END", text, re.DOTALL)
    if found is None:
        raise TimeoutError(f"Chromium did not measure {len(pages)} pages in {LIMIT_S} s")
    return [
        f"{each['page']} at {each['width']} px: {each['found']} px wide {each['wide']}"
        for each in json.loads(html.unescape(found[1]))
        if each["found"] > each["width"]
    ]


def _dump(program: str, url: str, profile: str) -> str:
    """The page after its scripts have run."""
    command = [program, "--headless", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom"]
    # Chromium refuses to run as root inside its sandbox; the pages are our own.
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += [f"--virtual-time-budget={LIMIT_S * 1000}", url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * LIMIT_S).stdout


if __name__ == "__main__":
    wide = too_wide(ROOT / "site")
    print("\n".join(wide) or "no page is wider than its window")
    sys.exit(1 if wide else 0)
