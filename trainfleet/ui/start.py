"""Starts the console: opens the port, prints the address, opens a browser, and serves until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path

from trainfleet.console import out, print_json
from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.find_run import RUNS
from trainfleet.training.stores import is_remote, parse
from trainfleet.ui.access import Access
from trainfleet.ui.app import Console
from trainfleet.ui.guard import Guard
from trainfleet.ui.run_store import RunStore
from trainfleet.ui.server import HOST, listen, server


@dataclass(frozen=True)
class Shown:
    """What the user asked to see: runs."""

    runs: list[str]

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
        if problems:
            raise InputError("nothing to show there", problems)
        return found or [str(RUNS)]


def start(shown: Shown, port: int | None, *, browser: bool, as_json: bool) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        InputError: a place does not exist, or the port is in use.
        KeyboardInterrupt: it was ended, and the port is closed.
    """
    console = Console(RunStore(shown.places()))
    opened = listen(port)
    number = opened.getsockname()[1]
    access = Access()
    address = f"http://{HOST}:{number}/"
    serving = server(Guard(console.app, access, number))
    if as_json:
        print_json({"url": f"{address}?token={access.token}", "port": number, "pid": os.getpid()})
    else:
        out().print(f"{address}?token={access.token}", markup=False, soft_wrap=True)
        out().print("Ctrl-C ends it. Anyone on this machine who has the address can read the page.")
        if browser and sys.stdout.isatty():
            link = f"{address}?token={access.opening}"
            threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    # SIGTERM ends it as Ctrl-C does: files with keys, which the Kubernetes client writes, are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with opened:
        serving.run(sockets=[opened])
