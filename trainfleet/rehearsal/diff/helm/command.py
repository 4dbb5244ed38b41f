"""Runs helm without a shell, with a time limit and a limit of its output."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainfleet.rehearsal.diff.helm.chart import NotRenderedError
from trainfleet.rehearsal.engine import isolation
from trainfleet.toolchain import kill_tree, spawn

RENDER_SECONDS = 60.0
PULL_SECONDS = 120.0
MOST_BYTES = 64 * 1024 * 1024
_ISOLATED = (
    "import os, runpy, sys; own = runpy.run_path(sys.argv[1]);"
    " own['hide_other_processes'](); own['without_network'](); os.execv(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True)
class Done:
    """How helm ended, and what it wrote."""

    code: int
    output: str
    error: str


def find_helm() -> str:
    """Return helm from PATH.

    Raises:
        NotRenderedError: it is missing.
    """
    if (found := shutil.which("helm")) is None:
        raise NotRenderedError("helm is not on PATH", "install helm 3 or newer")
    return found


def run_helm(arguments: Sequence[str], seconds: float, home: Path | None) -> Done:
    """Run helm.

    Args:
        arguments: what follows `helm`.
        seconds: it is killed after this time.
        home: the folder of a clean home, without plugins, settings and network; None: the user's own, with
            network.

    Raises:
        NotRenderedError: helm is not on PATH, takes too long, or writes too much.
    """
    command = [find_helm(), *arguments]
    environment = dict(os.environ)
    if home is not None:
        environment = clean_environment(home)
        if not isolation.unsupported():
            command = [sys.executable, "-I", "-S", "-c", _ISOLATED, str(isolation.__file__), *command]
    child = spawn(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, error = _read(child, time.monotonic() + seconds, f"helm {arguments[0]}", seconds)
    finally:
        kill_tree(child)
    return Done(child.returncode, output.decode(errors="replace"), error.decode(errors="replace"))


def clean_environment(home: Path) -> dict[str, str]:
    """Return the environment of a rendering: nothing of the user's settings, plugins and credentials."""
    folders = {
        f"HELM_{name}": str(home / name.lower())
        for name in ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "PLUGINS")
    }
    settings = {"HOME": str(home), "KUBECONFIG": os.devnull, "PATH": os.environ.get("PATH", os.defpath)}
    return {**settings, **folders, "TMPDIR": str(home), "LANG": "C.UTF-8"}


def _read(child: subprocess.Popen[bytes], until: float, what: str, seconds: float) -> tuple[bytes, bytes]:
    assert child.stdout is not None
    assert child.stderr is not None
    found: dict[IO[bytes], bytearray] = {child.stdout: bytearray(), child.stderr: bytearray()}
    with selectors.DefaultSelector() as selector, child.stdout, child.stderr:
        for stream in found:
            selector.register(stream, selectors.EVENT_READ, stream)
        while selector.get_map():
            if (left := until - time.monotonic()) <= 0:
                raise NotRenderedError(f"`{what}` takes longer than {seconds:.0f} s")
            for key, _ in selector.select(left):
                text = found[key.data]
                if chunk := os.read(key.fd, 1 << 16):
                    text += chunk
                else:
                    selector.unregister(key.fileobj)
                if len(text) > MOST_BYTES:
                    raise NotRenderedError(f"`{what}` writes more than {MOST_BYTES >> 20} MiB")
        try:
            child.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise NotRenderedError(f"`{what}` takes longer than {seconds:.0f} s") from None
        return bytes(found[child.stdout]), bytes(found[child.stderr])


def last_line(text: str) -> str:
    """Return the last line of helm's messages, without its prefix and short enough for a page."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((line for line in reversed(lines) if line.startswith("Error:")), lines[-1] if lines else "")
    line = line.removeprefix("Error: ")
    return line if len(line) <= 300 else f"{line[:299]}…"
