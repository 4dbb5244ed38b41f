"""A rehearsal creates its Kubernetes objects on a real cluster, and restores the cluster however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.conftest import Cluster, parsed, trainfleet, until
from tests.cluster.stack import everything, unlike
from trainfleet.local_cluster.store import SECRET, Store, grant_access
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.on_cluster.cluster_target import Target, built_in
from trainfleet.rehearsal.rehearse import rehearse
from trainfleet.rehearsal.report import Report, Step
from trainfleet.rehearsal.steps.session import APPLY, RehearsalOptions, rehearsal_session

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
SPACE = "tried-by-a-test"
PROGRAM = f"""
import pulumi
import pulumi_kubernetes as k8s
provider = k8s.Provider("cluster", enable_server_side_apply=True)
here = pulumi.ResourceOptions(provider=provider)
metadata = {{"name": "{SPACE}", "labels": {{"of": "a-test"}}}}
space = k8s.core.v1.Namespace("space", metadata=metadata, opts=here)
inside = pulumi.ResourceOptions(provider=provider, depends_on=[space])
"""
CONFIG = """
metadata = {{"name": "config", "namespace": "{}", "labels": {{"of": "a-test"}}}}
k8s.core.v1.ConfigMap("config", metadata=metadata, data={{"a": "b"}}, opts=inside)
"""


@pytest.fixture
def target(cluster: Cluster) -> Iterator[Target]:
    """The cluster. At the end of each test it must be as before."""
    found = built_in(cluster.name)
    before = everything(found)
    yield found
    assert unlike(before, everything(found)) == []


def program(folder: Path, code: str) -> Path:
    (folder / "Pulumi.yaml").write_text("name: tried\nruntime: python\n")
    (folder / "__main__.py").write_text(PROGRAM + code + "\n")
    return folder


def rehearsed(folder: Path, target: Target, code: str, until_step: str = "") -> Report:
    return rehearse(
        read_project(program(folder, code)), find_engine(), RehearsalOptions(cluster=target, until=until_step)
    )


def test_the_local_stack_goes_through_every_step_and_leaves_the_cluster_as_it_was(
    cluster: Cluster, target: Target
) -> None:
    operator = (target.built_in and target.built_in.file("processes.json").read_text()) or ""
    done = trainfleet("rehearse", "local", "--on-cluster", cluster.name, "--json", timeout=2000)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    steps = {step["name"]: step for step in report["steps"]}
    assert all(step["ran"] for name, step in steps.items() if name != "unprotect")
    assert steps["cluster"]["resources"] >= 50
    assert (
        "kuberay-operator 1.6.0: the operator built from source, with --watch-namespace=training"
        in steps["cluster"]["detail"]
    )
    assert (
        "kube-prometheus-stack 82.16.0: nothing (the chart is not available here)"
        in steps["cluster"]["detail"]
    )
    assert steps["no-op"]["changes"] == steps["refresh"]["changes"] == {}
    assert steps["update"]["changes"] == steps["drift"]["changes"] == {"update": 1}
    assert cluster.state.file("processes.json").read_text() == operator


@pytest.fixture
def namespace_of_runs(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The namespace and the Secret that `trainfleet cluster store` creates."""
    name = "training"
    grant_access(
        cluster.state, name, Store("https://10.0.0.1:9000", tmp_path, tmp_path, ("key", "secret"), 0)
    )
    yield name
    cluster.kubectl("delete", "namespace", name)


@pytest.mark.deep  # the README's commands rehearse it next to that namespace too
def test_the_local_stack_is_rehearsed_next_to_the_namespace_of_the_store(
    namespace_of_runs: str, cluster: Cluster, target: Target
) -> None:
    def objects() -> str:
        names = (f"namespace/{namespace_of_runs}", f"secret/{SECRET}")
        return cluster.kubectl("-n", namespace_of_runs, "get", *names, "-o", "json", "--show-managed-fields")

    before = objects()
    done = trainfleet("rehearse", "local", "--on-cluster", cluster.name, "--json", timeout=2000)
    steps = {step["name"]: step for step in parsed(done)["steps"]}
    assert f"namespace {namespace_of_runs} already exists, created by kubectl" in steps["cluster"]["detail"]
    assert steps["cluster"]["resources"] >= 50
    asked = trainfleet("rehearse", "local", "--on-cluster", cluster.name, "--dry-run", "--json", timeout=2000)
    (row,) = parsed(asked)["stacks"]
    assert row["refused"] == []
    assert objects() == before


