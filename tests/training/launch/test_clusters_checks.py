"""The checks of `--clusters` before the first run starts. The clusters of KubeRay are a loopback server, the
others this machine; tests/cluster/test_clusters.py uses a real cluster.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import PODS, FakeApi, owned_by
from tests.training.user_code import clean_imports, write_workload
from trainfleet.errors import InputError, Interrupted
from trainfleet.training.launch.clusters.checks import Checks, prepare_all
from trainfleet.training.launch.clusters.display import QuietGroup
from trainfleet.training.launch.clusters.entries import ClusterEntry, requests
from trainfleet.training.launch.clusters.group import start
from trainfleet.training.launch.clusters.summary import Member
from trainfleet.training.launch.options import KubernetesOptions
from trainfleet.training.launch.remote import workload_check as pod_checks
from trainfleet.training.launch.request import Request
from trainfleet.training.recipe.load import dump, load_recipe

__all__ = ["clean_imports"]
CHECKS = "/apis/batch/v1/namespaces/training/jobs"
PODS_OF = {"context": "fake", "namespace": "training", "image": "me/it:1"}
FAULT = {
    "kind": "error",
    "summary": "the run could not read its data",
    "problems": [["workload.data.source s3://texts/a.txt", "access denied", ""]],
    "exit_code": 2,
}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pod_checks, "POLL_S", 0.02)
    monkeypatch.chdir(tmp_path)


def ends(api: FakeApi, **outcomes: Any) -> None:
    """The pods of the checks end: with what they print, by the name of the cluster. None: they wait."""

    def act(server: FakeApi) -> None:
        for name, printed in outcomes.items():
            job = f"tf-night-{name}-check"
            path = f"{CHECKS}/{job}"
            pod = f"{PODS}/{job}-x"
            server.objects.pop(pod, None)
            if path not in server.objects or printed is None:
                continue
            phase = "Failed" if printed else "Succeeded"
            ended = {"terminated": {"exitCode": 2 if printed else 0, "reason": "Error"}}
            server.objects[pod] = {
                "metadata": {"name": f"{job}-x", "labels": {"job-name": job}, **owned_by(server, path)},
                "status": {"phase": phase, "containerStatuses": [{"state": ended}]},
            }
            server.logs[f"{job}-x"] = "".join(
                f"2026-01-01T00:00:00Z {json.dumps(each)}\n" for each in printed
            )

    api.on_request = act


def pods(name: str, **options: Any) -> ClusterEntry:
    return ClusterEntry(name=name, launcher="kuberay", storage="s3://runs", options={**PODS_OF, **options})


def here(name: str, *overrides: str) -> ClusterEntry:
    return ClusterEntry(name=name, launcher="torchrun", storage=str(Path.cwd() / name), overrides=overrides)


def launches(*entries: ClusterEntry, recipe: str = "lm-tiny") -> tuple[list[Request], list[str]]:
    found = requests(Request(recipe, overrides=("scaling.workers=1",)), "night", list(entries), {})
    return found, [each.name for each in entries]


def left(api: FakeApi) -> list[str]:
    """The Jobs and RayJobs that still exist. They own the rest, which FakeApi does not collect."""
    return [path for path in api.objects if "jobs/" in path]


class Shown(QuietGroup):
    """Records what the user sees."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def handle(self, member: Member, event: Any) -> None:
        self.lines.append(f"{member.name}: {event['text']}")


def test_problems_of_all_clusters_are_one_message_and_nothing_is_left(api: FakeApi, tmp_path: Path) -> None:
    ends(api, a=(), b=(FAULT,))
    found, names = launches(
        pods("a"),
        pods("b"),
        here("c", "workload.data.source=nowhere"),
        here("d", "stepz=1"),
        here("e"),
    )
    with pytest.raises(InputError, match="not every cluster can run this; nothing was started") as raised:
        start("night", found, names, as_json=True)
    text = [str(each) for each in raised.value.problems]
    assert [each for each in text if each.startswith("a")] == []
    assert [each for each in text if each.startswith("e")] == []
    assert any(each.startswith("b: the run could not read its data (checked in the image") for each in text)
    assert "b workload.data.source s3://texts/a.txt: access denied" in text
    assert any(each.startswith("c") and "nowhere" in each for each in text), text
    assert any(each.startswith("d") and "stepz" in each for each in text), text
    assert left(api) == []
    assert not [path for method, path in api.asked if method == "POST" and "rayjobs/" in path]
    assert {each.name for each in tmp_path.iterdir()} == {"kubeconfig"}


