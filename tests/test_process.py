"""The list of this machine's processes, and the signals of who supervises one."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

ID_USED_AGAIN = """
import pathlib, subprocess
from trainfleet.process import every_process

first = subprocess.Popen(["/bin/sleep", "600"])
assert first.pid in {each.pid for each in every_process()}
first.kill()
first.wait()
pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
second = subprocess.Popen(["/bin/sleep", "600"])
assert second.pid == first.pid, (first.pid, second.pid)
(found,) = [each for each in every_process() if each.pid == second.pid]
found.kill()
print(second.wait(30))
"""
SIGNAL_AFTER_AN_ANSWER = """
import os, signal
from trainfleet import process

seen = []

def on_signal(signals):
    seen.append(list(signals))
    if len(seen) > 1:
        return process.Reaction.END_NOW
    os.kill(os.getpid(), signal.SIGINT)
    return process.Reaction.CONTINUE

def first_signal():
    return None if seen else signal.SIGINT

with open(os.devnull, "wb") as log:
    process.supervise(
        ["/bin/sleep", "20"], dict(os.environ), log, tick=lambda: None, on_signal=on_signal, own_signal=first_signal
    )
print(len(seen))
"""
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def test_a_process_with_the_id_of_an_ended_one_is_another_process() -> None:
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("unshare cannot create a process namespace here")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", ID_USED_AGAIN],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "-9\n"), done.stderr


def test_a_signal_that_follows_an_answer_at_once_is_asked_about() -> None:
    command = [sys.executable, "-c", SIGNAL_AFTER_AN_ANSWER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
