"""Starts the console: opens the port, prints the address, opens a browser, and serves until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path

from trainfleet.console import out, print_json
from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal import last_results
from trainfleet.training.launch.find_run import RUNS
from trainfleet.training.launch.platform_outputs import load_platform
from trainfleet.training.stores import is_remote, parse
from trainfleet.ui.access import Access
from trainfleet.ui.app import Console
from trainfleet.ui.cluster_state import ClusterStates, outputs_files
from trainfleet.ui.guard import Guard
from trainfleet.ui.review_files import ReviewFiles
from trainfleet.ui.run_store import RunStore
from trainfleet.ui.server import HOST, listen, server
from trainfleet.ui.stack_specs import StackSpecs, project_here


@dataclass(frozen=True)
class Shown:
    """What the user asked to see: runs, platforms, and a folder of diffs."""

    runs: list[str]
    stacks: list[str] = field(default_factory=list)
    diffs: Path | None = None

    def places(self) -> list[str]:
        """The folders and URLs of runs.

        Raises:
            InputError: a folder does not exist, or a URL is not valid: all of those.
        """
        found, problems = [], []
        for each in dict.fromkeys(self.runs):
            place = each.removeprefix("file://")
            if is_remote(place):
                parse(place)
            elif not Path(place).is_dir():
                problems.append(Problem(f"--runs {each}", "is not a folder", "a folder that has run folders"))
            found.append(place)
        if self.diffs is not None and not self.diffs.is_dir():
            problems.append(Problem(f"--diffs {self.diffs}", "is not a folder", f"mkdir -p {self.diffs}"))
        for stack in self.stacks:
            # The outputs of a stack that is named are read later: that takes seconds.
            if stack.endswith(".json") or Path(stack).is_file():
                load_platform(stack)
        if problems:
            raise InputError("nothing to show there", problems)
        return found or [str(RUNS)]


def start(shown: Shown, port: int | None, *, browser: bool, as_json: bool) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        InputError: a place does not exist, or the port is in use.
        KeyboardInterrupt: it was ended, and the port is closed.
    """
    root = project_here()
    console = Console(
        RunStore(shown.places()),
        StackSpecs(root),
        ReviewFiles(shown.diffs or (last_results.folder(root) if root else None)),
        ClusterStates(list(dict.fromkeys(shown.stacks)), [] if shown.stacks else outputs_files(root)),
    )
    opened = listen(port)
    number = opened.getsockname()[1]
    access = Access()

    def ready() -> None:
        _announce(number, access, browser=browser, as_json=as_json)

    # SIGTERM ends it as Ctrl-C does: files with keys, which the Kubernetes client writes, are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with opened:
        server(Guard(console.app, access, number), ready).run(sockets=[opened])


def _announce(port: int, access: Access, *, browser: bool, as_json: bool) -> None:
    """Print the address with its token, and open it on a terminal."""
    address = f"http://{HOST}:{port}/"
    if as_json:
        print_json({"url": f"{address}?token={access.token}", "port": port, "pid": os.getpid()})
        return
    out().print(f"{address}?token={access.token}", markup=False, soft_wrap=True)
    out().print("Ctrl-C ends it. Anyone on this machine who has the address can read the page.")
    if browser and sys.stdout.isatty():
        link = f"{address}?token={access.opening}"
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
