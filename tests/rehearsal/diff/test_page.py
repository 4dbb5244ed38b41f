"""The HTML page in headless Chromium: light and dark, narrow and wide, nothing cut off, readable without a
script.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.rehearsal.diff.test_render import UPDATE, change, diff
from trainfleet.rehearsal.diff.all_stacks import Failed, Report
from trainfleet.rehearsal.diff.change import Property, Verb
from trainfleet.rehearsal.diff.html_page import as_html, html_of
from trainfleet.rehearsal.diff.model import SpecChange

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LONG = "s3://" + "a-very-long-name-without-a-break" * 8
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of one stack and one of several, with everything on it that could be too wide."""
    long = change(
        Verb.REPLACE,
        "prod-" + "bucket" * 20,
        properties=(Property("path." * 30, LONG, LONG + "-2", forces=True),),
        forced_by=("path." * 30,),
    )
    many = [change(Verb.CREATE, f"prod-tag-{index}", "aws:autoscaling/tag:Tag") for index in range(60)]
    found = diff(
        UPDATE,
        long,
        *many,
        spec=(SpecChange("network.cidr", LONG, "10.1.0.0/16", "stacks/Pulumi.aws-prod.yaml:9"),),
        notes=(LONG,),
    )
    folder = tmp_path_factory.mktemp("page")
    (folder / "diff.html").write_text(as_html(found))
    other = dataclasses.replace(found, stack=LONG, changes=found.changes[:1])
    report = Report((other, found), (Failed("gcp-" + LONG, LONG),), (("azure-dev", LONG),))
    (folder / "diffs.html").write_text(html_of(report))
    return folder


def chromium(*arguments: str, folder: Path) -> str:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout


def corner(png: bytes) -> tuple[int, int, int]:
    """Return the colour of the first pixel, whose row filter does not matter: there is nothing before it."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    data, at = b"", 8
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    red, green, blue = zlib.decompress(data)[1:4]
    return red, green, blue


@pytest.mark.parametrize(("scheme", "bright"), [("1", True), ("0", False)], ids=["light", "dark"])
def test_the_page_follows_the_readers_colours(pages: Path, tmp_path: Path, scheme: str, bright: bool) -> None:
    shot = tmp_path / "shot.png"
    chromium(
        f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=800,600",
        f"--screenshot={shot}",
        (pages / "diff.html").as_uri(),
        folder=tmp_path,
    )
    assert (min(corner(shot.read_bytes())) > 200) is bright


@pytest.mark.parametrize("page", ["diff.html", "diffs.html"])
@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_is_cut_off_at_any_width(pages: Path, tmp_path: Path, page: str, width: int) -> None:
    # Only this test's copy measures itself: in a frame of the width, because a window has a least width.
    measured = tmp_path / "measured.html"
    measured.write_text(
        f"<iframe id=f style='width:{width}px;height:900px;border:0'"
        f" srcdoc='{(pages / page).read_text().replace('&', '&amp;').replace(chr(39), '&#39;')}'></iframe><script>onload"
        " = () => { const root = document.getElementById('f').contentDocument.documentElement;"
        " document.title = 'measured ' + root.scrollWidth + ' in ' + root.clientWidth }</script>"
    )
    found = re.search(r"measured (\d+) in (\d+)", chromium("--dump-dom", measured.as_uri(), folder=tmp_path))
    assert found is not None
    needed, has = map(int, found.groups())
    assert has == width
    assert needed <= width
