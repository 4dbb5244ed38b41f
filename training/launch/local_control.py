"""The control of runs on this machine (`--on local`, `--on torchrun`): through their folder and launcher."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from trainfleet.training.launch.control import ALREADY_ENDED, SAVED, RunControl
from trainfleet.training.launch.run_record import launcher_process
from trainfleet.training.runs.listing import RETRY
from trainfleet.training.runtime.run_lock import is_locked
from trainfleet.training.stores import Store, open_store

POLL_S = 0.2


class LocalControl(RunControl):
    """A run whose launcher and ranks are processes of one machine."""

    def stop(self, *, now: bool, within_s: float, report: Callable[[str], Any]) -> str:
        """Signal its launcher, which lets every rank save; on another machine, or as another user,
        ask through its storage.
        """
        launcher = self._launcher()
        if launcher is None:
            return super().stop(now=now, within_s=within_s, report=report)
        try:
            launcher.send_signal(signal.SIGTERM)
            if now:
                launcher.send_signal(signal.SIGTERM)
        except psutil.AccessDenied:  # of another user
            return super().stop(now=now, within_s=within_s, report=report)
        except psutil.NoSuchProcess:
            pass
        report("is asked to save and end" if not now else "is ended")
        if not _ended(launcher, within_s):
            # A second signal ends the launch at once.
            with contextlib.suppress(psutil.NoSuchProcess):
                launcher.send_signal(signal.SIGTERM)
            _ended(launcher, within_s)
            return f"did not end within {within_s:.0f} s, and was ended at its newest checkpoint"
        info = self.info()
        if now or info is None or info.state not in ("finished", "stopped"):
            return "ended at once"
        return SAVED if info.state == "stopped" else ALREADY_ENDED

    def store(self) -> Store:
        """Its folder where it was launched, whose rows are newer than those in its storage; else that."""
        return open_store(str(self._folder), RETRY) if self._folder else super().store()

    @property
    def _folder(self) -> Path | None:
        folder, here = str(self.ref.launch.get("folder", "")), self.ref.launch.get("host") == platform.node()
        return Path(folder) if folder and here and Path(folder).is_dir() else None

    def _launcher(self) -> psutil.Process | None:
        """The process of its launcher, if it runs on this machine and holds the run's lock."""
        launch = self.ref.launch
        held = self._folder is not None and is_locked(self._folder)
        if not held or launch.get("pid") in (None, os.getpid()):
            return None
        return launcher_process(launch)


def _ended(launcher: psutil.Process, within_s: float) -> bool:
    """Wait for the end of a process that is not a child of this one."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not launcher.is_running() or launcher.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(POLL_S)
    return False
