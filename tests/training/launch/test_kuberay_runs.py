"""`trainfleet runs` on a cluster: list, log, attach, stop and dashboard."""

from __future__ import annotations

import pytest

from tests.training.launch.fake_api import JOB, JOBS, MAPS, PODS, FakeApi
from tests.training.launch.kuberay_follower import LOG, cluster_of, pod, running
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch.kuberay import runs
from trainfleet.training.launch.remote.ray_job import RayJob
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.runtime.code_archive import CODE


def test_runs_are_listed_with_their_status(api: FakeApi) -> None:
    for name, state in (("a", "Running"), ("b", "Failed")):
        api.objects[f"{JOBS}/tf-{name}"] = {
            "metadata": {
                "name": f"tf-{name}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"trainfleet.io/run": name},
            },
            "status": {"jobDeploymentStatus": state},
        }
    assert [(run.name, run.state) for run in runs.list_runs(cluster_of(api))] == [
        ("a", "running"),
        ("b", "failed"),
    ]


def test_a_missing_run_is_reported_with_a_suggestion(api: FakeApi) -> None:
    api.objects[f"{JOBS}/tf-night"] = {
        "metadata": {"name": "tf-night", "labels": {"trainfleet.io/run": "night"}}
    }
    with pytest.raises(InputError, match=r"has no run `nigth` \(.*night"):
        runs.find(cluster_of(api), "nigth")


def test_a_log_is_printed_without_repetitions(api: FakeApi) -> None:
    running(api, [LOG[0], "a", LOG[0], "a", "b"])
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Complete"}}
    found = runs.find(cluster_of(api), "lm-tiny")
    assert [line for line in runs.lines(cluster_of(api), found, follow=True) if isinstance(line, str)] == [
        "a",
        "b",
    ]


def test_a_run_without_events_is_reported(api: FakeApi) -> None:
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Initializing"}}
    found = runs.find(cluster_of(api), "lm-tiny")
    with pytest.raises(TrainfleetError, match="printed nothing yet"):
        list(runs.lines(cluster_of(api), found, follow=False))


def test_a_stop_deletes_the_run(api: FakeApi) -> None:
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Initializing"}}
    cluster = cluster_of(api)
    assert (
        runs.stop(cluster, runs.find(cluster, "lm-tiny"), bool, now=False, within_s=1, report=print)
        == "ended at once"
    )
    assert JOB not in api.objects


@pytest.mark.parametrize("job", ["", "{}"], ids=["training", "evaluation"])
def test_a_stop_asks_the_ranks_of_a_training_only(
    job: str, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> int:
        asked.append(True)
        return 0

    asked: list[bool] = []
    monkeypatch.setattr(runs, "ask_ranks", ask)
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Running"}}
    ray_job = RayJob(entrypoint="python", env={"TRAINFLEET_JOB": job} if job else {}, metadata={})
    api.objects[JOB.replace(JOBS, MAPS)] = {
        "metadata": {"name": "tf-lm-tiny"},
        "data": {"job.json": ray_job.model_dump_json()},
    }
    cluster = cluster_of(api)
    how = runs.stop(cluster, runs.find(cluster, "lm-tiny"), bool, now=False, within_s=1, report=print)
    assert (how, asked) == ("ended at once", [] if job else [True])


@pytest.mark.parametrize(
    ("named", "launch", "expected"),
    [
        (Where(), {"context": "kind-kind", "namespace": "mine"}, Where(None, "kind-kind", "mine")),
        (Where(), {"place": {"context": "a", "namespace": "b"}}, Where(None, "a", "b")),
        (Where(), {"stacks": ["o.json"], "place": {"context": "a", "namespace": "b"}}, Where("o.json")),
        (Where(context="other"), {"context": "kind-kind", "namespace": "mine"}, Where(None, "other")),
        (Where(), {}, Where()),
    ],
)
def test_a_run_is_looked_for_where_it_was_launched(
    named: Where, launch: dict[str, object], expected: Where
) -> None:
    assert named.or_of(launch) == expected


def test_an_attached_run_has_the_code_of_its_launch(api: FakeApi) -> None:
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Running"}}
    cluster = cluster_of(api)
    found = runs.find(cluster, "lm-tiny")
    assert runs.code_of(cluster, found) is None
    for env in ({CODE: "s3://runs/lm-tiny/code/01.tar.gz"}, {}):
        job = RayJob(entrypoint="python", env=env, metadata={})
        api.objects[JOB.replace(JOBS, MAPS)] = {
            "metadata": {"name": "tf-lm-tiny"},
            "data": {"job.json": job.model_dump_json()},
        }
        assert runs.code_of(cluster, found) == env.get(CODE)


def test_a_dashboard_without_a_run_lists_the_existing_runs(api: FakeApi) -> None:
    with pytest.raises(InputError, match="has no Ray cluster"):
        runs.head_of(cluster_of(api), None)
    api.objects[f"{PODS}/head"] = pod("head", "head", ready=True)
    assert runs.head_of(cluster_of(api), None) == ("head", "rc")
    with pytest.raises(InputError, match="Ray clusters: rc"):
        runs.head_of(cluster_of(api), "other")
