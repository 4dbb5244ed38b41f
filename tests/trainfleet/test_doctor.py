"""The doctor on machines where something is missing: it reports what, for which commands, and how to get it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from trainfleet import doctor, toolchain
from trainfleet.cli import COMMANDS
from trainfleet.command_needs import CLOUD, NEEDS
from trainfleet.infra.clouds import Cloud
from trainfleet.rehearsal.engine import build

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
MODULES = ("pulumi", "pulumi_aws", "torch", "ray", "grpc", "numpy")


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


def write_program(folder: Path, name: str, output: str, code: int = 0) -> Path:
    """A program that prints one line."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
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
    monkeypatch.setattr(toolchain, "cache_folder", lambda: tmp_path / "cache" / "trainfleet")
    without(monkeypatch, "pip")
    return programs


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    """Hide distributions, as in an environment without them."""
    version = importlib.metadata.version

    def find(name: str) -> str:
        if name in absent:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", find)


def stopped(checks: list[doctor.Check]) -> set[str]:
    """The commands that cannot work."""
    return {command for command, works in doctor.ready(checks).items() if not works}


def test_nothing_is_imported_that_a_missing_package_would_break() -> None:
    code = (
        "import sys, trainfleet.doctor as d; d.examine(); "
        "print(sorted(set(sys.modules) & set(sys.argv[1].split(','))))"
    )
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
    ("output", "code"), [("v3.199.9", 0), ("2.0.0", 0), ("no version", 0), ("v3.300.0", 1)]
)
def test_an_engine_that_is_old_or_does_not_answer_is_not_used(bare: Path, output: str, code: int) -> None:
    write_program(bare, "pulumi", output, code)
    check = doctor.engine()
    assert check.status == "missing"
    assert "older than 3.200 or does not answer" in check.detail
    assert "Pulumi 3.200" in check.fix


def test_a_named_engine_is_used_or_rejected_by_its_name(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINFLEET_PULUMI", str(write_program(bare, "mine", "v3.230.0")))
    assert doctor.engine().detail.startswith("3.230.0 at ")
    monkeypatch.setenv("TRAINFLEET_PULUMI", str(bare / "absent"))
    check = doctor.engine()
    assert check.status == "missing"
    assert "absent" in check.detail
    assert "unset it" in check.fix


def test_an_engine_built_from_these_pins_is_found_and_one_from_others_is_not(bare: Path) -> None:
    for name, status in (("engine-of-other-pins", "missing"), (f"engine-{build.key()}", "here")):
        built = toolchain.cache_folder() / name / "bin" / "pulumi"
        built.parent.mkdir(parents=True)
        built.touch()
        assert doctor.engine().status == status
    assert str(built) in doctor.engine().detail


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("go version go1.99.0 linux/amd64", "here"),
        ("go version go1.18 linux/amd64", "missing"),
        ("", "missing"),
    ],
)
def test_a_go_that_is_new_enough_can_build_an_engine(bare: Path, output: str, status: str) -> None:
    write_program(bare, "go", output)
    check = doctor.engine()
    assert check.status == status
    assert ("first rehearsal builds one" in check.detail) is (status == "here")


