"""The doctor on machines that lack something: it says what, for which command, and how to get it, and never
falls over.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from trainfleet.rehearsal.cli import doctor
from trainfleet.rehearsal.engine import build

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
MODULES = ("pulumi", "pulumi_aws", "torch", "ray", "grpc", "numpy")


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


def write_program(folder: Path, name: str, says: str, code: int = 0) -> Path:
    """A program that says one thing."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with one empty folder and an empty cache: no engine, no Go, no pip, no tools."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRAINFLEET_PULUMI", raising=False)
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "cache" / "trainfleet")
    without(monkeypatch, "pip")
    return programs


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    """Hide modules, as in an environment without them."""
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name in absent else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_nothing_is_imported_that_a_missing_package_would_break() -> None:
    code = "import sys, trainfleet.rehearsal.cli.doctor as d; d.examine(); print(sorted(set(sys.modules) & set(sys.argv[1].split(','))))"
    finished = subprocess.run(
        [sys.executable, "-c", code, ",".join(MODULES)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert finished.stdout.strip() == "[]"


def test_an_engine_on_the_path_is_asked_for_its_version(bare: Path) -> None:
    path = write_program(bare, "pulumi", "v3.219.1")
    check = doctor.engine()
    assert (check.status, check.detail) == ("here", f"3.219.1 at {path}")


@pytest.mark.parametrize(
    ("says", "code"), [("v3.199.9", 0), ("2.0.0", 0), ("no version", 0), ("v3.300.0", 1)]
)
def test_an_engine_that_is_old_or_does_not_answer_is_not_taken(bare: Path, says: str, code: int) -> None:
    write_program(bare, "pulumi", says, code)
    check = doctor.engine()
    assert check.status == "missing"
    assert "older than 3.200 or does not answer" in check.detail
    assert "Pulumi 3.200" in check.fix


def test_an_engine_that_is_named_is_taken_or_refused_by_its_name(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINFLEET_PULUMI", str(write_program(bare, "mine", "v3.230.0")))
    assert doctor.engine().detail.startswith("3.230.0 at ")
    monkeypatch.setenv("TRAINFLEET_PULUMI", str(bare / "not-there"))
    check = doctor.engine()
    assert check.status == "missing"
    assert "not-there" in check.detail
    assert "unset it" in check.fix


def test_an_engine_built_from_these_pins_is_found_and_one_from_others_is_not(bare: Path) -> None:
    for name, status in (("engine-of-other-pins", "missing"), (f"engine-{build.key()}", "here")):
        built = build.cache_folder() / name / "bin" / "pulumi"
        built.parent.mkdir(parents=True)
        built.touch()
        assert doctor.engine().status == status
    assert str(built) in doctor.engine().detail


@pytest.mark.parametrize(
    ("says", "status"),
    [
        ("go version go1.99.0 linux/amd64", "here"),
        ("go version go1.18 linux/amd64", "missing"),
        ("", "missing"),
    ],
)
def test_a_go_that_is_new_enough_can_build_an_engine(bare: Path, says: str, status: str) -> None:
    write_program(bare, "go", says)
    check = doctor.engine()
    assert check.status == status
    assert ("first rehearsal builds one" in check.detail) is (status == "here")


def test_pip_may_fetch_a_go_which_nobody_can_promise(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.delenv("TRAINFLEET_PULUMI", raising=False)
    monkeypatch.setattr(build, "cache_folder", lambda: bare / "cache")
    monkeypatch.setattr(doctor, "installed_module", lambda name: name == "pip")
    check = doctor.engine()
    assert check.status == "scarce"
    assert "if it reaches an index" in check.detail
    assert doctor.ready([check])["rehearse"]


def test_nothing_on_the_path_stops_the_rehearsal_only(bare: Path) -> None:
    checks = doctor.examine()
    works = doctor.ready(checks)
    assert not works["rehearse"]
    assert works["train"]
    assert works["spec"]
    absent = {check.name for check in checks if check.status == "missing"}
    assert absent == {"Pulumi engine", "GPU", "git", "kubectl", "helm"}


@pytest.mark.parametrize(
    ("module", "stopped"),
    [
        ("pulumi_policy", {"rehearse"}),
        ("torch", {"train", "launch", "report"}),
        ("ray", {"train", "launch", "report"}),
    ],
)
def test_a_missing_package_names_its_extra_and_stops_its_commands(
    monkeypatch: pytest.MonkeyPatch, module: str, stopped: set[str]
) -> None:
    without(monkeypatch, module)
    checks = [doctor.extra(name) for name in doctor.NEEDED_BY]
    (missing,) = [check for check in checks if check.status == "missing"]
    assert missing.detail == f"not here: {module}"
    assert f"pip install 'trainfleet[{'aws' if 'rehearse' in stopped else 'train'}]'" in missing.fix
    assert {command for command, works in doctor.ready(checks).items() if not works} == stopped


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 9), "missing"), ((3, 11, 0), "here"), ((3, 13, 4), "here"), ((3, 14, 0), "missing")],
)
def test_the_span_of_pythons(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], status: str
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    check = doctor.python()
    assert check.status == status
    assert doctor.ready([check])["machines"] is (status == "here")


