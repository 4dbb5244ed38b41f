"""Fail a test session that leaves processes, files, mounts, network interfaces or namespaces behind.

`tests/conftest.py` registers one `LeakCheck` in every pytest process. A process that runs tests records the
test during which a child process or a temporary file first appeared. The controller compares the machine
before and after, once every worker of pytest-xdist has ended. Changes to tracked files are not compared,
because developers edit while tests run. `-p no:leaks` turns the check off.
"""

from __future__ import annotations

import contextlib
import multiprocessing.forkserver
import multiprocessing.util
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.leaks_allowlist import (
    CHECKOUT,
    CLUSTER,
    HOME,
    INTERFACE,
    MOUNT,
    NAMESPACE,
    PROCESS,
    TEMPORARY,
    allowed,
)
from trainfleet.process import every_process

SESSION = "TRAINFLEET_TEST_SESSION"
"""Set for every process of a session. A session inside a test appends its own part after a slash."""
CURRENT_TEST = "PYTEST_CURRENT_TEST"
"""Set by pytest: the test that was running when a process was started."""
NAME = "leaks"
SETTLE_S = 15.0
"""How long processes that are ending may take."""

CREDENTIALS: Mapping[str, tuple[str, ...]] = {
    ".aws": ("config", "credentials"),
    ".kube": ("config",),
    ".pulumi": ("credentials.json",),
    ".sky": ("config.yaml", "plugins.yaml"),
    ".ssh": ("authorized_keys", "config", "known_hosts"),
}
"""Folders of the home directory whose entries are compared, and the files among them whose content is."""


@dataclass(frozen=True)
class Places:
    """Where to look. `clusters`: whether the session may start clusters, so that a new one is its own."""

    checkout: Path
    home: Path = field(default_factory=Path.home)
    mountinfo: Path = Path("/proc/self/mountinfo")
    interfaces: Path = Path("/sys/class/net")
    namespaces: Path = Path("/run/netns")
    clusters: bool = False


@dataclass(frozen=True)
class Leak:
    """One thing that remained, and the test during which it first appeared, where that is known."""

    kind: str
    name: str
    test: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f", first seen in {self.test}" if self.test else "")


Entries = dict[str, str]
"""Names, each with a fingerprint of the content where content is compared."""


def mounts(mountinfo: str) -> Entries:
    """The mount points of /proc/PID/mountinfo (proc_pid_mountinfo(5)), each with the ids of its mounts."""
    found: dict[str, list[str]] = {}
    for row in mountinfo.splitlines():
        columns = row.split(" ")
        if len(columns) > 4:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), columns[4])
            found.setdefault(point, []).append(columns[0])
    return {point: " ".join(sorted(ids)) for point, ids in found.items()}


def names_in(folder: Path) -> Entries:
    """The names in a folder; none where it does not exist."""
    try:
        return dict.fromkeys((each.name for each in folder.iterdir()), "")
    except OSError:
        return {}


