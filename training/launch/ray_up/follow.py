"""The process behind `--on ray-up`: start the machines, hand the run to Ray, repeat what it says, and take
the machines down at its end.

Started by `trainfleet.training.launch.supervise` like any run's process, so that it is watched, asked to stop
and ended in the same way. Easy to get
wrong: machines cost money until `ray down` has come to its end, so whatever happens here, it is the last
thing done or the last thing said.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.kuberay.manifest import JOB_FILE, RECIPE_FILE, stop_file
from trainfleet.training.launch.kuberay.pods import DASHBOARD_PORT
from trainfleet.training.launch.ray_up.cluster_yaml import FOLDER, files
from trainfleet.training.launch.remote.follower import Stopped, follow
from trainfleet.training.launch.remote.log_stream import Line, Once, parse
from trainfleet.training.runtime.events import STOP_FILE, Sink
from trainfleet.training.runtime.progress import duration

TICK_S = 0.1
AGAIN_S = 2.0
START_TRIES = 2
"""A machine that is busy starts Ray too slowly for Ray's own patience."""
TAKE_DOWN_TRIES = 3
DOWN_LIMIT_S = 600.0
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


class Follower:
    """One run on machines of its own."""

    def __init__(self, spec: dict[str, Any], sink: Sink) -> None:
        self.spec, self.sink = spec, sink
        self.beside = files(Path(spec["file"]))
        self.started = self.stepped = self.asked = self.up = False
        self.result: dict[str, Any] | None = None
        self.crashed = False
        self._began = time.monotonic()
        self._noted = ""
        self._once = Once()
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()

    def run(self) -> int:
        """Follow the run to its end; the exit code."""
        try:
            self._start_machines()
            with self._tunnel() as address:
                if self.spec["detach"]:
                    self._hand_over(address)
                    self.sink.send("detached", **self.spec["detached"])
                    return 0
                code = self._follow(address)
        except (Stopped, TrainfleetError):
            self._take_down()
            raise
        self._take_down()
        return code

    def note(self, text: str) -> None:
        """A line that the user sees, once."""
        if text and text != self._noted:
            self._noted = text
            self.sink.send("note", text=text)

    def _start_machines(self) -> None:
        where = "hosts" if self.spec["hosts"] else f"machines on {self.spec['cloud']}"
        self.note(f"starting Ray on {where}: the head first, then {self.spec['nodes']} for the workers")
        self.up = True  # from here on there may be something to take down
        for attempt in range(1, START_TRIES + 1):
            if (said := self._up()) is None:
                break
            if attempt == START_TRIES:
                raise InputError("Ray could not start the head", [Problem("ray up", line) for line in said])
            self.note(f"the head did not start ({said[-1]}); trying once more")
        self.note("setting up: Ray starts the workers")

    def _up(self) -> list[str] | None:
        """Let Ray's launcher start the head; what it complains of, or nothing."""
        child = self._child(
            [*RAY, "up", "--yes", "--no-config-cache", self.spec["file"]], stdout=subprocess.PIPE
        )
        last = _Tail(child)
        try:
            while child.poll() is None:
                self._look()
                time.sleep(TICK_S)
        finally:
            _end(child)
        last.thread.join(10)
        return None if child.returncode == 0 else last.complaints() or [f"exit code {child.returncode}"]

    @contextlib.contextmanager
    def _tunnel(self) -> Iterator[str]:
        """The head's dashboard on a port of this machine, by ssh, opened again when it breaks."""
        port = _free_port()
        over = threading.Event()

        def keep() -> None:
            while not over.is_set():
                command = [
                    *RAY,
                    "dashboard",
                    "--no-config-cache",
                    "--port",
                    str(port),
                    "--remote-port",
                    str(DASHBOARD_PORT),
                    self.spec["file"],
                ]
                child = self._child(command, stdout=subprocess.DEVNULL)
                while child.poll() is None and not over.wait(TICK_S):
                    pass
                _end(child)
                over.wait(AGAIN_S)

        thread = threading.Thread(target=keep, daemon=True, name="tunnel")
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            over.set()
            thread.join(30)

    def _environment(self, address: str) -> dict[str, str]:
        return {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.beside.token),
            "RAY_DASHBOARD_ADDRESS": address,
            "RAY_JOB_SUBMISSION_ID": f"{self.spec['job']}-{self.spec['launch'][:8]}"
            if self.spec["stays"]
            else self.spec["job"],
            "TRAINFLEET_FILES": str(self._files()),
            "PYTHONUNBUFFERED": "1",
        }

    def _files(self) -> Path:
        """What the submitter reads: the same as on Kubernetes."""
        folder = self.beside.cluster.parent / "job"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(self.beside.recipe, folder / RECIPE_FILE)
        (folder / JOB_FILE).write_text(json.dumps(self.spec["submit"]), encoding="utf-8")
        return folder

    def _hand_over(self, address: str) -> None:
        """Until Ray has the job."""
        child = self._submitter(address)
        try:
            while not self.started:
                self._hear()
                self._look()
                if child.poll() is not None and not self.started:
                    raise TrainfleetError(
                        "the run could not be handed to Ray",
                        [Problem(str(self.beside.cluster), "ray dashboard says more")],
                    )
                time.sleep(TICK_S)
        finally:
            _end(child)

    def _submitter(self, address: str) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", "trainfleet.training.launch.kuberay.submit"]
        child = self._child(command, stdout=subprocess.PIPE, env=self._environment(address))

        def read(stream: IO[str]) -> None:
            for text in stream:
                line = parse(text.rstrip("\n"))
                if self._once(line):
                    self._lines.put(line)

        assert child.stdout is not None
        threading.Thread(target=read, args=(child.stdout,), daemon=True, name="submitter").start()
        return child

    def _follow(self, address: str) -> int:
        child = self._submitter(address)
        try:
            while child.poll() is None:
                self._hear()
                self._look(address)
                time.sleep(TICK_S)
        finally:
            _end(child)
        time.sleep(TICK_S)
        self._hear()
        if self.result is None and not self.crashed:
            self.sink.send("crash", rank=0, error=self._why_failed(address), trace="")
        return 0 if self.result is not None else 1

    def _hear(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                line = self._lines.get_nowait()
                if isinstance(line, str):
                    _say(line)
                    continue
                match line["kind"]:
                    case "attempt":
                        self.note(
                            "the head was lost; the run starts again from its newest checkpoint"
                            if self.started
                            else "the run is with Ray"
                        )
                        self.started = True
                        continue
                    case "submitter":
                        _say(line["text"])
                        continue
                    case "step":
                        self.stepped = True
                    case "result":
                        self.result = line
                    case "crash":
                        self.crashed = True
                    case "error":
                        self._take_down()  # before it is told, since telling ends this process
                self.sink.send(line["kind"], **{key: value for key, value in line.items() if key != "kind"})

    def _look(self, address: str = "") -> None:
        """Stop when it is asked for, or when the machines do not come in time."""
        if os.path.exists(os.environ.get(STOP_FILE) or "") and not self.asked:  # noqa: PTH110 - asked often
            if not self.stepped:
                raise Stopped
            self.asked = True
            if not self._ask_ranks(address):
                self.note("no machine could be asked to save; the run is ended with its newest checkpoint")
                raise Stopped
        waited = time.monotonic() - self._began
        if not self.stepped and waited > self.spec["within_s"]:
            what = f"no step after {duration(waited)}; {self._noted}"
            fix = f"--within MINUTES waits longer; the log has Ray's own words, and while it waits `ray exec {self.spec['file']} 'ray status'`"
            raise TrainfleetError(
                "the run did not get its machines in time", [Problem(self.spec["name"], what, fix)]
            )

    def _client(self, address: str) -> Any:
        environment = self._environment(address)
        os.environ.update({key: environment[key] for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")})
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(address)

    def _ask_ranks(self, address: str) -> bool:
        """Have every rank find the file that asks it to save and end."""
        try:
            self._client(address).submit_job(
                entrypoint=f"python -m trainfleet.training.launch.ray_up.stop_signal {stop_file(self.spec['launch'])}"
            )
        except Exception as error:  # noqa: BLE001 - whatever its connection did
            _say(f"asking the ranks to save: {error}")
            return False
        return True

    def _why_failed(self, address: str) -> str:
        try:
            said = (
                str(self._client(address).get_job_info(self.spec["job"]).message or "").strip().splitlines()
            )
        except Exception as error:  # noqa: BLE001
            said = [str(error)]
        return said[-1] if said else "Ray says no more"

    def _take_down(self) -> None:
        """Give the machines back, or on hosts end Ray and remove what was copied there. A cluster that is to
        stay, stays.
        """
        if not self.up or self.spec["stays"]:
            return
        self.up = False
        self.note(f"taking the machines down; by hand: ray down {self.spec['file']}")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.spec["hosts"]:
            self._quietly([*RAY, "exec", "--no-config-cache", self.spec["file"], sweep(self.spec)])
        for _ in range(TAKE_DOWN_TRIES):
            if self._quietly([*RAY, "down", "--yes", self.spec["file"]]) == 0:
                shutil.rmtree(self.beside.cluster.parent, ignore_errors=True)
                if self.spec["hosts"]:
                    _forget(self.spec["name"])
                return
        what = f"`ray down {self.spec['file']}` did not end well: machines may still be there, and cost"
        self.sink.send("warning", text=what)

    def _quietly(self, command: Sequence[str]) -> int | None:
        child = self._child(command, stdout=None)
        try:
            return child.wait(DOWN_LIMIT_S)
        except subprocess.TimeoutExpired:
            _end(child)
            return None

    def _child(
        self, command: Sequence[str], *, stdout: int | None, env: dict[str, str] | None = None
    ) -> subprocess.Popen[Any]:
        quiet = {**(env or os.environ), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT, env=quiet, text=True
        )


class _Tail:
    """Hands a program's words on, and remembers the last of them."""

    def __init__(self, child: subprocess.Popen[Any]) -> None:
        self._kept: list[str] = []
        assert child.stdout is not None
        self.thread = threading.Thread(target=self._read, args=(child.stdout,), daemon=True)
        self.thread.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            _say(line.rstrip("\n"))
            self._kept = [*self._kept[-40:], line.strip()]

    def complaints(self) -> list[str]:
        """What it said of its failure, at most four lines."""
        signs = (
            "error",
            "lacks",
            "denied",
            "refused",
            "not found",
            "failed",
            "unreachable",
            "no route",
            "timed out",
            "could not",
            "cannot",
        )
        return [line for line in self._kept if any(sign in line.lower() for sign in signs)][-4:]


def sweep(spec: dict[str, Any]) -> str:
    """What is run on the head of hosts before they are given back: Ray ends everywhere, the head first, for
    it would start the workers again.
    """
    ours = (
        f"~/{FOLDER} ~/ray_bootstrap_config.yaml /tmp/trainfleet-{spec['name']} {stop_file(spec['launch'])}"
    )
    remove = f"rm -rf {ours}; rmdir --ignore-fail-on-non-empty ~/{FOLDER.partition('/')[0]}"
    options = (
        "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 -o LogLevel=ERROR"
    )
    key = "$(test -f ~/ray_bootstrap_key.pem && echo -i ~/ray_bootstrap_key.pem)"
    stop = "true" if spec["docker"] else "ray stop --force"
    workers = " ".join(spec["hosts"][1:])
    there = f"bash --login -i -c '{stop}; {remove}'"
    each = f'for host in {workers}; do ssh {options} {key} {spec["ssh_user"]}@$host "{there}"; done'
    return f"{stop}; {each}; rm -f ~/ray_bootstrap_key.pem; {remove}"


def _forget(name: str) -> None:
    """Ray's own notes of a cluster of hosts."""
    with contextlib.suppress(ImportError):
        from ray.autoscaler._private.local.config import get_lock_path, get_state_path

        for path in (get_lock_path(name), get_state_path(name)):
            Path(path).unlink(missing_ok=True)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end(child: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(follow(lambda spec, sink: Follower(spec, sink).run()))
