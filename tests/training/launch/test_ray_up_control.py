"""The control of a run by `ray up`: with its cluster file on the machine of the launch, and from others."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch import fake_ray_up
from tests.training.launch.test_ray_up_cluster_yaml import run_spec
from tests.training.launch.test_ray_up_follow import JOB, LAUNCH, Jobs
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch.control import ALREADY_ENDED, SAVED, RunRef
from trainfleet.training.launch.ray_up import control as module
from trainfleet.training.launch.ray_up import follow, processes
from trainfleet.training.launch.ray_up.control import RayUpControl
from trainfleet.training.launch.ray_up.launcher import _follower_spec
from trainfleet.training.launch.ray_up.messages import SPEC
from trainfleet.training.stores.lease import LEASE

OTHER = "another-machine"


@pytest.fixture
def controlled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayUpControl]:
    """Returns a function that makes the control of a run whose files are in `run`, with a fake of Ray."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "calls").touch()
    stand_in = [sys.executable, fake_ray_up.__file__, str(folder)]
    for each in (follow, processes):
        monkeypatch.setattr(each, "RAY", [*stand_in, "ray"])
    real = processes.start
    submit = [*stand_in, "submit"]

    def start(command: list[str], **given: Any) -> Any:
        with (folder / "started").open("a") as started:
            started.write(" ".join(command) + "\n")
        return real(submit if "-m" in command else command, **given)

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(follow.signal, "signal", lambda *_: None)
    home = tmp_path / "run"
    home.mkdir()

    def make(*, host: str = platform.node(), stays: bool = False) -> RayUpControl:
        spec = _follower_spec(run_spec("aws", image="my/trainfleet:1"), detach=False)
        spec = spec.model_copy(update={"stays": stays, "launch": LAUNCH})
        spec.write(Path(spec.file).with_name(SPEC))
        place = {"cluster": spec.name, "cloud": spec.cloud, "hosts": [], "file": spec.file}
        return RayUpControl(RunRef("lm-tiny", str(home), {"on": "ray-up", "host": host, "place": place}))

    return make


def file_of(control: RayUpControl) -> Path:
    return Path(str(control.ref.place["file"]))


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "fake" / "calls").read_text().splitlines()


