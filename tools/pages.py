"""The command blocks of README and docs: finds them, and runs a page's commands in their order, as written.

    python -m tools.pages README.md          # run the page's blocks marked `run: ci` in one shell
    python -m tools.pages README.md --list   # show each block and how it is run

A block is marked by a comment on the line before it:

    <!-- run: ci -->                run by `.ci/run` through this script
    <!-- run: ci, root -->          the same, only as root on Linux
    <!-- run: ci, exit 2 -->        the same; its last command must exit with this code
    <!-- run: FILE -->              run by another script or test of the checkout, which names the page
    <!-- not run: REASON -->        not run, and why
    <!-- file: PATH -->             not a command: the file that the commands after it use
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHELL = ("", "sh", "bash", "console")
BLOCK = re.compile(
    r"^(?:<!-- (?P<kind>run|not run|file): (?P<value>[^\n]*?) -->\n)?"
    r"(?P<fence>```+)(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    language: str
    body: str
    kind: str
    """`run`, `not run`, `file`, or empty without a marker."""
    value: str

    @property
    def is_command(self) -> bool:
        return self.language in SHELL and self.kind != "file"

    def runs_here(self) -> bool:
        """Whether this script runs the block on this machine."""
        words = [word.strip() for word in self.value.split(",")]
        return self.kind == "run" and words[0] == "ci" and ("root" not in words or _is_root())

    def exit_code(self) -> int:
        """The code that the block's last command must exit with."""
        found = re.search(r"\bexit (\d+)\b", self.value) if self.kind == "run" else None
        return int(found[1]) if found else 0


def _is_root() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(
            text.count("\n", 0, found.start("fence")) + 1,
            found["language"],
            found["body"],
            found["kind"] or "",
            found["value"] or "",
        )
        for found in BLOCK.finditer(text)
    ]


def pages() -> list[Path]:
    """The pages whose commands are checked."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def script(found: list[Block]) -> str:
    """One shell script with every block that runs here; each prints its commands as they start."""
    lines = ["set -eu -o pipefail", "set -v"]
    for block in found:
        if block.runs_here():
            lines.append(f": line {block.line}")
            if code := block.exit_code():
                lines += ["set +e", block.body.rstrip("\n"), f"test $? -eq {code} || exit 1", "set -e"]
            else:
                lines.append(block.body.rstrip("\n"))
    return "\n".join(lines) + "\n"


def run(page: Path) -> int:
    """Run a page's commands in a checkout. Files that the page has the reader save are removed afterwards."""
    found = blocks(page.read_text(encoding="utf-8"))
    saved = []
    for block in found:
        target = ROOT / block.value
        if block.kind == "file":
            if target.exists() and target.read_text(encoding="utf-8") != block.body:
                print(f"{block.value} exists and differs from the page; move it away", file=sys.stderr)
                return 2
            target.write_text(block.body, encoding="utf-8")
            saved.append(target)
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write(script(found))
            file.flush()
            return subprocess.run(
                ["bash", file.name], cwd=ROOT, stdin=subprocess.DEVNULL, check=False
            ).returncode
    finally:
        for target in saved:
            target.unlink(missing_ok=True)


def main() -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.pages", description="Run the commands of a page in order."
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("--list", action="store_true", help="show the blocks and how each is run")
    options = parser.parse_args()
    if not options.list:
        return run(options.page)
    for block in blocks(options.page.read_text(encoding="utf-8")):
        print(
            f"{options.page}:{block.line}: {block.language or 'text'}: "
            f"{block.kind or 'no marker'} {block.value}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