@pytest.mark.slow
def test_an_existing_namespace_is_used_on_the_local_cluster_and_refused_on_one_of_your_own(
    tmp_path: Path, cluster: Cluster, target: Target
) -> None:
    folder = program(tmp_path, CONFIG.format(SPACE))
    cluster.kubectl("create", "namespace", SPACE)
    try:
        kubeconfig = {"KUBECONFIG": str(cluster.state.kubeconfig)}
        own = ("rehearse", str(folder), "--context", cluster.state.context, "--yes", "--until", "cluster")
        refused = trainfleet(*own, **kubeconfig)
        assert refused.returncode == 1
        assert (
            f"Namespace {SPACE} already exists, created by kubectl-create, with other content"
            in refused.stderr
        )
        done = trainfleet("rehearse", str(folder), "--on-cluster", cluster.name)
        assert done.returncode == 0, done.stdout + done.stderr
        assert cluster.kubectl("get", "namespace", SPACE, "-o", "jsonpath={.metadata.labels.of}") == ""
        assert not cluster.kubectl("-n", SPACE, "get", "configmap", "config", "--ignore-not-found")
    finally:
        cluster.kubectl("delete", "namespace", SPACE)


def test_an_object_that_the_api_server_refuses_fails_with_its_name_and_message(
    tmp_path: Path, target: Target
) -> None:
    spec = {"cluster_ip": "203.0.113.7", "ports": [{"port": 80}]}
    metadata = {"name": "web", "namespace": SPACE}
    code = f'k8s.core.v1.Service("web", metadata={metadata}, spec={spec}, opts=inside)'
    report = rehearsed(tmp_path, target, code)
    assert not report.ok
    text = str(report.problems)
    assert "kubernetes:core/v1:Service web" in text
    assert "rejected by the API server: " in text
    assert "203.0.113.7" in text


def test_an_existing_object_is_refused_by_name_and_kept(
    tmp_path: Path, cluster: Cluster, target: Target
) -> None:
    cluster.kubectl("create", "configmap", "config", "--from-literal=a=theirs")
    before = cluster.kubectl("get", "configmap", "config", "-o", "json", "--show-managed-fields")
    try:
        report = rehearsed(tmp_path, target, CONFIG.format("default"))
        assert not report.ok
        assert (
            "ConfigMap default/config already exists, created by kubectl-create, and is left unchanged"
            in str(report.problems)
        )
        assert cluster.kubectl("get", "configmap", "config", "-o", "json", "--show-managed-fields") == before
    finally:
        cluster.kubectl("delete", "configmap", "config")


@pytest.mark.slow
def test_an_existing_object_with_the_same_content_is_shared_and_kept(
    tmp_path: Path, cluster: Cluster, target: Target
) -> None:
    metadata = {"name": "config", "namespace": "default", "labels": {"of": "a-test"}}
    cluster.kubectl(
        "create",
        "-f",
        "-",
        given=json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}),
    )
    try:
        report = rehearsed(tmp_path, target, CONFIG.format("default"), "no-op")
        assert report.ok, report.problems
        assert "already present with the same content, left unchanged: 1" in next(
            step.detail for step in report.steps if step.name == "cluster"
        )
        assert cluster.kubectl("get", "configmap", "config", "-o", "jsonpath={.data.a}") == "b"
    finally:
        cluster.kubectl("delete", "configmap", "config")


def test_a_workload_fails_if_admission_refuses_its_pods(
    tmp_path: Path, cluster: Cluster, target: Target
) -> None:
    """The namespace is not in the program, so only the cluster knows its level."""
    space = f"{SPACE}-2"
    spec = {"template": {"spec": {"restart_policy": "Never", "containers": [{"name": "a", "image": "a"}]}}}
    code = f"""
k8s.batch.v1.Job("root", metadata={{"name": "root", "namespace": "{space}"}}, spec={spec}, opts=here)
"""
    cluster.kubectl("create", "namespace", space)
    try:
        cluster.kubectl("label", "namespace", space, "pod-security.kubernetes.io/enforce=restricted")
        report = rehearsed(tmp_path, target, code, "cluster")
    finally:
        cluster.kubectl("delete", "namespace", space)
    assert not report.ok
    assert f"a pod of Job {space}/root would be rejected" in str(report.problems)
    assert 'violates PodSecurity "restricted:latest"' in str(report.problems)


def begun(folder: Path, cluster: Cluster) -> subprocess.Popen[bytes]:
    """A rehearsal that has created its namespace and waits for its program, which sleeps."""
    made = program(
        folder,
        CONFIG.format(SPACE)
        + "\nimport time\nspace.id.apply(lambda _: pulumi.runtime.is_dry_run() or time.sleep(600))",
    )
    command = [
        str(Path(sys.executable).with_name("trainfleet")),
        "rehearse",
        str(made),
        "--on-cluster",
        cluster.name,
    ]
    (folder / "tmp").mkdir()
    child = subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(
        lambda: cluster.kubectl("get", "namespace", SPACE, "--ignore-not-found") or child.poll() is not None,
        "the program's namespace",
    )
    assert child.poll() is None
    return child


