"""What a launch on several clusters records: which runs `runs stop` stops, and which continue when the same
command is given again. The launch processes are replaced.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.training.launch.fake_api import JOBS, FakeApi
from tests.training.launch.test_clusters_checks import here, launches, pods
from trainfleet.errors import InputError
from trainfleet.training.launch.clusters import group
from trainfleet.training.launch.clusters.checks import Launchable
from trainfleet.training.launch.clusters.group import GroupOutcome, start
from trainfleet.training.launch.clusters.state import STATE, folder_of, recorded, runs_of
from trainfleet.training.launch.clusters.summary import Member
from trainfleet.training.launch.request import Request
from trainfleet.training.runtime.run_lock import locked
from trainfleet.training.stores.lease import IN_PROGRESS


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(group, "_require_valid", _only_problems)


def _only_problems(launches: list[Launchable], problems: list[Any], view: Any) -> None:
    if problems:
        raise InputError("not every cluster can run this; nothing was started", problems)


class Ended:
    """Launch processes that end at once, with these statuses."""

    def __init__(self, ends: Mapping[str, str | tuple[str, str]]) -> None:
        self.ends, self.started, self.shown = ends, list[str](), list[tuple[str, str]]()

    def __call__(self, *_: Any) -> Ended:
        return self

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def log(self, member: Member) -> Iterator[Any]:
        with Path("/dev/null").open("wb") as log:
            yield log

    def show(self, member: Member, event: Mapping[str, Any]) -> None:
        self.shown.append((member.name, event["text"]))

    def start(self, member: Member, request: Request) -> None:
        self.started.append(member.name)
        end = self.ends[member.name]
        member.status, member.summary = (end, "") if isinstance(end, str) else end
        if member.status == "detached":
            member.document = {"how": [f"follow {member.name}"]}

    def poll(self) -> list[Member]:
        return []


Run = Callable[..., tuple[GroupOutcome, Ended]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def launch(*entries: Any, **ends: Any) -> tuple[GroupOutcome, Ended]:
        ended = Ended(ends)
        monkeypatch.setattr(group, "Processes", ended)
        return start("night", *launches(*entries), as_json=True), ended

    return launch


def left(name: str = "night") -> list[str]:
    return [each.name for each in runs_of(name)]


def train(api: FakeApi, name: str) -> None:
    """The run of a cluster trains."""
    api.objects[f"{JOBS}/tf-night-{name}"] = {
        "kind": "RayJob",
        "metadata": {"name": f"tf-night-{name}"},
        "status": {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"},
    }


def test_a_run_stays_recorded_when_others_of_its_group_are_launched_again(run: Run) -> None:
    run(here("aws"), here("gcp"), here("azure"), here("old"), aws="detached", gcp="failed", azure="failed", old="finished")  # fmt: skip
    outcome, _ = run(here("gcp"), here("azure"), gcp="finished", azure="detached")
    assert left() == ["night-azure", "night-aws"]
    assert [each["cluster"] for each in outcome.document["clusters"]] == ["gcp", "azure"]
    assert outcome.document["overall"]["clusters"] == 2
    run(here("aws"), here("gcp"), aws="finished", gcp="finished")
    assert left() == ["night-azure"]


def test_a_run_that_an_earlier_launch_left_training_is_left_alone(api: FakeApi, run: Run) -> None:
    run(pods("aws"), pods("gcp"), here("azure"), aws="detached", gcp="failed", azure="failed")
    train(api, "aws")
    outcome, ended = run(pods("aws"), pods("gcp"), here("azure"), gcp="finished", azure="finished")
    assert ended.started == ["gcp", "azure"]
    assert ended.shown == [("aws", "detached: it continues, and is left alone")]
    assert [(each.name, each.status) for each in outcome.members] == [
        ("aws", "detached"),
        ("gcp", "finished"),
        ("azure", "finished"),
    ]
    assert outcome.document["clusters"][0]["how"] == ["follow aws"]
    assert outcome.error is None
    assert left() == ["night-aws"]


def test_a_run_whose_launch_was_killed_is_left_alone_too(api: FakeApi, run: Run) -> None:
    folder_of("night").mkdir(parents=True)
    clusters = [{"cluster": "aws", "on": "kuberay", "run": "runs/night-aws", "status": "starting"}]
    (folder_of("night") / STATE).write_text(json.dumps({"clusters": clusters}))
    train(api, "aws")
    outcome, ended = run(pods("aws"), here("b"), b="finished")
    assert ended.started == ["b"]
    assert outcome.members[0].document["how"][-1] == "follow it  trainfleet runs attach night-aws"


def test_a_run_of_which_only_its_launch_finds_that_it_continues_has_not_failed(run: Run) -> None:
    run(here("gcp"), here("azure"), gcp="detached", azure="failed")
    outcome, _ = run(here("gcp"), here("azure"), gcp=("failed", IN_PROGRESS), azure="finished")
    assert outcome.error is None
    assert [(each["status"], each.get("error")) for each in outcome.document["clusters"]] == [
        ("detached", None),
        ("finished", None),
    ]


def test_a_run_that_another_launch_holds_is_still_an_error(api: FakeApi, run: Run, tmp_path: Path) -> None:
    train(api, "aws")
    with pytest.raises(InputError, match="nothing was started"):
        run(pods("aws"), here("b"), b="finished")
    assert not (tmp_path / "runs").exists()
    api.objects.clear()
    api.objects.update(FakeApi().objects)
    run(pods("aws"), here("b"), aws="detached", b="failed")
    train(api, "aws")
    with locked(Path("runs/night-aws"), fresh=False), pytest.raises(InputError, match="nothing was started"):
        run(pods("aws"), here("b"), b="finished")
    assert left() == ["night-aws", "night-b"]


def test_a_fresh_start_does_not_leave_an_earlier_run_alone(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pods("aws"), here("b"), aws="detached", b="failed")
    train(api, "aws")
    monkeypatch.setattr("trainfleet.training.runs.storage.RunStorage.require_empty", lambda _: None)
    found, names = launches(pods("aws"), here("b"))
    with pytest.raises(InputError, match="nothing was started"):
        start("night", [Request(**{**vars(each), "fresh": True}) for each in found], names, as_json=True)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"clusters": 3}', '{"clusters": {"a": {}}}', '{"clusters": [{"run": 3, "status": "x"}]}', '{"runs": []}', "\xff", None],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_named(text: str | None, run: Run) -> None:
    file = folder_of("night") / STATE
    if text is None:
        file.mkdir(parents=True)
    else:
        file.parent.mkdir(parents=True)
        file.write_bytes(text.encode("latin-1"))
    before = sorted(Path().rglob("*"))
    for read in (lambda: runs_of("night"), lambda: run(here("a"), here("b"), a="finished", b="finished")):
        with pytest.raises(InputError, match="cannot read the runs of a launch") as raised:
            read()
        assert [each.where for each in raised.value.problems] == [str(file)]
        assert "delete it" in raised.value.problems[0].fix
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("name", ["none", "a/b", "../a", "n" * 300])
def test_a_name_without_a_record_has_no_runs(name: str) -> None:
    assert recorded(name) == []


def test_a_run_without_metrics_is_in_the_report_of_its_group(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "night-a"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"name": "night-a", "status": "failed"}))
    outcome, _ = run(here("a"), here("never-started"), **{"a": "failed", "never-started": "failed"})
    assert "night-a" in Path(outcome.document["report"]).read_text()
    assert outcome.document["overall"]["failed"] == 2
    assert outcome.document["overall"]["tokens_per_second"] is None


@pytest.mark.parametrize("command", ["attach", "logs"])
def test_commands_for_one_run_name_those_of_a_group(
    command: str, run: Run, trainfleet: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    run(here("aws"), here("gcp"), aws="detached", gcp="finished")
    done = trainfleet("runs", command, "night", cwd=tmp_path, KUBECONFIG="/dev/null")
    assert done.returncode == 2
    assert done.stderr == (
        "error: which run?\n  night: is a launch on several clusters -> name one of its runs: night-aws, night-gcp\n"
    )