def test_pip_may_be_able_to_download_go(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.delenv("TRAINFLEET_PULUMI", raising=False)
    monkeypatch.setattr(toolchain, "cache_folder", lambda: bare / "cache")
    check = doctor.engine()
    assert check.status == "scarce"
    assert "if it can reach an index" in check.detail
    assert doctor.ready([check])["rehearse"]


def test_nothing_on_the_path_stops_the_rehearsal_only(bare: Path) -> None:
    checks = doctor.examine()
    works = doctor.ready(checks)
    needy = ("rehearse", "diff", "sky")
    assert [command for command in (*needy, "kubeconfig") if not works[command]] == [*needy]
    assert works["train"]
    assert works["spec"]
    absent = {check.name for check in checks if check.status == "missing"}
    programs = {name for name, _, _ in doctor.PROGRAMS}
    assert absent - {"local cluster"} == {"Pulumi engine", "GPU", *programs}


TRAINING = {"data", "train", "launch", "tune", "evaluate", "publish", "predict", "serve", "report"}


@pytest.mark.parametrize(
    ("package", "name", "expected"),
    [
        ("torch", "train", TRAINING),
        ("ray", "train", TRAINING),
        ("optuna", "tune", {"tune"}),
        ("skypilot", "sky", {"sky"}),
        ("transformers", "hf", set()),
        ("soundfile", "speech", set()),
        ("scikit-learn", "vision", set()),
    ],
)
def test_a_missing_package_names_its_extra_and_stops_its_commands(
    monkeypatch: pytest.MonkeyPatch, package: str, name: str, expected: set[str]
) -> None:
    without(monkeypatch, package)
    check = doctor.extra(name)
    assert (check.status, check.detail) == ("missing", f"not installed: {package}")
    assert f"pip install 'trainfleet[{name}]'" in check.fix
    assert stopped([check]) == expected


@pytest.mark.parametrize("only", ["aws", "gcp", "azure", "local"])
def test_the_packages_of_one_cloud_are_enough_to_rehearse_it(
    monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    sdks = {"aws": "pulumi-aws", "gcp": "pulumi-gcp", "azure": "pulumi-azure-native"}
    without(monkeypatch, *(package for name, package in sdks.items() if name != only))
    checks = [doctor.cloud(name) for name in doctor.clouds()]
    assert {check.key for check in checks if check.status == "here"} == {f"cloud-{only}", "cloud-local"}
    assert not stopped(checks)
    assert not any(check.needed for check in checks)


def test_no_cloud_can_be_rehearsed_without_the_pulumi_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pulumi")
    assert stopped([doctor.cloud(name) for name in doctor.clouds()]) == {"rehearse", "diff"}


def test_every_command_extra_and_cloud_is_covered() -> None:
    """A new command, extra or cloud must be added to the doctor's tables."""
    assert set(NEEDS) == set(COMMANDS)
    checks = {check.key: check for check in doctor.examine()}
    covered = {name.removeprefix("extra-") for name in checks if name.startswith("extra-")}
    provided = {*(importlib.metadata.metadata("trainfleet").get_all("Provides-Extra") or ())}
    assert covered | set(doctor.EXTRAS_WITHOUT_CHECK) | {str(cloud) for cloud in Cloud} >= provided
    assert all(checks[f"extra-{name}"].commands for name in covered)
    assert {f"cloud-{cloud}" for cloud in Cloud} <= set(checks)
    named = {part for needs in NEEDS.values() for part in (*needs.required, *needs.optional)}
    assert named - {CLOUD} <= set(checks)


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


def test_shared_memory_that_is_small_or_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.shared_memory(tmp_path / "none").status == "scarce"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(64 << 20, 0, 64 << 20))
    check = doctor.shared_memory(tmp_path)
    assert check.status == "scarce"
    assert "0.06 GiB" in check.detail
    assert "--shm-size" in check.fix


def test_a_nearly_full_disk_below_a_folder_that_does_not_exist_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(doctor.GIB, 0, doctor.GIB // 2))
    check = doctor.space("run-disk", "disk", tmp_path / "a" / "b", doctor.GIB)
    assert (check.status, check.fix) == ("scarce", "free up 1 GiB")
    assert "0.5 GiB free" in check.detail


def test_a_folder_that_is_not_writable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    check = doctor.space("run-disk", "disk", tmp_path, 1)
    assert check.status == "scarce"
    assert "is not writable" in check.detail


def test_gpus_as_their_driver_lists_them(bare: Path) -> None:
    assert doctor.gpu().status == "missing"
    write_program(bare, "nvidia-smi", "NVIDIA H200, 143771 MiB, 570.86.15")
    check = doctor.gpu()
    assert (check.status, check.detail) == ("here", "NVIDIA H200, 143771 MiB, 570.86.15")
    write_program(
        bare, "nvidia-smi", "NVIDIA-SMI has failed, because it could not, talk to the driver", code=9
    )
    assert doctor.gpu().status == "missing"


def test_a_program_that_hangs_is_abandoned(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = "/bin/sh"
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.2)
    assert doctor.answer([shell, "-c", "read forever < /dev/zero; while :; do :; done"]) == ""
    assert doctor.answer([str(bare / "absent")]) == ""


def test_the_exit_code_is_3_without_an_engine(trainfleet: Trainfleet, tmp_path: Path) -> None:
    finished = trainfleet("doctor", TRAINFLEET_PULUMI=str(tmp_path / "absent"), PATH="")
    assert finished.returncode == 3, finished.stderr
    assert finished.stderr == ""
    assert "commands that cannot work yet: rehearse" in finished.stdout


def test_the_document_names_every_command_and_every_check(trainfleet: Trainfleet) -> None:
    finished = trainfleet("doctor", "--json")
    document = json.loads(finished.stdout)
    assert list(document["ready"]) == list(COMMANDS)
    assert list(document["clouds"]) == [str(cloud) for cloud in Cloud]
    assert finished.returncode == (0 if document["ready"]["rehearse"] and document["ready"]["train"] else 3)
    assert {"Python", "Pulumi engine", "CPUs", "memory", "shared memory", "GPU", "git"} <= {
        check["name"] for check in document["checks"]
    }
    for check in document["checks"]:
        assert check["status"] in ("here", "scarce", "missing")
        assert check["fix"] or check["status"] == "here" or not check["needed"]