def killed(child: subprocess.Popen[bytes]) -> None:
    """Kill a rehearsal, so that it cannot clean up, and the processes that it leaves."""
    orphans = psutil.Process(child.pid).children(recursive=True)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for process in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(orphans, timeout=30)


@pytest.mark.slow
def test_ctrl_c_removes_everything(tmp_path: Path, cluster: Cluster, target: Target) -> None:
    child = begun(tmp_path, cluster)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait(120) == 130
    assert not cluster.kubectl("get", "namespace", SPACE, "--ignore-not-found")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert target.context


@pytest.mark.slow
def test_objects_of_a_killed_rehearsal_are_named_and_removed_on_request(
    tmp_path: Path, cluster: Cluster, target: Target
) -> None:
    killed(begun(tmp_path, cluster))
    folder = tmp_path / "next"
    folder.mkdir()
    report = rehearsed(folder, target, "", "apply")
    assert f"Namespace {SPACE} already exists: left by a rehearsal" in str(report.problems)
    assert "--clean-up" in str(report.problems)
    done = trainfleet("rehearse", str(folder), "--on-cluster", cluster.name, "--clean-up")
    assert done.returncode == 0, done.stderr
    assert f"removed Namespace {SPACE}" in done.stdout


@pytest.mark.slow
def test_a_stack_can_be_left_on_the_cluster_and_removed_later(
    tmp_path: Path, cluster: Cluster, target: Target
) -> None:
    folder = program(tmp_path, CONFIG.format(SPACE))
    done = trainfleet("rehearse", str(folder), "--on-cluster", cluster.name, "--leave")
    assert done.returncode == 0, done.stderr
    assert cluster.kubectl("-n", SPACE, "get", "configmap", "config", "-o", "jsonpath={.data.a}") == "b"
    removed = trainfleet("rehearse", str(folder), "--on-cluster", cluster.name, "--clean-up")
    assert f"removed ConfigMap {SPACE}/config" in removed.stdout
    again = trainfleet("rehearse", str(folder), "--on-cluster", cluster.name, "--clean-up")
    assert again.stdout.strip() == f"nothing to remove on {target.context}"


@pytest.mark.slow
def test_your_own_context_needs_consent(tmp_path: Path, cluster: Cluster, target: Target) -> None:
    folder = program(tmp_path, CONFIG.format(SPACE))
    settings: dict[str, Any] = {"KUBECONFIG": str(cluster.state.kubeconfig)}
    arguments = ("rehearse", str(folder), "--context", cluster.state.context, "--until", "cluster")
    refused = subprocess.run(
        [str(Path(sys.executable).with_name("trainfleet")), *arguments],
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "this needs your confirmation" in refused.stderr
    done = trainfleet(*arguments, "--yes", **settings)
    assert done.returncode == 0, done.stderr
    assert f"{target.context} holds 2 objects of this stack" in done.stdout


@pytest.mark.parametrize(
    ("server", "token", "words"),
    [("", "expired", "Unauthorized"), ("https://127.0.0.1:1", "any", "connection refused")],
    ids=["a token that is not valid", "no server"],
)
def test_an_unreachable_cluster_is_reported(
    tmp_path: Path, cluster: Cluster, server: str, token: str, words: str
) -> None:
    document = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    document["users"][0]["user"] = {"token": token}
    document["clusters"][0]["cluster"] |= {"server": server} if server else {}
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    folder = program(tmp_path, "")
    done = trainfleet(
        "rehearse",
        str(folder),
        "--context",
        cluster.state.context,
        "--yes",
        KUBECONFIG=str(tmp_path / "kubeconfig"),
    )
    assert done.returncode == 1
    assert "the cluster cannot be reached" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_field_that_another_client_changed_is_a_conflict(
    tmp_path: Path, cluster: Cluster, target: Target
) -> None:
    folder = program(tmp_path, CONFIG.format(SPACE))
    with rehearsal_session(read_project(folder), find_engine(), RehearsalOptions(cluster=target)) as r:
        step = Step("apply", "apply")
        assert r.run(step, *APPLY).ok
        cluster.kubectl("-n", SPACE, "label", "configmap", "config", "of=theirs", "--overwrite")
        r.programs.changes.append(
            {
                "type": "kubernetes:core/v1:ConfigMap",
                "name": "config",
                "path": ["metadata", "annotations", "x"],
                "value": "y",
            }
        )
        outcome = r.run(step, *APPLY)
        assert not outcome.ok
        r.failed(step, outcome)
    (problem,) = step.problems
    assert problem.where == "kubernetes:core/v1:ConfigMap config"
    assert 'conflict with "kubectl-label" using v1: .metadata.labels.of' in problem.what
