"""The commands of a runbook, taken from its page in docs/runbooks and run as they are written there.

A block is run if the page marks it with `run: tests/cluster/test_runbooks.py`; a command in a sentence is run
too, if it calls kubectl or trainfleet. Names in capitals are replaced as the index of the runbooks says.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.pages import BLOCK, ROOT

FOLDER = ROOT / "docs" / "runbooks"
RUNNER = "tests/cluster/test_runbooks.py"
INLINE = re.compile(r"`((?:kubectl|trainfleet) [^`\n]+)`")
PLACEHOLDER = re.compile(r"\b(?<![\w-])[A-Z][A-Z_]{2,}\b(?![\w-])")
LIMIT_S = 180


def sections(name: str) -> dict[str, str]:
    """The sections of a page, by their heading."""
    parts = re.split(r"^## (.*)$", (FOLDER / f"{name}.md").read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(name: str, section: str) -> list[str]:
    """The commands of a section, in their order: one per line of a block, or the block if a line of it runs in
    the background.
    """
    text = sections(name)[section]
    found: list[tuple[int, str]] = []
    for block in BLOCK.finditer(text):
        if block["kind"] == "run" and block["value"] == RUNNER:
            body = block["body"].strip()
            lines = [body] if re.search(r"&$", body, re.M) else body.splitlines()
            found += [(block.start(), line) for line in lines if line]
    plain = BLOCK.sub(lambda block: " " * len(block[0]), text)
    found += [(inline.start(), inline[1]) for inline in INLINE.finditer(plain)]
    return [command for _, command in sorted(found, key=lambda each: each[0])]


@dataclass(frozen=True)
class Placeholder:
    """How the index of the runbooks says that a name in capitals is replaced."""

    labels: tuple[str, ...] = ()
    """Labels of the alert, of which the first that it has counts."""
    command: str = ""
    """Else a command that prints it."""


def placeholders() -> dict[str, Placeholder]:
    """The table of names in capitals in the index."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]+)` \| (.*) \|$", text, re.M)
    assert rows
    found = {}
    for name, source in rows:
        codes = re.findall(r"`([^`]+)`", source)
        shown = [code for code in codes if code.startswith("kubectl ")]
        found[name] = Placeholder(() if shown else tuple(codes), shown[0] if shown else "")
    return found


class Shell:
    """A shell of somebody who is on call: kubectl and trainfleet on PATH, the cluster's kubeconfig."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.environment, self.folder = dict(environment), folder

    def run(
        self, command: str, limit: float = LIMIT_S, checked: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command or a block. It fails if the command does, and if a query finds no object."""
        done = self._run(command, limit)
        if not checked:
            return done
        shown = f"{command}\nexit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, shown
        assert "No resources found" not in done.stderr, shown
        assert done.stdout.strip(), f"{command}\nprinted nothing"
        return done

    def until_it_says(self, command: str, expected: str, limit: float = LIMIT_S) -> str:
        """Run a command that does not end by itself until a line of its output matches, and end it."""
        lines: list[str] = []
        with self._started(command, stderr=subprocess.STDOUT) as process:
            timer = threading.Timer(limit, process.kill)
            timer.start()
            try:
                for line in process.stdout or ():
                    lines.append(line)
                    if re.search(expected, line):
                        return line
            finally:
                timer.cancel()
        raise AssertionError(f"{command}\nno line with {expected}\n{''.join(lines[-30:])}")

    def _run(self, command: str, limit: float) -> subprocess.CompletedProcess[str]:
        with self._started(command, stderr=subprocess.PIPE) as process:
            output, errors = process.communicate(timeout=limit)
            return subprocess.CompletedProcess(command, process.returncode, output, errors)

    @contextlib.contextmanager
    def _started(self, command: str, stderr: int) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            ["bash", "-c", command],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def filled(command: str, values: Mapping[str, str]) -> str:
    """The command with its names in capitals replaced.

    Raises:
        AssertionError: a name that the index does not explain.
    """
    names = set(PLACEHOLDER.findall(command))
    assert names <= values.keys(), f"{command}\nthe index does not say what {names - values.keys()} is"
    return PLACEHOLDER.sub(lambda found: values[found[0]], command)
