"""The follower of a run by `ray up`: starts the machines, submits the run, reports it, and deletes the
machines.

NOTE: machines cost money until `ray down` has completed. Whatever fails here, `ray down` is the last thing
    that
runs, or the last thing that is reported.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.ray_up import processes
from trainfleet.training.launch.ray_up.cluster_yaml import cluster_files
from trainfleet.training.launch.ray_up.machines import cleanup_command
from trainfleet.training.launch.ray_up.messages import RayUpSpec
from trainfleet.training.launch.ray_up.processes import RAY, RETRY_S, TICK_S
from trainfleet.training.launch.remote.follower import (
    NoteLog,
    Stopped,
    detach_requested,
    event_fields,
    follow,
    print_line,
    stop_requested,
)
from trainfleet.training.launch.remote.log_stream import Line, Once, parse
from trainfleet.training.launch.remote.ray_job import (
    DASHBOARD_PORT,
    FILES_FOLDER,
    JOB_FILE,
    RECIPE_FILE,
    SUBMIT,
    stop_file,
)
from trainfleet.training.runtime.events import EventSink
from trainfleet.training.runtime.progress import duration

START_TRIES = 2
"""A busy machine may start Ray too slowly for Ray's own timeout."""
SUBMITTERS = 5
"""Processes that submit and follow the job, one after another, before its launcher leaves it alone."""
END_JOB_S = 30.0
"""How long a job may take to end, and Ray to answer: the tunnel to it may just have been opened."""
DOWN_TRIES = 3
DOWN_TIMEOUT_S = 600.0


