"""Runs on the head of a Ray cluster, and deletes its machines when no run has needed them for some time.

A launcher deletes the machines of its run itself. This process does so where none is left: after a detached
run, a killed launcher, a lost laptop. `head_start_ray_commands` start it; it needs no launcher, and uses the
identity with which the head creates workers.

    python -m trainfleet.training.launch.ray_up.idle_watch --idle-minutes 20
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainfleet.training.launch.ray_up import machines
from trainfleet.training.launch.remote.ray_job import DASHBOARD_PORT

SESSION = Path("/tmp/ray/session_latest")
"""Ray's link to the folder of its newest session on this machine."""
POLL_S = 15.0
END_POLL_S = 1.0
"""How often it looks whether a launcher has cleaned up, which leaves nothing but this process."""
RETRY_S = 60.0
DRIVERS = ("trainfleet.training.launch.remote.entry", "trainfleet.training.run")
"""In the command line of the driver of a run."""


@dataclass
class Watch:
    """What a head does about its machines, from one look at its jobs to the next. Times are in seconds."""

    idle_s: float
    """How long no run may need the machines before they are deleted."""
    release_workers: Callable[[], None] | None
    """Lets the workers go after the end of a run; None where they stay."""
    delete: Callable[[], None]
    needed_at: float
    """When a run last needed the machines; at first, when the head started."""
    retry_at: float = 0.0
    _had_run: bool = False

    def look(self, now: float, *, needed: bool) -> bool:
        """Act on whether a run needs the machines now; returns whether they were deleted.

        NOTE: an error leaves machines that cost money, so both actions are tried again.
        """
        if needed:
            self.needed_at, self._had_run = now, True
            return False
        if now < self.retry_at:
            return False
        try:
            if now - self.needed_at >= self.idle_s:
                _print(f"no run for {round(now - self.needed_at)} s: deleting the machines")
                self.delete()
                return True
            if self._had_run and self.release_workers is not None:
                _print("the run has ended: the workers may go")
                self.release_workers()
                self._had_run = False
        except Exception as error:  # noqa: BLE001 - each cloud's client raises its own
            self.retry_at = now + RETRY_S
            _print(f"failed, next attempt in {round(RETRY_S)} s: {type(error).__name__}: {error}")
        return False


def needs_machines(address: str) -> bool:
    """Whether a job or another driver is pending or running on this head.

    A head whose job server does not answer is asked for the driver's process: a run may continue without it.
    """
    try:
        from ray.job_submission import JobSubmissionClient

        return any(not job.status.is_terminal() for job in JobSubmissionClient(address).list_jobs())
    except Exception as error:  # noqa: BLE001 - the connection raises many kinds
        _print(f"the job server does not answer: {type(error).__name__}")
        return bool(drivers())


def drivers() -> list[int]:
    """The ids of the processes of this machine that are the driver of a run."""
    import psutil

    return [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if any(driver in " ".join(each.info["cmdline"] or []) for driver in DRIVERS)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Watch until the machines are deleted, Ray is started again, or a launcher has cleaned up."""
    parser = argparse.ArgumentParser(prog="idle_watch", description="Deletes the machines that no run needs.")
    parser.add_argument("--idle-minutes", type=float, required=True)
    parser.add_argument("--keep-workers", action="store_true", help="until all machines are deleted")
    parser.add_argument("--config", type=Path, default=Path("~/ray_bootstrap_config.yaml"))
    parser.add_argument("--token", type=Path, required=True, help="its removal ends this process")
    given = parser.parse_args(arguments)
    config, token = given.config.expanduser(), given.token.expanduser()
    session, version = SESSION.resolve(), config.stat().st_mtime_ns

    def release_workers() -> None:
        nonlocal version
        machines.release_workers(config)
        version = config.stat().st_mtime_ns

    def is_mine() -> bool:
        """Whether no launch has started Ray again, is about to (Ray copies the file first), or cleaned up."""
        try:
            same = config.stat().st_mtime_ns == version
        except FileNotFoundError:
            return False
        return same and token.exists() and SESSION.resolve() == session

    watch = Watch(
        idle_s=given.idle_minutes * 60,
        release_workers=None if given.keep_workers else release_workers,
        delete=lambda: machines.delete(config),
        needed_at=time.monotonic(),
    )
    _print(f"the machines are deleted {given.idle_minutes:g} minutes after the last run")
    while is_mine():
        if watch.look(time.monotonic(), needed=needs_machines(f"http://127.0.0.1:{DASHBOARD_PORT}")):
            break
        next_look = time.monotonic() + POLL_S
        while is_mine() and time.monotonic() < next_look:
            time.sleep(END_POLL_S)
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