@pytest.mark.parametrize("terminal", [False, True])
def test_a_mistake_on_every_cluster_is_one_message_too(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    found, names = launches(here("a", "stepz=1"), here("b", "stepz=1"))
    with pytest.raises(InputError, match="not every cluster can run this; nothing was started") as raised:
        start("night", found, names, as_json=False)
    assert [each.where for each in raised.value.problems] == [
        "a",
        "a stepz=1: stepz",
        "b",
        "b stepz=1: stepz",
    ]
    assert list(tmp_path.iterdir()) == []


def test_runs_without_gpus_are_checked_and_not_again_by_their_launches(api: FakeApi) -> None:
    ends(api, a=(), b=())
    launchable, _, problems = prepare_all(
        *launches(pods("a"), pods("b", **{"workload-check": "always"})), os.environ
    )
    assert not problems
    view = Shown()
    assert Checks(launchable, view).run() == []
    assert {line for line in view.lines if "is valid" not in line} == {
        "a: checking the workload in a pod without GPUs",
        "b: checking the workload in a pod without GPUs",
    }
    assert sum("the workload is valid" in line for line in view.lines) == 2
    for each in launchable:
        options = each.request().options
        assert isinstance(options, KubernetesOptions)
        assert options.workload_check == "never"


def test_a_check_that_the_user_does_not_want_is_left_out(api: FakeApi) -> None:
    launchable, _, _ = prepare_all(*launches(pods("a", **{"workload-check": "never"})), os.environ)
    assert Checks(launchable, Shown()).run() == []
    assert not [path for method, path in api.asked if path == CHECKS]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_checks_starts_nothing_and_leaves_nothing(
    number: int, api: FakeApi, tmp_path: Path
) -> None:
    sent = []
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, a SIGHUP is ignored

    def act(server: FakeApi) -> None:
        if {f"{CHECKS}/tf-night-{name}-check" for name in "ab"} <= server.objects.keys() and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    api.on_request = act
    try:
        with pytest.raises(Interrupted, match="nothing was started"):
            start("night", *launches(pods("a"), pods("b"), here("c")), as_json=True)
    finally:
        signal.signal(number, before)
    assert sent
    assert left(api) == []
    assert {each.name for each in tmp_path.iterdir()} == {"kubeconfig"}


def test_a_cluster_that_does_not_answer_does_not_hold_up_ctrl_c(
    api: FakeApi,
) -> None:
    sent = []

    def act(server: FakeApi) -> None:
        server.refusals["GET", PODS] = (503, "the control plane restarts")
        if server.asked[-1] == ("GET", PODS) and not sent:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    api.on_request = act
    with pytest.raises(Interrupted):
        start("night", *launches(pods("a"), pods("b")), as_json=True)
    assert left(api) == []


@pytest.mark.usefixtures("clean_imports")
def test_code_is_stored_for_the_checks_and_removed_if_a_run_is_not_started(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainfleet.training.launch import code

    stored: list[str] = []
    monkeypatch.setattr(code.Code, "upload", lambda self: stored.append(self.url) or True)
    monkeypatch.setattr(code.Code, "remove", lambda self: stored.remove(self.url))
    recipe = write_workload(tmp_path / "mine")
    ends(api, a=(), b=(FAULT,))
    with pytest.raises(InputError):
        start("night", *launches(pods("a"), pods("b"), recipe=str(recipe)), as_json=True)
    jobs = [path for method, path in api.asked if method == "POST" and path == CHECKS]
    assert len(jobs) == 2
    assert stored == []


def test_a_run_that_another_launch_holds_is_found_before_others_start(tmp_path: Path) -> None:
    from trainfleet.training.runtime.run_lock import locked

    with locked(tmp_path / "b" / "night-b", fresh=False):
        launchable, _, problems = prepare_all(*launches(here("a"), here("b")), os.environ)
    assert [each.member.name for each in launchable] == ["a"]
    assert [each.where for each in problems] == ["b", f"b {tmp_path / 'b' / 'night-b'}"]


def test_a_finished_run_is_not_checked_again(tmp_path: Path) -> None:
    recipe = load_recipe("lm-tiny", ["scaling.workers=1", 'name="night-a"', f"storage={tmp_path / 'a'}"])
    folder = recipe.run_dir()
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(dump(recipe))
    (folder / "run.json").write_text(json.dumps({"status": "finished", "result": {"step": recipe.steps}}))
    launchable, _, problems = prepare_all(*launches(here("a"), here("b")), os.environ)
    assert not problems
    assert [each.member.name for each in launchable if each.finished] == ["a"]
    assert [each.member.name for each in Checks(launchable, Shown()).launches] == ["b"]
