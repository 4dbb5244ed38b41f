"""Stacks with the newest diff and drift of files, and clusters that answer, reject or are out of reach."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.training.launch.fake_api import FakeApi, serving
from tests.training.launch.kuberay_launches import outputs
from tests.ui.conftest import HOST, PORT
from tests.ui.reviews import a_diff, drift_document, write_diff
from trainfleet.rehearsal import last_results
from trainfleet.ui import refreshed
from trainfleet.ui.access import Access
from trainfleet.ui.app import Console
from trainfleet.ui.cluster_state import ClusterStates, outputs_files, read_cluster
from trainfleet.ui.guard import Guard
from trainfleet.ui.review_files import ReviewFiles, read_reviews
from trainfleet.ui.run_store import RunStore
from trainfleet.ui.stack_specs import StackSpecs

SCRIPT = "<script>alert(1)</script>"


def client_of(console: Console) -> TestClient:
    guard = Guard(console.app, Access(), PORT)
    client = TestClient(guard, base_url=HOST)
    assert client.get(f"/?token={guard.access.token}").status_code == 200
    return client


@pytest.fixture
def project(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one valid and one wrong stack."""
    (tmp_path / "stacks").mkdir()
    (tmp_path / "Pulumi.yaml").write_text("name: p\n")
    shutil.copy(root / "stacks" / "Pulumi.aws-dev.yaml", tmp_path / "stacks")
    text = (root / "stacks" / "Pulumi.gcp-dev.yaml").read_text().replace("region:", "regoin:")
    (tmp_path / "stacks" / "Pulumi.gcp-dev.yaml").write_text(text)
    monkeypatch.setattr("trainfleet.ui.pages.stacks.WAIT_S", 30.0)
    return tmp_path


def test_stacks_are_shown_with_cost_mistakes_diff_and_drift(project: Path, runs: Path) -> None:
    folder = project / "reviews"
    folder.mkdir()
    write_diff(folder, "aws-dev")
    (folder / "drift.json").write_text(json.dumps({"stacks": [drift_document("aws-dev")]}))
    (folder / "other.json").write_text(json.dumps({"anything": 1}))
    client = client_of(Console(RunStore([str(runs)]), StackSpecs(project), ReviewFiles(folder)))
    text = client.get("/stacks").text
    for expected in (
        "aws-dev",
        "destructive change",
        "1 drifted",
        "high",
        "1 mistake",
        "not checked",
        "other.json: is neither of",
    ):
        assert expected in text, expected
    one = client.get("/stacks/aws-dev").text
    for expected in (
        "LOSES DATA: runs", "forced by instanceTypes", "the nodes of h100 are drained", "bucket-versioning",
        "versioning.enabled", "pulumi up restores it", "Valid.", "control-plane", "Stack file",
    ):  # fmt: skip
        assert expected in one, expected
    wrong = client.get("/stacks/gcp-dev").text
    assert "regoin" in wrong
    assert "Pulumi.gcp-dev.yaml:" in wrong, "the line of the mistake"
    assert client.get("/stacks/none").status_code == 404


@pytest.mark.parametrize("name", ["..%2FPulumi", "%2e%2e", "..", "aws-dev%00", "%2Fetc%2Fpasswd"])
def test_only_stacks_of_the_list_are_read(project: Path, runs: Path, name: str) -> None:
    client = client_of(Console(RunStore([str(runs)]), StackSpecs(project)))
    assert "Stack file" not in client.get(f"/stacks/{name}").text


def test_the_newest_file_of_a_stack_counts(tmp_path: Path) -> None:
    old, new = write_diff(tmp_path, "a"), tmp_path / "0.json"
    new.write_text(old.read_text().replace("Remove the bucket", "Newer"))
    os.utime(old, (1, 1))
    found = read_reviews(tmp_path)
    assert found.diffs["a"].file == "0.json"
    os.utime(new, (0, 0))
    assert read_reviews(tmp_path).diffs["a"].file == "a.json"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Invalid JSON"),
        ("[1]", "should be an object"),
        ('{"stacks": 3}', "is neither of"),
        ('{"stacks": [3]}', "is neither of"),
        ('{"blast_radius": 1}', "stack"),
        ("[" * 100_000, "recursion"),
    ],
    ids=range(6),
)
def test_a_wrong_file_is_named_and_the_others_are_read(tmp_path: Path, text: str, reason: str) -> None:
    write_diff(tmp_path, "a")
    (tmp_path / "b.json").write_text(text)
    found = read_reviews(tmp_path)
    assert list(found.diffs) == ["a"]
    (unread,) = found.unread
    assert unread.startswith("b.json: ")
    assert reason in unread