def test_one_cpu_is_scarce_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    check = doctor.cpus()
    assert (check.status, check.detail) == ("scarce", "1")
    assert all(doctor.ready([check]).values())


def test_shared_memory_that_is_small_or_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.shared_memory(tmp_path / "none").status == "scarce"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(64 << 20, 0, 64 << 20))
    check = doctor.shared_memory(tmp_path)
    assert check.status == "scarce"
    assert "0.06 GiB" in check.detail
    assert "--shm-size" in check.fix


def test_disk_that_is_nearly_full_in_a_folder_that_is_not_there_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(doctor.GIB, 0, doctor.GIB // 2))
    check = doctor.space("disk", tmp_path / "a" / "b", doctor.GIB, ("train",))
    assert (check.status, check.fix) == ("scarce", "1 GiB free")
    assert "0.5 GiB free" in check.detail


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    check = doctor.space("disk", tmp_path, 1, ("train",))
    assert check.status == "scarce"
    assert "cannot be written" in check.detail


def test_gpus_as_their_driver_lists_them(bare: Path) -> None:
    assert doctor.gpu().status == "missing"
    write_program(bare, "nvidia-smi", "NVIDIA H200, 143771 MiB, 570.86.15")
    check = doctor.gpu()
    assert (check.status, check.detail) == ("here", "NVIDIA H200, 143771 MiB, 570.86.15")
    write_program(
        bare, "nvidia-smi", "NVIDIA-SMI has failed, because it could not, talk to the driver", code=9
    )
    assert doctor.gpu().status == "missing"


def test_a_program_that_hangs_is_given_up(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = "/bin/sh"
    monkeypatch.setattr(doctor, "SECONDS", 0.2)
    assert doctor.answer([shell, "-c", "read forever < /dev/zero; while :; do :; done"]) == ""
    assert doctor.answer([str(bare / "not-there")]) == ""


def test_the_command_ends_with_3_when_the_engine_is_out_of_reach(
    trainfleet: Trainfleet, tmp_path: Path
) -> None:
    finished = trainfleet("doctor", TRAINFLEET_PULUMI=str(tmp_path / "not-there"), PATH="")
    assert finished.returncode == 3, finished.stderr
    assert finished.stderr == ""
    assert "cannot work yet: rehearse" in finished.stdout


def test_the_document_names_every_command_and_every_check(trainfleet: Trainfleet) -> None:
    finished = trainfleet("doctor", "--json")
    document = json.loads(finished.stdout)
    assert list(document["ready"]) == list(doctor.EVERY)
    assert finished.returncode == (0 if document["ready"]["rehearse"] and document["ready"]["train"] else 3)
    assert {"Python", "Pulumi engine", "CPUs", "memory", "shared memory", "GPU", "git"} <= {
        check["name"] for check in document["checks"]
    }
    for check in document["checks"]:
        assert check["status"] in ("here", "scarce", "missing")
        assert check["fix"] or check["status"] == "here" or not check["needed"]