def checkout_files(root: Path) -> Entries:
    """What git does not track: untracked files, and ignored ones by their topmost folder."""
    command = [
        "git",
        "-C",
        str(root),
        "status",
        "--porcelain",
        "-z",
        "--untracked-files=all",
        "--ignored=matching",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return names_in(root)
    rows = done.stdout.split("\0")
    return {row[3:]: "" for row in rows if row[:2] in ("??", "!!")}


def home_files(home: Path) -> Entries:
    """The top of the home directory, folders with credentials, and what Trainfleet keeps between commands."""
    found = names_in(home)
    for folder, files in CREDENTIALS.items():
        found |= {f"{folder}/{name}": "" for name in names_in(home / folder)}
        found |= {
            f"{folder}/{name}": _stamp(home / folder / name)
            for name in files
            if (home / folder / name).exists()
        }
    for base in (".local/share/trainfleet", ".local/state/trainfleet", ".config/trainfleet"):
        for name in names_in(home / base):
            # The clusters are compared by themselves.
            below = names_in(home / base / name) if name != "clusters" else {}
            found |= {
                f"{base}/{each}": ""
                for each in (name, *(f"{name}/{each}" for each in below))
                if each != "clusters"
            }
    return found


def _stamp(file: Path) -> str:
    with contextlib.suppress(OSError):
        seen = file.stat()
        return f"{seen.st_size} {seen.st_mtime_ns}"
    return ""


def clusters(home: Path) -> Entries:
    """The clusters of `trainfleet cluster up`, by their state folders."""
    base = os.environ.get("XDG_STATE_HOME")
    return names_in((Path(base) if base else home / ".local" / "state") / "trainfleet" / "clusters")


def snapshot(places: Places) -> dict[str, Entries]:
    """What there is now, by kind."""
    try:
        mountinfo = places.mountinfo.read_text()
    except OSError:  # not Linux
        mountinfo = ""
    seen = {
        CHECKOUT: checkout_files(places.checkout),
        HOME: home_files(places.home),
        MOUNT: mounts(mountinfo),
        INTERFACE: names_in(places.interfaces),
        NAMESPACE: names_in(places.namespaces),
    }
    if places.clusters:
        return {**seen, CLUSTER: clusters(places.home)}
    # A cluster that somebody brings up meanwhile is not this session's.
    return {**seen, INTERFACE: {name: "" for name in seen[INTERFACE] if not name.startswith("tf-")}}


def added(before: Mapping[str, Entries], after: Mapping[str, Entries]) -> list[Leak]:
    """What is new or has changed, less what is allowed."""
    found = []
    for kind, entries in after.items():
        for name, fingerprint in sorted(entries.items()):
            known = before[kind].get(name)
            if known != fingerprint and not allowed(kind, name):
                found.append(Leak(kind, name if known is None else f"{name} (changed)"))
    return found


@dataclass(frozen=True)
class Child:
    """A process that a session started."""

    pid: int
    started: float
    command: str
    test: str = ""

    def end(self) -> None:
        """Kill it, unless its id belongs to another process by now."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) < 1:
                process.kill()


def children_left(session: str, folder: Path, seen: Iterable[Child], since: float) -> list[Child]:
    """The processes of a session that still run.

    The mark in the environment also finds processes whose parent has ended. Processes with another
    environment are found as children that were `seen`, or because they use `folder`. There, a process with a
    terminal is left out: it is somebody's shell, pager or editor.
    """
    known = {child.pid: child for child in seen}
    inside = re.compile(re.escape(str(folder)) + r"(?![\w-])(?:/popen-\w+)?(?:/([\w-]+))?")
    found = []
    for process in every_process():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error):
            started, arguments = process.create_time(), process.cmdline()
            if started < since - 1 or process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ()
            child = known.get(process.pid)
            ours = f"{environment.get(SESSION, '')}/".startswith(f"{session}/")
            ours = ours or (child is not None and abs(child.started - started) < 1)
            test = environment.get(CURRENT_TEST) or (child.test if child else "")
            if not ours and process.terminal() is None:
                named = map(inside.search, (*arguments, *environment.values(), process.cwd()))
                if match := next(filter(None, named), None):
                    ours, test = True, test or f"the test of folder {match.group(1)}"
            command = " ".join(arguments)[:200] or process.name()
            if ours and not allowed(PROCESS, command):
                found.append(Child(process.pid, started, command, test))
    return found


def _end_multiprocessing() -> None:
    """End what Python would end at exit, which is after the check: its fork server and temporary folders."""
    multiprocessing.forkserver._forkserver._stop()
    multiprocessing.util._run_finalizers()


class LeakCheck:
    """A pytest plugin; one in the controller, and one in each worker of pytest-xdist."""

    def __init__(self, config: pytest.Config, places: Places) -> None:
        self.config, self.places = config, places
        self.given: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.leaks: list[Leak] = []
        self.started = time.time()
        self.children: dict[int, Child] = {}
        self.first_seen: dict[str, str] = {}
        """The test during which a temporary file appeared; names start with the worker's folder."""

    @pytest.hookimpl(tryfirst=True)  # before pytest-xdist starts its workers
    def pytest_sessionstart(self) -> None:
        if self.given is None:
            self._begin()
        else:
            self.temporary = Path(
                self.given["leaks_temporary"], str(self.given["workerid"]).removeprefix("gw")
            )
        self.temporary.mkdir()
        os.environ["TMPDIR"] = str(self.temporary)
        tempfile.tempdir = None

    def _begin(self) -> None:
        # The folder of `tmp_path` is chosen before TMPDIR changes: sockets in it need short paths.
        self.base: Path = self.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self.before = snapshot(self.places)
        outer = os.environ.get(SESSION)
        self.session = f"{outer}/{secrets.token_hex(4)}" if outer else secrets.token_hex(8)
        os.environ[SESSION] = self.session
        root = Path(tempfile.gettempdir())
        for old in root.glob("tft[0-9]*"):  # of a session that was killed
            if not psutil.pid_exists(int(old.name[3:])) and old.stat().st_uid == os.getuid():
                shutil.rmtree(old, ignore_errors=True)
        self.folder = root / f"tft{os.getpid()}"
        self.folder.mkdir(mode=0o700)
        self.temporary = self.folder / "m"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["leaks_temporary"] = str(self.folder)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        result = yield
        self._record(item.nodeid)
        return result

    def _record(self, test: str) -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                known, started = self.children.get(process.pid), process.create_time()
                if known is None or abs(known.started - started) > 1:
                    self.children[process.pid] = Child(process.pid, started, "", test)
        for name in names_in(self.temporary):
            self.first_seen.setdefault(f"{self.temporary.name}/{name}", test)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker has recorded; one that crashed has sent nothing."""
        output = getattr(node, "workeroutput", {})
        self.children |= {
            pid: Child(pid, started, "", test) for pid, started, test in output.get("leaks_children", ())
        }
        self.first_seen |= output.get("leaks_first_seen", {})

    @pytest.hookimpl(trylast=True)  # in the controller: after pytest-xdist has ended its workers
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        _end_multiprocessing()
        if self.given is not None:
            output = self.config.workeroutput  # type: ignore[attr-defined]
            output["leaks_children"] = [
                (child.pid, child.started, child.test) for child in self.children.values()
            ]
            output["leaks_first_seen"] = self.first_seen
            return
        self.leaks = [*self._processes(), *self._temporary_files(), *self._changes()]
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.leaks and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _processes(self) -> list[Leak]:
        deadline = time.monotonic() + SETTLE_S
        while left := children_left(self.session, self.base, self.children.values(), self.started):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        for child in left:
            child.end()
        return [Leak(PROCESS, f"{child.pid} `{child.command}` (ended now)", child.test) for child in left]

    def _temporary_files(self) -> list[Leak]:
        found = [
            f"{each.name}/{name}" for each in sorted(self.folder.iterdir()) for name in sorted(names_in(each))
        ]
        left = [name for name in found if not allowed(TEMPORARY, name.partition("/")[2])]
        return [
            Leak(TEMPORARY, f"{self.folder / name} (removed now)", self.first_seen.get(name, ""))
            for name in left
        ]

    def _changes(self) -> list[Leak]:
        found = added(self.before, snapshot(self.places))
        return [leak for leak in found if not (self.places.checkout / leak.name).is_relative_to(self.base)]

    @pytest.hookimpl(trylast=True)  # at the end, which a shortened log keeps
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.leaks:
            terminalreporter.section("left behind by the tests", red=True)
            for leak in self.leaks:
                terminalreporter.line(str(leak))
            terminalreporter.line(
                "A test has to end and remove what it makes; exceptions are in tests/leaks_allowlist.py."
            )


def register(config: pytest.Config, places: Places) -> None:
    """Add the check to a session that runs tests; `-p no:leaks` blocks it."""
    if not config.option.collectonly:
        config.pluginmanager.register(LeakCheck(config, places), NAME)