def test_a_link_out_of_the_folder_of_diffs_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "reviews"
    folder.mkdir()
    (folder / "link.json").symlink_to(write_diff(tmp_path, "a"))
    assert read_reviews(folder).diffs == {}
    assert read_reviews(folder).unread == ("link.json: is a link out of the folder",)


def test_texts_of_files_are_escaped(project: Path, runs: Path) -> None:
    folder = project / "reviews"
    folder.mkdir()
    name = 'a"<script>'
    document = drift_document(name) | {"source": SCRIPT, "notes": [SCRIPT]}
    document["resources"][0] |= {
        "name": SCRIPT,
        "repair": SCRIPT,
        "severity": SCRIPT,
        "properties": [{"path": SCRIPT, "state": SCRIPT, "cloud": [SCRIPT]}],
    }
    (folder / "a.json").write_text(json.dumps(document))
    write_diff(
        folder, "aws-dev", blast_radius=SCRIPT, verdict=SCRIPT, notes=[SCRIPT], access=[{"text": SCRIPT}]
    )
    client = client_of(Console(RunStore([str(runs)]), StackSpecs(project), ReviewFiles(folder)))
    for address in ("/stacks", "/stacks/aws-dev", f"/stacks/{quote(name, safe='')}"):
        text = client.get(address).text
        assert "&lt;script&gt;" in text
        assert "<script>" not in text


# ---- clusters


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The outputs of a platform; the user has no kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return tmp_path / "outputs.json"


def write_platform(file: Path, server: str) -> None:
    kubeconfig = {
        "apiVersion": "v1", "kind": "Config", "current-context": "ui-test",
        "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "ui-test", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    file.write_text(outputs(kube_context="ui-test", kubeconfig=json.dumps(kubeconfig)).model_dump_json())


KUEUE = "/apis/kueue.x-k8s.io"


QUEUE = {
    "metadata": {"name": "training"},
    "spec": {"resourceGroups": [{"flavors": [{"name": "l4", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]}]}]},
    "status": {
        "pendingWorkloads": 1, "admittedWorkloads": 2,
        "flavorsUsage": [{"name": "l4", "resources": [{"name": "nvidia.com/gpu", "total": "12"}]}],
    },
}  # fmt: skip


def with_objects(api: FakeApi) -> FakeApi:
    """A node of the pool `l4`, a queue, and a workload that waits."""
    ready = [{"type": "Ready", "status": "True"}]
    selector = outputs().pools[0].node_selector
    api.objects |= {
        "/version": {"gitVersion": "v1.36.0"},
        "/api/v1/nodes": {
            "items": [
                {"metadata": {"name": "one", "labels": selector}, "status": {"conditions": ready}},
                {"metadata": {"name": "two", "labels": selector}, "status": {"conditions": []}},
                {"metadata": {"name": "of-no-pool", "labels": {}}, "status": {"conditions": ready}},
            ]
        },
        KUEUE: {"versions": [{"version": "v1beta1"}]},
        f"{KUEUE}/v1beta1/clusterqueues": {"items": [QUEUE]},
        f"{KUEUE}/v1beta1/namespaces/training/workloads/w": {
            "metadata": {"name": "w", "ownerReferences": [{"name": "night-7"}]},
            "spec": {"queueName": "training"},
            "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": f"insufficient quota {SCRIPT}"}]},
        },
    }  # fmt: skip
    return api