def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that holds its lease, and saves and ends once it is asked to."""
    (tmp_path / "run" / LEASE).write_text("{}")
    (tmp_path / "run" / "run.json").write_text(json.dumps({"status": "running", "step": 4}))

    def ask(_: Any) -> bool:
        (tmp_path / "run" / LEASE).unlink()
        return True

    monkeypatch.setattr(module, "request_stop", ask)


def test_the_log_comes_through_the_head_where_the_run_was_launched(
    controlled: Callable[..., RayUpControl], tmp_path: Path
) -> None:
    for name in ("accept", "end"):
        (tmp_path / "fake" / name).touch()
    lines = [line for line in controlled().lines(follow=True) if isinstance(line, dict)]
    assert [line["kind"] for line in lines] == ["attempt", "result"]
    # The fake of `ray dashboard` may end before it has noted its call.
    assert "ray dashboard" in (tmp_path / "fake" / "started").read_text()


def test_from_another_machine_the_stored_rows_are_shown_and_what_is_missing_is_named(
    controlled: Callable[..., RayUpControl], tmp_path: Path
) -> None:
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 5}) + "\n")
    control = controlled(host=OTHER)
    note, *rows = [line for line in control.lines(follow=False) if isinstance(line, dict)]
    assert str(note["text"]).endswith(f"its log needs the cluster file {file_of(control)} on {OTHER}")
    assert [line["row"]["step"] for line in rows if "row" in line] == [5]
    assert calls(tmp_path) == []


def test_a_stop_saves_the_run_and_deletes_its_machines(
    controlled: Callable[..., RayUpControl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, monkeypatch)
    control = controlled()
    assert control.stop(now=False, within_s=30, report=lambda _: None) == SAVED
    assert calls(tmp_path) == ["ray down"]
    assert not file_of(control).parent.exists()


def test_a_stop_at_once_asks_nobody_and_keeps_the_output_of_ray_from_stdout(
    controlled: Callable[..., RayUpControl], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / LEASE).write_text("{}")
    assert controlled().stop(now=True, within_s=30, report=lambda _: None) == "ended at once"
    out, err = capfd.readouterr()
    assert (out, "Destroying cluster" in err) == ("", True)
    assert calls(tmp_path) == ["ray down"]


def test_machines_that_are_not_deleted_are_named_with_the_command(
    controlled: Callable[..., RayUpControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "run", lambda *_: 1)
    control = controlled()
    with pytest.raises(TrainfleetError, match=rf"(?s)may still have machines.*ray down {file_of(control)}"):
        control.stop(now=True, within_s=1, report=lambda _: None)


def test_machines_that_outlive_their_runs_stay(
    controlled: Callable[..., RayUpControl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, monkeypatch)
    control = controlled(stays=True)
    with pytest.raises(InputError, match="leave out --now"):
        control.stop(now=True, within_s=30, report=lambda _: None)
    assert control.stop(now=False, within_s=30, report=lambda _: None) == SAVED
    assert (calls(tmp_path), file_of(control).is_file()) == ([], True)


@pytest.mark.parametrize(
    ("jobs", "lease", "how"),
    [
        ([JOB], False, "ended at once"),
        ([], False, ALREADY_ENDED),
        ([JOB], True, "did not end within 0 s, and was ended at its newest checkpoint"),
    ],
    ids=["before its lease", "without a job", "does not save"],
)
def test_a_run_on_machines_that_stay_is_ended_by_ray_if_it_cannot_save(
    jobs: list[str],
    lease: bool,
    how: str,
    controlled: Callable[..., RayUpControl],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "RETRY_S", 0.01)
    if lease:
        (tmp_path / "run" / LEASE).write_text("{}")
    control, ray = controlled(stays=True), Jobs(*jobs)
    monkeypatch.setattr(follow.Follower, "_client", lambda self, address: ray)
    assert control.stop(now=False, within_s=0, report=lambda _: None) == how
    assert set(ray.stopped) == set(jobs)
    assert file_of(control).is_file()


def test_from_another_machine_a_stop_saves_the_run_and_names_who_deletes_the_machines(
    controlled: Callable[..., RayUpControl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, monkeypatch)
    monkeypatch.setattr("trainfleet.training.launch.control.request_stop", module.request_stop)
    control = controlled(host=OTHER)
    text = control.stop(now=False, within_s=30, report=lambda _: None)
    assert text.startswith(SAVED)
    assert text.endswith(f"`ray down {file_of(control)}` on {OTHER}")
    assert calls(tmp_path) == []


def test_from_another_machine_what_needs_the_cluster_file_is_refused_with_its_place(
    controlled: Callable[..., RayUpControl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, monkeypatch)
    control = controlled(host=OTHER)
    with pytest.raises(InputError, match="leave out --now"):
        control.stop(now=True, within_s=1, report=lambda _: None)
    with (
        pytest.raises(InputError, match=rf"the cluster file {file_of(control)}, which is on {OTHER}"),
        control.dashboard(0, lambda _: None),
    ):
        pass


def test_a_run_that_has_ended_is_not_asked(controlled: Callable[..., RayUpControl], tmp_path: Path) -> None:
    (tmp_path / "run" / "run.json").write_text(json.dumps({"status": "finished", "step": 9}))
    assert controlled(host=OTHER).stop(now=False, within_s=1, report=lambda _: None) == ALREADY_ENDED
    assert controlled().stop(now=False, within_s=1, report=lambda _: None) == ALREADY_ENDED
    assert calls(tmp_path) == ["ray down"]


def test_the_files_of_a_later_run_on_the_same_machines_are_not_those_of_this_one(
    controlled: Callable[..., RayUpControl],
) -> None:
    control = controlled(stays=True)
    assert control.follower is not None
    earlier = RayUpControl(replace(control.ref, name="earlier"))
    assert earlier.follower is None