class Follower:
    """One run on machines of its own."""

    def __init__(self, spec: RayUpSpec, sink: EventSink) -> None:
        self.spec, self.sink = spec, sink
        self.paths = cluster_files(Path(spec.file))
        self.note = NoteLog(sink)
        self.started = self.stepped = self.stop_sent = self.up = False
        self.head_up = False
        """Whether `ray up` succeeded, so that the head deletes machines that no run needs."""
        self.result: dict[str, Any] | None = None
        self.crashed = False
        self._began = time.monotonic()
        self._once = Once()
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()

    def run(self) -> int:
        """Follow the run to its end; the exit code."""
        try:
            self._start_machines()
            with processes.tunnel(self.spec.file, DASHBOARD_PORT) as address:
                code = self._follow_or_end(address)
            if code is None:
                self.spec.detached.send(self.sink)
                return 0
        except (Stopped, TrainfleetError):
            self.delete_machines()
            raise
        self.delete_machines()
        return code

    def _follow_or_end(self, address: str) -> int | None:
        """Follow the run as `_follow` does. If that is stopped, the job ends too: machines may outlive it."""
        try:
            return self._follow(address)
        except (Stopped, TrainfleetError):
            if self.spec.stays:
                try:
                    self.end_job(address)
                except TrainfleetError as error:
                    problem = error.problems[0]
                    self.sink.send("warning", text=f"{error.summary}: {problem.what}; {problem.fix}")
            raise

    def _start_machines(self) -> None:
        where = "hosts" if self.spec.hosts else f"machines on {self.spec.cloud}"
        for text in self.spec.paid_for:
            self.note(text)
        self.note(f"starting Ray on {where}: the head first, then {self.spec.nodes} for the workers")
        self.up = True  # from here on there may be machines to delete
        self.sink.send("admitted")
        for attempt in range(1, START_TRIES + 1):
            if (errors := self._ray_up()) is None:
                self.head_up = True
                break
            if attempt == START_TRIES:
                raise InputError("Ray could not start the head", [Problem("ray up", line) for line in errors])
            self.note(f"the head did not start ({errors[-1]}); trying once more")
        self.note("setting up: Ray starts the workers")

    def _ray_up(self) -> list[str] | None:
        """Run `ray up`; the errors that it printed, or None if it succeeded."""
        command = [*RAY, "up", "--yes", "--no-config-cache", self.spec.file]
        child = processes.start(command, stdout=subprocess.PIPE)
        tail = processes.Tail(child)
        try:
            while child.poll() is None:
                self._check_stop_and_time()
                time.sleep(TICK_S)
        finally:
            processes.end(child)
        errors = tail.errors()
        return None if child.returncode == 0 else errors or [f"exit code {child.returncode}"]

    def _environment(self, address: str) -> dict[str, str]:
        return {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.paths.token),
            "RAY_DASHBOARD_ADDRESS": address,
            "RAY_JOB_SUBMISSION_ID": self.spec.submission_id,
            FILES_FOLDER: str(self._submitter_files()),
            "PYTHONUNBUFFERED": "1",
        }

    def _submitter_files(self) -> Path:
        """The folder of the files that the submitter reads."""
        folder = self.paths.cluster.parent / "job"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(self.paths.recipe, folder / RECIPE_FILE)
        self.spec.submit.write(folder / JOB_FILE)
        return folder

    def submitter(self, address: str) -> subprocess.Popen[Any]:
        """The process that submits the job unless the head has it, and prints the job's output."""
        command = [sys.executable, "-m", SUBMIT]
        return processes.start(command, stdout=subprocess.PIPE, env=self._environment(address))

    def _submitter(self, address: str) -> subprocess.Popen[Any]:
        child = self.submitter(address)

        def read(stream: IO[str]) -> None:
            for text in stream:
                line = parse(text.rstrip("\n"))
                if self._once(line):
                    self._lines.put(line)

        assert child.stdout is not None
        threading.Thread(target=read, args=(child.stdout,), daemon=True, name="submitter").start()
        return child

    def _follow(self, address: str) -> int | None:
        """Follow the run to its end; None if it is left before.

        The submitter ends with 0 once Ray says that the job has ended. One that is lost says nothing of the
        run, which must not lose its machines with it.
        """
        for _ in range(SUBMITTERS):
            code = self._follow_submitter(address)
            if code is None:
                return None
            if code == 0 or self.result is not None or self._taken_down():
                break
            self.note(f"the process that submits and follows the job ended with {code}; starting it again")
        else:
            if self.started:
                self.sink.send("warning", text="the job cannot be followed from here; it continues")
                return None
        if self.result is None and not self.crashed:
            self.sink.send("crash", rank=0, error=self._why_failed(address), trace="")
        return 0 if self.result is not None else 1

    def _follow_submitter(self, address: str) -> int | None:
        """Follow the run with one submitter, to that one's end; its exit code, or None if the run is left."""
        child = self._submitter(address)
        try:
            while child.poll() is None and not self._taken_down():
                self._read_lines()
                # Not before Ray has the run: nobody else would submit it.
                if self.started and (self.spec.detach or detach_requested()):
                    return None
                self._check_stop_and_time(address)
                time.sleep(TICK_S)
        finally:
            processes.end(child)
        time.sleep(TICK_S)
        self._read_lines()
        return int(child.returncode)

    def _taken_down(self) -> bool:
        """Whether another process, such as `runs stop`, has deleted the machines, and then their files."""
        gone = not self.paths.cluster.exists()
        if gone:
            self.up = False
        return gone

    def _read_lines(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._handle(self._lines.get_nowait())

    def _handle(self, line: Line) -> None:
        if isinstance(line, str):
            print_line(line)
            return
        match line["kind"]:
            case "attempt":
                lost = "the head was lost; the run resumes from its newest checkpoint"
                self.note(lost if self.started else "Ray has the run")
                self.started = True
                return
            case "submitter":
                print_line(line["text"])
                return
            case "step":
                self.stepped = True
            case "result":
                self.result = line
            case "crash":
                self.crashed = True
            case "error":
                self.delete_machines()  # first, because the launcher ends this process once it has the error
        self.sink.send(line["kind"], **event_fields(line))

    def _check_stop_and_time(self, address: str = "") -> None:
        """Stop when it is requested, or when the machines do not come in time."""
        if stop_requested() and not self.stop_sent:
            if not self.stepped or not self.spec.saves:
                raise Stopped
            self.stop_sent = True
            if not self._ask_ranks(address):
                self.note("no machine could be asked to save; the run ends at its newest checkpoint")
                raise Stopped
        waited = time.monotonic() - self._began
        if not self.stepped and waited > self.spec.within_s:
            what = f"no step after {duration(waited)}; {self.note.last}"
            status = f"`ray exec {self.spec.file} 'ray status'` while it waits"
            fix = f"--within MINUTES waits longer; see Ray's messages in the log, or {status}"
            problem = Problem(self.spec.name, what, fix)
            raise TrainfleetError("the run did not get its machines in time", [problem])

    def _client(self, address: str) -> Any:
        environment = self._environment(address)
        os.environ.update({key: environment[key] for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")})
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(address)

    def _ask_ranks(self, address: str) -> bool:
        """Ask every rank to save and end; whether the request was submitted."""
        module = "trainfleet.training.launch.ray_up.stop_signal"
        try:
            self._client(address).submit_job(entrypoint=f"python -m {module} {stop_file(self.spec.launch)}")
        except Exception as error:  # noqa: BLE001 - the connection raises many kinds
            print_line(f"asking the ranks to save: {error}")
            return False
        return True

    def end_job(self, address: str) -> bool:
        """Have Ray end the run's job, and wait for it; whether there was one that had not ended.

        Raises:
            TrainfleetError: Ray does not answer, or the job does not end.
        """
        job, deadline = self.spec.submission_id, time.monotonic() + END_JOB_S
        stopped = False
        while True:
            try:
                client = self._client(address)
                stopped = bool(client.stop_job(job)) or stopped
                if client.get_job_status(job).is_terminal():
                    return stopped
                what = f"{job} has not ended"
            except Exception as error:  # noqa: BLE001 - the connection raises many kinds
                if f"{job} does not exist" in str(error):
                    return stopped
                what = next(iter(str(error).strip().splitlines()), type(error).__name__)
            if time.monotonic() > deadline:
                again = f"trainfleet runs stop {self.spec.submit.metadata['run']}"
                fix = f"`{again}` asks again; `ray down {self.spec.file}` deletes the machines"
                problem = Problem(self.spec.name, what, fix)
                raise TrainfleetError(f"the job {job} may still train on {self.spec.name}", [problem])
            time.sleep(RETRY_S)

    def _why_failed(self, address: str) -> str:
        if not self.up and not self.spec.stays:
            return "another command has taken the machines down"
        try:
            message = str(self._client(address).get_job_info(self.spec.submission_id).message or "")
        except Exception as error:  # noqa: BLE001
            message = str(error)
        lines = message.strip().splitlines()
        return lines[-1] if lines else "Ray reports no reason"

    def _cleanup(self) -> str:
        spec = self.spec
        stop = stop_file(spec.launch)
        return cleanup_command(spec.name, spec.hosts[1:], spec.ssh_user, docker=spec.docker, stop_files=stop)

    def delete_machines(self) -> None:
        """Delete the machines; on hosts stop Ray and remove its files. A long-lived cluster stays."""
        if not self.up:
            return
        self.up = False
        if self.spec.stays:
            if not self.head_up:  # what would delete them after --idle starts last
                what = (
                    "Ray may still run on the hosts"
                    if self.spec.hosts
                    else "machines may exist, and cost money"
                )
                self.sink.send("warning", text=f"{what}: ray down {self.spec.file}")
            return
        self.note(f"taking the machines down; by hand: ray down {self.spec.file}")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.spec.hosts:
            command = [*RAY, "exec", "--no-config-cache", self.spec.file, self._cleanup()]
            processes.run(command, DOWN_TIMEOUT_S)
        for _ in range(DOWN_TRIES):
            if processes.run([*RAY, "down", "--yes", self.spec.file], DOWN_TIMEOUT_S) == 0:
                shutil.rmtree(self.paths.cluster.parent, ignore_errors=True)
                if self.spec.hosts:
                    _delete_ray_state(self.spec.name)
                return
        what = f"`ray down {self.spec.file}` failed: machines may still exist, and cost money"
        self.sink.send("warning", text=what)


def _delete_ray_state(name: str) -> None:
    """Delete Ray's own state of a cluster of hosts."""
    with contextlib.suppress(ImportError):
        from ray.autoscaler._private.local.config import get_lock_path, get_state_path

        for path in (get_lock_path(name), get_state_path(name)):
            Path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(follow(RayUpSpec, lambda spec, sink: Follower(spec, sink).run()))
