"""A session fails and names the test when a test leaves something behind; a clean session passes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests import leaks, leaks_allowlist
from tests.conftest import ROOT

pytest_plugins = ("pytester",)

CONFTEST = """
from tests import leaks

leaks.SETTLE_S = 0.5

def pytest_configure(config):
    root = config.rootpath
    machine = [root / "machine" / name for name in ("mountinfo", "net", "netns")]
    leaks.register(config, leaks.Places(root, root / "home", *machine, clusters=True))
"""
IMPORTS = """
import os, subprocess, sys, tempfile, time
from pathlib import Path

def wait_for(file):
    while not file.exists() or not file.read_text():
        time.sleep(0.01)
    return file.read_text()
"""
MOUNTINFO = "26 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
LEAVES_NOTHING = """
def test_leaves_nothing(tmp_path):
    done = subprocess.Popen(["sleep", "600"])
    done.kill()
    done.wait()
    (tmp_path / "kept").write_text("pytest's own folders are fine")
    with tempfile.TemporaryDirectory():
        pass
"""
Session = Callable[..., pytest.RunResult]


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Run tests in a session of their own, with a checkout, a home directory and a machine made of files."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    root = pytester.path
    for folder in ("home/.kube", "machine/net/lo", "machine/netns", "home/.local/state/trainfleet/clusters"):
        (root / folder).mkdir(parents=True)
    (root / "home" / ".kube" / "config").write_text("apiVersion: v1\n")
    (root / "machine" / "mountinfo").write_text(MOUNTINFO)
    (root / ".gitignore").write_text("home/\nmachine/\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)

    def run(tests: str, *arguments: str) -> pytest.RunResult:
        (root / "conftest.py").write_text(CONFTEST)
        (root / "test_it.py").write_text(IMPORTS + tests)
        return pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *arguments, "test_it.py")

    return run


def lines(done: pytest.RunResult) -> list[str]:
    """What the session reports as left behind."""
    kinds = (
        leaks_allowlist.PROCESS,
        leaks_allowlist.TEMPORARY,
        leaks_allowlist.CHECKOUT,
        leaks_allowlist.HOME,
        leaks_allowlist.MOUNT,
        leaks_allowlist.INTERFACE,
        leaks_allowlist.NAMESPACE,
        leaks_allowlist.CLUSTER,
    )
    return [line for line in done.outlines if line.startswith(tuple(f"{kind} " for kind in kinds))]


IN_WORKERS = ("-n", "2")


@pytest.mark.parametrize("workers", [(), IN_WORKERS], ids=["in this process", "in workers"])
def test_a_session_that_leaves_nothing_passes(session: Session, workers: tuple[str, ...]) -> None:
    done = session(LEAVES_NOTHING, *workers)
    assert (done.ret, lines(done)) == (pytest.ExitCode.OK, [])


PROCESSES = {
    "a child": 'open(pid, "w").write(str(subprocess.Popen(["sleep", "600"]).pid))',
    "an orphan": """
    script = f"setsid sleep 600 & echo $! > {pid}"
    subprocess.run(["sh", "-c", script], stdout=subprocess.DEVNULL)
""",
    "an orphan in another environment": """
    script = f"cd / && setsid sleep 600 & echo $! > {pid}"
    own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run(["sh", "-c", script], env=own, stdout=subprocess.DEVNULL)
""",
    "a child in an empty environment": """
    process = subprocess.Popen(["/bin/sleep", "600"], env={}, cwd="/")
    Path(pid).write_text(str(process.pid))
""",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("start", "outcome", "workers"),
    [
        *((start, "pass", IN_WORKERS) for start in PROCESSES),
        ("a child", "pass", ()),
        ("an orphan", "assert False", ()),
    ],
)
def test_a_process_that_still_runs_fails_the_session_and_is_ended(
    session: Session, tmp_path: Path, start: str, outcome: str, workers: tuple[str, ...]
) -> None:
    pid, code = tmp_path / "pid", PROCESSES[start].strip()
    lines_of_test = [f"pid = {str(pid)!r}", code, "wait_for(Path(pid))", outcome]
    body = "\ndef test_leaks(tmp_path):\n" + "".join(f"    {line}\n" for line in lines_of_test)
    done = session(LEAVES_NOTHING + body, *workers)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    (line,) = lines(done)
    assert "sleep 600` (ended now)" in line
    number = int(pid.read_text())
    assert f"process {number} " in line
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    assert (
        "first seen in test_it.py::test_leaks" in line
        or "first seen in the test of folder test_leaks0" in line
    )


def test_a_process_that_is_ending_is_waited_for(session: Session) -> None:
    done = session('def test_ends():\n    subprocess.Popen(["sleep", "0.2"])\n')
    assert (done.ret, lines(done)) == (pytest.ExitCode.OK, [])


def test_a_fixture_that_ends_its_process_with_the_session_passes(session: Session) -> None:
    fixture = """
import pytest

@pytest.fixture(scope="session")
def server():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()

def test_one(server): ...

