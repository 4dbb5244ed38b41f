"""A SkyPilot cluster that outlives its runs: when it is created, used, rejected, and what a stop ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.launch.fake_sky import FakeSky, ResourcesUnavailableError, driven
from tests.training.launch.sky_tasks import document, recipe, resolved
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky import pods
from trainfleet.training.launch.sky.kept_cluster import SETTINGS_LABEL, settings_digest
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.task import RUN_LABEL

NEEDS = {
    "infra": "k8s/near",
    "cpus": 2.0,
    "memory": 5,
    "image_id": "docker:me/it:1",
    "accelerators": "H100:8",
    "labels": {SETTINGS_LABEL: "abc"},
}
TASK = {"name": "tf-night", "num_nodes": 2, "resources": NEEDS, "run": "true"}


def cluster(status: str = "UP", nodes: int = 2, **changes: Any) -> Any:
    """SkyPilot's record of a cluster that fits the task."""
    has = {
        "region": "near",
        "labels": {SETTINGS_LABEL: "abc"},
        "instance_type": "2CPU--5GB--H100:8",
        "accelerators": {"H100": 8},
        "extract_docker_image": lambda: "me/it:1",
    } | changes
    handle = SimpleNamespace(launched_nodes=nodes, launched_resources=SimpleNamespace(**has))
    return SimpleNamespace(status=SimpleNamespace(value=status), handle=handle, autostop=30)


def kept(reported: list[dict[str, Any]], sky: FakeSky, **spec: Any) -> Any:
    return driven(reported, sky, **({"cluster": "shared", "kept": True, "task": TASK} | spec))