def test_a_cluster_is_shown_with_pools_queues_and_what_waits(
    platform: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.ui.pages.clusters.WAIT_S", 30.0)
    with serving() as api:
        write_platform(platform, with_objects(api).address)
        text = (
            client_of(Console(RunStore([str(runs)]), clusters=ClusterStates([str(platform)])))
            .get("/clusters")
            .text
        )
    for expected in (
        "reachable",
        "1 of 2",
        "2 admitted, 1 waiting",
        "nvidia.com/gpu",
        "12",
        "16",
        "night-7",
        "insufficient quota &lt;script&gt;",
    ):
        assert expected in text, expected
    assert "<script>" not in text
    assert {method for method, _ in api.asked} == {"GET"}, "the console changes nothing in a cluster"


def test_a_rejected_part_is_named_and_the_others_are_shown(platform: Path) -> None:
    with serving() as api:
        with_objects(api).refusals["GET", "/api/v1/nodes"] = (403, "nodes is forbidden")
        write_platform(platform, api.address)
        state = read_cluster(str(platform))
    assert state.answered
    assert "nodes is forbidden" in str(state.problems[0])
    assert [pool.nodes for pool in state.pools] == [None, None]
    assert state.queues[0].admitted == 2


def test_a_cluster_out_of_reach_is_named_with_the_reason(
    platform: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.ui.pages.clusters.WAIT_S", 30.0)
    write_platform(platform, "http://127.0.0.1:9")
    text = (
        client_of(Console(RunStore([str(runs)]), clusters=ClusterStates([str(platform)])))
        .get("/clusters")
        .text
    )
    assert "unreachable" in text
    assert "is it running" in text
    assert "g6" in text or "l4" in text, "the pools are known from the outputs"


def test_a_slow_cluster_does_not_hold_up_the_page(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainfleet.ui.cluster_state.read_cluster", lambda _: time.sleep(5))
    client = client_of(Console(RunStore([str(runs)]), clusters=ClusterStates(["slow"])))
    began = time.monotonic()
    assert "reading" in client.get("/clusters").text
    assert time.monotonic() - began < 4


def test_a_failed_refresh_keeps_the_last_value() -> None:
    from trainfleet.errors import TrainfleetError

    answers = [1]

    def compute() -> int:
        if not answers:
            raise TrainfleetError("it does not respond")
        return answers.pop()

    value = refreshed.Refreshed(compute, 0, 0.0)
    assert value.get(10) == 1
    assert value.get(10) == 1
    assert value.error is not None


def test_the_last_results_of_the_project_are_shown_by_default(
    project: Path, runs: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(project)
    last_results.keep("diff", [a_diff("aws-dev").as_json()], None)
    last_results.keep("drift", [drift_document("org/p/aws-dev")], None)
    folder = last_results.folder(project)
    with monkeypatch.context() as in_ci:
        in_ci.setenv("CI", "true")
        last_results.keep("diff", [a_diff("gcp-dev").as_json()], None)
    assert {each.name for each in folder.iterdir()} == {"aws-dev.diff.json", "aws-dev.drift.json"}
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    client = client_of(Console(RunStore([str(runs)]), StackSpecs(project), ReviewFiles(folder)))
    text = client.get("/stacks").text
    assert "destructive change" in text
    assert "1 drifted" in text
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    last_results.keep("diff", [a_diff("other").as_json()], None)
    assert last_results.folder(Path.cwd()).parent.is_dir()
    assert len(list(folder.parent.iterdir())) == 1, "a folder without a project keeps nothing"


def test_outputs_of_the_project_are_declared_and_their_clusters_are_not_asked(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.ui.cluster_state.Where.connect", lambda _: pytest.fail("a login"))
    monkeypatch.setattr("trainfleet.ui.pages.clusters.WAIT_S", 30.0)
    (tmp_path / "dev.outputs.json").write_text(outputs().model_dump_json())
    (tmp_path / "outputs.json").symlink_to("/etc/hostname")
    found = outputs_files(tmp_path)
    assert found == [str(tmp_path / "dev.outputs.json")]
    states = ClusterStates([], found)
    client = client_of(Console(RunStore([str(runs)]), StackSpecs(None), ReviewFiles(None), states))
    text = client.get("/clusters").text
    assert "not asked" in text
    assert "Pools" in text
