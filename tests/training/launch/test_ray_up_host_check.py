"""The check of a run by `ray up` on its head, before Ray starts there. `ssh` is a stand-in that runs the command
on this machine; tests/cluster/test_clusters_mixed.py uses hosts with an SSH server.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.launches import wait_for
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch.ray_up.host_check import host_check
from trainfleet.training.launch.ray_up.launcher import RayUp
from trainfleet.training.launch.ray_up.options import RayUpOptions
from trainfleet.training.launch.ray_up.run_spec import RunSpec, resolve
from trainfleet.training.launch.remote.follower import Stopped
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.run_check import ProcessCheck, RunCheck, Unchecked
from trainfleet.training.recipe.load import load_recipe

SECRET = 'it\'s a "secret" $HOME'
STAND_IN_SSH = """#!/bin/bash
# A stand-in for ssh: writes down its arguments, and runs the last one on this machine.
printf '%s\\n' "$@" > {folder}/arguments
export HOME={folder}/home TMPDIR={folder}/tmp PATH={python}:$PATH
exec bash -c "${{@: -1}}"
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """A run on two hosts whose storage is a folder, which the stand-in can open."""
    for name in ("bin", "home", "tmp"):
        (tmp_path / name).mkdir()
    python = Path(sys.executable).parent
    (tmp_path / "home" / ".profile").write_text(f"export PATH={python}:$PATH\n")
    (tmp_path / "bin" / "ssh").write_text(STAND_IN_SSH.format(folder=tmp_path, python=python))
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PLANTED_KEY", SECRET)
    recipe = load_recipe("lm-tiny", ["storage=s3://runs/runs"])
    options = RayUpOptions(hosts=("10.0.0.5", "10.0.0.6"), secrets=("PLANTED_KEY",), ssh_user="me")
    target = Target(Request("lm-tiny", on="ray-up", options=options), (), tmp_path / "runs" / "lm-tiny")
    found = resolve(recipe, target, options, os.environ)
    return replace(found, recipe=load_recipe("lm-tiny", [f"storage={tmp_path / 'store'}"]))


def checked(check: RunCheck, **stopping: Any) -> tuple[list[str], list[str]]:
    """What a check reports, and what its process prints."""
    notes: list[str] = []
    printed: list[str] = []
    check.run(notes.append, printed.append, stopping.get("stopping", lambda: False))
    return notes, printed


def test_a_valid_run_is_validated_on_the_head_and_leaves_nothing(run: RunSpec, tmp_path: Path) -> None:
    notes, _ = checked(host_check(run, os.environ))
    assert notes[0] == "checking the workload"
    assert notes[1].startswith("the workload is valid")
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[-2:] == ["me@10.0.0.5", "exec bash --login -s"]
    assert SECRET not in "".join(arguments), "keys travel on the input"
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "store").exists()


def test_the_process_has_the_keys_of_the_run(run: RunSpec, tmp_path: Path) -> None:
    """The workload reads a key, as one would that downloads something."""
    (tmp_path / "mine.py").write_text(
        f"import os\nassert os.environ['PLANTED_KEY'] == {SECRET!r}, os.environ['PLANTED_KEY']\nraise SystemExit(7)\n"
    )
    check = host_check(replace(run, code=str(tmp_path)), os.environ)
    assert isinstance(check, ProcessCheck)
    check = replace(check, given=check.given.replace("name: lm\n", "name: mine:Any\n", 1))
    with pytest.raises(TrainfleetError, match="exit code 7"):
        checked(check)


def test_missing_data_is_the_error_of_the_head(run: RunSpec, tmp_path: Path) -> None:
    recipe = load_recipe("lm-tiny", [f"storage={tmp_path / 'store'}", "workload.data.source=nowhere"])
    with pytest.raises(InputError, match="nowhere"):
        checked(host_check(replace(run, recipe=recipe), os.environ))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_stop_ends_the_process_on_the_head(run: RunSpec, tmp_path: Path) -> None:
    def stopping() -> bool:
        return bool(list((tmp_path / "tmp").iterdir()))

    with pytest.raises(Stopped):
        checked(host_check(run, os.environ), stopping=stopping)
    wait_for(lambda: not list((tmp_path / "tmp").iterdir()), "the head removes its folder", 60)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hosts": ()}, "its machines do not exist yet"),
        ({"image": "me/it:1"}, "the image me/it:1 is only used by Ray"),
    ],
)
def test_where_nothing_can_check_it_a_line_says_so(run: RunSpec, changes: dict[str, Any], why: str) -> None:
    check = host_check(replace(run, **changes), os.environ)
    assert isinstance(check, Unchecked)
    (note,), _ = checked(check)
    assert note == f"the workload is not checked beforehand: {check.why}"
    assert why in note


def test_the_launcher_checks_on_its_head(run: RunSpec, tmp_path: Path) -> None:
    options = RayUpOptions(hosts=run.hosts, secrets=run.secrets, ssh_user="me")
    request = Request("lm-tiny", on="ray-up", options=options)
    recipe = load_recipe("lm-tiny", ["storage=s3://runs/runs"])
    (check,) = RayUp().run_checks(recipe, Target(request, (), tmp_path / "runs" / "lm-tiny"))
    assert check.where == "10.0.0.5"