def test_the_first_run_creates_the_cluster_which_stays(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky()
    assert kept(reported, sky).run() == 0
    assert ("launch", "shared", True) in sky.calls
    assert sky.idle == 30
    assert ("down", "shared") not in sky.calls
    notes = [each.get("text") for each in reported]
    assert (
        "creating the cluster shared, which is deleted 30 minutes after its last run; sooner: sky down shared"
        in notes
    )


def test_a_later_run_uses_it_without_a_launch(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky(live=[cluster()])
    far = NEEDS | {"infra": "k8s/far"}
    assert kept(reported, sky, task=TASK | {"resources": {"ordered": [far, NEEDS]}}).run() == 0
    assert [call[0] for call in sky.calls] == ["status", "status", "exec"]
    assert sky.task["resources"] == NEEDS


def test_what_kubernetes_knows_of_the_pods_is_not_asked_of_skypilot(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(pods, "idle", lambda *given: asked.append(given) or True)
    sky = FakeSky(live=[cluster()])
    sky.queued = None  # not asked for
    follower = kept(reported, sky)
    assert follower.run() == 0
    assert sky.calls == [("status", "shared"), ("exec", "shared")]
    assert asked == [(follower.spec.contexts, follower.spec.selector, 2)]
    small = FakeSky(live=[cluster(nodes=1)])
    with pytest.raises(InputError, match="does not fit the cluster shared"):
        kept(reported, small).run()


def test_the_pods_are_not_asked_for_a_cluster_that_skypilot_does_not_have(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "idle", lambda *_: pytest.fail("asked"))
    for live in ([], [cluster("INIT")]):
        sky = FakeSky(live=live)
        assert kept(reported, sky).run() == 0
        assert ("launch", "shared", True) in sky.calls


def test_another_idle_time_is_set_and_the_same_one_is_not(reported: list[dict[str, Any]]) -> None:
    for minutes, expected in ((30, []), (90, [("autostop", "shared", 90, True)])):
        sky = FakeSky(live=[cluster()])
        assert kept(reported, sky, idle_minutes=minutes).run() == 0
        assert [call for call in sky.calls if call[0] == "autostop"] == expected


def test_a_cluster_that_lost_its_pods_is_created_again(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky(live=[cluster("INIT")])
    assert kept(reported, sky).run() == 0
    assert ("launch", "shared", True) in sky.calls


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (cluster(labels=None), "was not created by Trainfleet"),
        (cluster(region="elsewhere"), "is on elsewhere, and the run on near, far"),
        (cluster(nodes=1), "has 1 pods, and the run needs 2"),
        (cluster(extract_docker_image=lambda: "me/it:0"), "has the image me/it:0, and the run me/it:1"),
        (cluster(accelerators=None), "has no GPU in each pod, and the run needs 8 x H100"),
        (cluster(instance_type="1CPU--5GB"), "has 1 CPUs in each pod, and the run needs 2"),
        (cluster(instance_type="2CPU--4GB"), "has 4 GiB of memory in each pod, and the run needs 5"),
        (cluster(labels={SETTINGS_LABEL: "xyz"}), "has pods with other settings"),
    ],
)
def test_a_run_that_does_not_fit_is_rejected_and_the_cluster_is_kept(
    reported: list[dict[str, Any]], record: Any, why: str
) -> None:
    sky = FakeSky(live=[record])
    with pytest.raises(InputError, match="does not fit the cluster shared") as raised:
        kept(reported, sky).run()
    assert why in str(raised.value)
    assert {call[0] for call in sky.calls} == {"status"}


def test_every_misfit_is_named_at_once(reported: list[dict[str, Any]]) -> None:
    small = cluster(nodes=1, instance_type="1CPU--1GB", extract_docker_image=lambda: "me/it:0")
    with pytest.raises(InputError) as raised:
        kept(reported, FakeSky(live=[small])).run()
    assert len(raised.value.problems) == 4


def test_a_cluster_that_runs_another_job_is_rejected(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky(live=[cluster()])
    sky.queued = [SimpleNamespace(job_name="tf-day", job_id=3)]
    with pytest.raises(InputError, match="the cluster is in use") as raised:
        kept(reported, sky).run()
    assert "runs tf-day as job 3" in str(raised.value)
    assert "sky cancel shared 3" in str(raised.value)
    assert {call[0] for call in sky.calls} == {"status"}


def test_what_did_not_start_is_taken_back_and_no_more(reported: list[dict[str, Any]]) -> None:
    new = FakeSky(failure=ResourcesUnavailableError("no capacity"))
    with pytest.raises(TrainfleetError):
        kept(reported, new).run()
    assert new.calls[-1] == ("down", "shared"), "a cluster that never ran must not stay"
    later = FakeSky(failure=RuntimeError("Request cancelled"), live=[cluster()])
    later.queued = []
    with pytest.raises(TrainfleetError):
        kept(reported, later).run()
    assert ("down", "shared") not in later.calls, "another run's cluster was deleted"


def test_a_cluster_that_another_launch_creates_is_not_deleted(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky(failure=RuntimeError("Request cancelled"), live=[cluster("INIT")])
    with pytest.raises(TrainfleetError):
        kept(reported, sky).run()
    assert ("down", "shared") not in sky.calls
    assert any("the cluster shared is not deleted" in str(each.get("text")) for each in reported)


def test_a_run_without_a_result_is_canceled_and_the_cluster_stays(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky(["nothing\n"], live=[cluster()])
    with pytest.raises(TrainfleetError, match="without reporting a result"):
        kept(reported, sky).run()
    assert sky.calls[-1] == ("cancel_job", "shared", 1)


def test_a_detached_run_says_how_to_follow_and_end_it(reported: list[dict[str, Any]]) -> None:
    assert kept(reported, FakeSky(live=[cluster()]), detach=True).run() == 0
    assert "trainfleet runs stop night" in " ".join(reported[-1]["how"])
    assert "sky down" not in " ".join(reported[-1]["how"])


def test_the_digest_of_settings_depends_on_all_of_them_but_memory() -> None:
    def overrides(memory: str, **spec: Any) -> dict[str, Any]:
        container = {"resources": {"limits": {"memory": memory}}, **spec}
        return {"pod_config": {"spec": {"containers": [container]}}}

    first = settings_digest(overrides("4G"))
    assert settings_digest(overrides("8G")) == first
    assert settings_digest(overrides("4G", env=[{"name": "A", "value": "b"}])) != first


def test_the_pods_have_the_labels_of_the_cluster_and_not_of_the_run() -> None:
    """The cluster's pods are those of every run on it."""
    made = document(recipe(), "aws-prod", cluster="shared")["resources"]
    labels = [each["labels"] for each in made.get("ordered", [made])]
    assert {each["trainfleet.io/cluster"] for each in labels} == {"shared"}
    assert all(SETTINGS_LABEL in each and RUN_LABEL not in each for each in labels)
    other_run = recipe().model_copy(update={"name": "another"})
    again = document(other_run, "aws-prod", cluster="shared")["resources"]
    assert [each["labels"] for each in again.get("ordered", [again])] == labels
    patch = {"metadata": {"annotations": {"example.com/a": "b"}}}
    patched = document(recipe(), "aws-prod", cluster="shared", patches=(patch,))["resources"]
    assert [each["labels"] for each in patched.get("ordered", [patched])] != labels


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"cluster": "shared", "managed": True}, "--managed"),
        ({"cluster": "shared", "workload_check": "always"}, "--workload-check always"),
        ({"idle_s": 600.0}, "--idle"),
        ({"cluster": "Shared_1"}, "--cluster Shared_1"),
        ({"cluster": "tf-night"}, "--cluster tf-night"),
        ({"cluster": "a" * 41}, f"--cluster {'a' * 41}"),
    ],
)
def test_what_a_long_lived_cluster_rules_out_is_rejected_by_name(
    options: dict[str, Any], where: str, tmp_path: Path
) -> None:
    parsed = SkyOptions(context="kind", image="my/image:1", **options)
    request = Request("lm-small", on="sky", options=parsed)
    with pytest.raises(InputError) as raised:
        resolved(recipe(name="lm-small"), Target(request, (), tmp_path))
    assert [each.where for each in raised.value.problems] == [where]
