"""Takes the screenshots of the documentation: `python -m tools.screenshots` (5 minutes; needs Chromium).

Both show real output: `trainfleet diff` on a change of a stack, made in a copy of this repository, and
`trainfleet report` on a training run. Everything but the two pictures is written to a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from trainfleet.console import print_error
from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.files import write_whole

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
TRAINFLEET = str(Path(sys.executable).with_name("trainfleet"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH = 1200
LARGEST = 300_000
"""Bytes of a picture: it is loaded with README."""

STACK = "aws-prod"
BEFORE, AFTER = "{name: a10g, accelerator: A10G, per_node: 1,", "{name: a10g, accelerator: A10G, per_node: 4,"
"""The change of the stack's file that the diff shows: larger machines, which replace a node group."""
CHANGED = (2, 3)
"""Exit codes of `trainfleet diff` that mean a change."""
RECIPE = "lm-small"


def browser() -> str:
    """The path of Chromium or Chrome.

    Raises:
        MissingToolError: neither is installed.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        what = f"none of {', '.join(BROWSERS)} is on the PATH"
        problem = Problem("PATH", what, "apt-get install chromium, or install Chrome")
        raise MissingToolError("screenshots need Chromium", [problem])
    return found


def diff_page(work: Path) -> Path:
    """The page of `trainfleet diff` for a change that replaces GPU nodes."""
    copy, page = work / "repository", work / "diff.html"
    call(["git", "clone", "--quiet", "--local", "--no-hardlinks", str(ROOT), str(copy)], work)
    stack = copy / "stacks" / f"Pulumi.{STACK}.yaml"
    text = stack.read_text(encoding="utf-8")
    if BEFORE not in text:
        raise TrainfleetError(
            "the stack to change has other text", [Problem(str(stack), f"lacks {BEFORE!r}")]
        )
    stack.write_text(text.replace(BEFORE, AFTER), encoding="utf-8")
    command = [TRAINFLEET, "diff", STACK, "--worktree", "--format", "html", "--output", str(page)]
    call(command, copy, CHANGED)
    return page


def report_page(work: Path) -> Path:
    """The page of `trainfleet report` for a run of two workers on this machine."""
    page = work / "report.html"
    call([TRAINFLEET, "train", RECIPE, "--storage", str(work / "runs")], work)
    call([TRAINFLEET, "report", str(work / "runs" / RECIPE), "--output", str(page)], work)
    return page


PICTURES: Mapping[str, tuple[Callable[[Path], Path], int]] = {
    "diff.png": (diff_page, 738),
    "report.png": (report_page, 988),
}
"""Each picture: what writes its page, and how many pixels from its top are shown."""


def call(command: list[str], folder: Path, expected: tuple[int, ...] = (0,)) -> None:
    """Run a command in a folder.

    Raises:
        TrainfleetError: it ended with another exit code than `expected`.
    """
    code = subprocess.run(command, cwd=folder, check=False).returncode
    if code not in expected:
        raise TrainfleetError(f"`{' '.join(command)}` ended with exit code {code}")


def photograph(program: str, page: Path, height: int) -> bytes:
    """The first `height` pixels of a page, as PNG.

    Raises:
        TrainfleetError: the browser failed, or the picture is too large.
    """
    picture, profile = page.with_suffix(".png"), page.with_suffix(".profile")
    command = [program, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    # Chromium refuses to run as root inside its sandbox; the page is our own.
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += [
        f"--window-size={WIDTH},{height}",
        "--virtual-time-budget=10000",
        f"--screenshot={picture}",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode or not picture.exists():
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TrainfleetError("Chromium took no screenshot", [Problem(page.name, last)])
    data = picture.read_bytes()
    if len(data) > LARGEST:
        raise TrainfleetError(
            "a screenshot is too large",
            [Problem(picture.name, f"has {len(data)} bytes", f"at most {LARGEST}")],
        )
    return data


def main() -> int:
    """Take every screenshot. Returns the exit code."""
    argparse.ArgumentParser(
        prog="python -m tools.screenshots", description=(__doc__ or "").partition("\n\n")[0]
    ).parse_args()
    with tempfile.TemporaryDirectory(prefix="trainfleet-screenshots-", ignore_cleanup_errors=True) as work:
        try:
            program = browser()
            for name, (write_page, height) in PICTURES.items():
                write_whole(FOLDER / name, photograph(program, write_page(Path(work)), height))
                print(f"wrote {(FOLDER / name).relative_to(ROOT)}")
        except TrainfleetError as error:
            print_error(error)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