def test_two(server): ...
"""
    assert session(fixture).ret == pytest.ExitCode.OK


FILES = {
    "in the checkout": ('Path("left.json").touch()', "file in the checkout left.json"),
    "in the home directory": ('Path("home/left").touch()', "file in the home directory left"),
    "among credentials": ('Path("home/.kube/left").touch()', "file in the home directory .kube/left"),
    "changed credentials": (
        'Path("home/.kube/config").write_text("")',
        "file in the home directory .kube/config (changed)",
    ),
    "temporary": ('tempfile.mkstemp(prefix="left-")', "temporary file "),
    "in a temporary folder": ('subprocess.run(["mktemp", "-d"])', "temporary file "),
    "a mount": (
        'Path("machine/mountinfo").open("a").write("99 26 7:0 / /left\\\\040here rw - ext4 /dev/x rw\\n")',
        "mount /left here",
    ),
    "an interface": ('Path("machine/net/tf-left").mkdir()', "network interface tf-left"),
    "a namespace": ('Path("machine/netns/left").touch()', "network namespace left"),
    "a cluster": ('Path("home/.local/state/trainfleet/clusters/left").mkdir()', "cluster left"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("what", "workers"),
    [*((what, ()) for what in FILES), ("temporary", IN_WORKERS), ("in the checkout", IN_WORKERS)],
)
def test_what_a_test_does_not_remove_fails_the_session(
    session: Session, what: str, workers: tuple[str, ...]
) -> None:
    statement, shown = FILES[what]
    done = session(f"{LEAVES_NOTHING}\ndef test_leaks():\n    {statement}\n", *workers)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    reported = lines(done)
    assert [line[: len(shown)] for line in reported] == [shown]
    if shown == "temporary file ":
        path, _, test = reported[0].removeprefix(shown).partition(" (removed now), first seen in ")
        assert (Path(path).exists(), test) == (False, "test_it.py::test_leaks")


@pytest.mark.parametrize("workers", [(), IN_WORKERS], ids=["in this process", "in workers"])
def test_the_list_is_printed_after_failures_and_durations(session: Session, workers: tuple[str, ...]) -> None:
    body = "\ndef test_leaks():\n    Path('left.json').touch()\n    raise ValueError('seen above')\n"
    printed = session(body, "--durations", "3", "--durations-min", "0", *workers).outlines
    (leak,) = (number for number, line in enumerate(printed) if "left.json" in line and "file in" in line)
    others = [number for number, line in enumerate(printed) if re.match(r"E   |\d+\.\d\ds call", line)]
    assert len(others) == 2
    assert max(others) < leak


def test_what_tools_keep_and_developers_write_is_allowed(session: Session) -> None:
    folders = ["runs", ".hypothesis", ".venv", "a/__pycache__", ".mypy_cache"]
    made = "\n".join(
        f"    Path({each!r}).mkdir(parents=True); Path({each!r}, 'x').touch()" for each in folders
    )
    written = "    Path('new_module.py').touch()\n    Path('home/.cache').mkdir()\n"
    written += "    Path('machine/net/docker0').mkdir()"
    done = session(f"def test_keeps():\n{made}\n{written}\n")
    assert (done.ret, lines(done)) == (pytest.ExitCode.OK, [])


def test_the_check_can_be_turned_off_and_lists_nothing_when_tests_are_only_collected(
    session: Session,
) -> None:
    leaking = "def test_leaks():\n    Path('left.json').touch()\n"
    assert session(leaking, "-p", "no:leaks").ret == pytest.ExitCode.OK
    assert session(leaking, "--collect-only").ret == pytest.ExitCode.OK


def test_a_failed_session_keeps_its_exit_code(session: Session) -> None:
    done = session("def test_leaks():\n    Path('left.json').touch()\n    raise KeyboardInterrupt\n")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    assert lines(done) == ["file in the checkout left.json"]


def test_mount_points_are_read_as_the_kernel_writes_them() -> None:
    text = (
        MOUNTINFO
        + "36 26 98:0 /mnt1 /mnt/with\\040space rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
        + "40 26 0:31 / /mnt/twice rw - tmpfs tmpfs rw\n41 26 0:32 / /mnt/twice rw - tmpfs tmpfs rw\n"
    )
    assert leaks.mounts(text) == {"/": "26", "/mnt/with space": "36", "/mnt/twice": "40 41"}
    assert leaks.mounts("") == {}
    mounted_twice = leaks.added(
        {leaks_allowlist.MOUNT: {"/mnt/twice": "40"}}, {leaks_allowlist.MOUNT: leaks.mounts(text)}
    )
    assert [leak.name for leak in mounted_twice] == ["/", "/mnt/twice (changed)", "/mnt/with space"]


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="needs Linux")
def test_this_machine_is_read() -> None:
    seen = leaks.snapshot(leaks.Places(ROOT, clusters=True))
    assert "/" in seen[leaks_allowlist.MOUNT]
    assert "lo" in seen[leaks_allowlist.INTERFACE]
    assert leaks.added(seen, leaks.snapshot(leaks.Places(ROOT, clusters=True))) == []


def test_interfaces_are_the_names_in_a_folder(tmp_path: Path) -> None:
    for name in ("lo", "tf-left"):
        (tmp_path / name).mkdir()
    assert leaks.names_in(tmp_path) == {"lo": "", "tf-left": ""}
    assert leaks.names_in(tmp_path / "absent") == {}


def test_a_cluster_that_somebody_brings_up_meanwhile_belongs_to_a_session_only_if_it_starts_clusters(
    tmp_path: Path,
) -> None:
    (tmp_path / "net" / "tf-local").mkdir(parents=True)
    for clusters, expected in ((False, {}), (True, {"tf-local": ""})):
        seen = leaks.snapshot(
            leaks.Places(tmp_path, tmp_path, interfaces=tmp_path / "net", clusters=clusters)
        )
        assert seen[leaks_allowlist.INTERFACE] == expected
        assert (leaks_allowlist.CLUSTER in seen) is clusters


def test_every_exception_has_a_reason() -> None:
    assert all(each.reason for kind in leaks_allowlist.ALLOWED.values() for each in kind)


def test_this_session_is_checked(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin(leaks.NAME)
    assert os.environ[leaks.SESSION]
