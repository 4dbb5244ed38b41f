"""What each account of the cluster layer may and may not do: can_i.toml, checked on a real API server.

The local stack is applied to the cluster. Some tests also try what a quota, Pod Security or a role rejects.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import kube_config

from tests.cluster.conftest import Cluster, until
from tests.cluster.stack import NAMESPACES, api_of, applied
from trainfleet.infra.outputs.launcher_token import Login, request_token
from trainfleet.rehearsal.on_cluster.api import Api, ApiError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
TABLE: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("can_i.toml").read_text())["account"]
REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
Right = tuple[str, str, str]
"""Group, resource with its subresource and an object's name, verb."""


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[Api]:
    """The API server, with the local stack applied."""
    with applied(cluster.name) as r:
        yield api_of(r)


def groups_of(account: dict[str, Any]) -> list[str]:
    """The groups of an account, including those that the API server adds."""
    name = account["name"]
    own = (
        ["system:serviceaccounts", f"system:serviceaccounts:{name.split(':')[2]}"]
        if name.startswith("system:serviceaccount:")
        else []
    )
    return [*account.get("groups", []), *own, "system:authenticated"]


def questions(row: str) -> Iterator[tuple[str, Right]]:
    """The namespace and the right of each question in a row of the table."""
    places, verbs, resources = row.split()
    for place in places.split(","):
        for resource in resources.split(","):
            whole, _, part = resource.partition("/")
            kind, _, group = whole.partition(".")
            for verb in verbs.split(","):
                yield "" if place == "*" else place, (group, f"{kind}/{part}" if part else kind, verb)


def may(api: Api, account: dict[str, Any], namespace: str, right: Right) -> bool:
    group, resource, verb = right
    kind, part, name, *_ = [*resource.split("/"), "", ""]
    asked = {"namespace": namespace, "group": group, "resource": kind, "subresource": part, "verb": verb}
    asked |= {"name": name} if name else {}
    spec = {"user": account["name"], "groups": groups_of(account), "resourceAttributes": asked}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(api.request("POST", REVIEW, body=body)["status"]["allowed"])


@pytest.mark.parametrize(
    "account",
    TABLE,
    ids=lambda account: f"{account['name'].rsplit(':', 1)[-1]}{'+' * bool(account.get('groups'))}",
)
def test_an_account_has_the_listed_rights_and_lacks_the_others(api: Api, account: dict[str, Any]) -> None:
    wrong = []
    for key, expected in (("may", True), ("may_not", False)):
        for row in account[key]:
            for namespace, right in questions(row):
                if may(api, account, namespace, right) is not expected:
                    may_or_not, place = "cannot" if expected else "can", namespace or "the cluster"
                    wrong.append(f"{may_or_not} {right[2]} {right[1]} {right[0]} in {place}")
    assert wrong == []


def listed(cluster: Cluster, account: dict[str, Any], namespace: str) -> set[Right]:
    """All rights of an account in a namespace, as the API server lists them."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    flags = [f"--as={account['name']}", *(f"--as-group={group}" for group in groups_of(account))]
    answer = json.loads(
        cluster.kubectl(
            "create", "--validate=false", "-f", "-", "-o", "json", *flags, given=json.dumps(review)
        )
    )["status"]
    assert not answer["incomplete"]
    return {
        (group, f"{resource}//{name}" if name else resource, verb)
        for rule in answer["resourceRules"]
        for group in rule.get("apiGroups", [""])
        for resource in rule.get("resources", [])
        for name in rule.get("resourceNames") or [""]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    "account",
    [account for account in TABLE if account.get("whole")],
    ids=lambda account: account["name"].rsplit(":", 1)[-1],
)
def test_an_account_has_no_rights_beyond_the_table(
    cluster: Cluster, api: Api, account: dict[str, Any]
) -> None:
    stranger = {"name": "nobody", "groups": []}
    expected: dict[str, set[Right]] = {namespace: set() for namespace in NAMESPACES}
    for row in account["may"]:
        for namespace, right in questions(row):
            for place in [namespace] if namespace else NAMESPACES:
                expected[place].add(right)
    for namespace in ("training", "ray-certificates", "kube-system"):
        assert (
            listed(cluster, account, namespace) - listed(cluster, stranger, namespace) == expected[namespace]
        )


def as_launcher(cluster: Cluster, api: Api, *arguments: str, given: dict[str, Any]) -> str:
    """Run kubectl with only a requested token of the launcher and return its output."""
    return as_account("launcher", cluster, api, *arguments, "-f", "-", given=given)


def as_account(
    account: str, cluster: Cluster, api: Api, *arguments: str, given: dict[str, Any] | None = None
) -> str:
    """Run kubectl with only a requested token of an account and return its output."""
    until(lambda: api.get(f"/api/v1/namespaces/training/serviceaccounts/{account}"), "the account")
    login = Login(cluster.state.context, Path(cluster.state.kubeconfig))
    token = request_token(login, "training", account, 0.2)
    # The client removes its files with the administrator's key at exit, which is after the check for files
    # that are left behind.
    kube_config._cleanup_temp_files()
    assert token.expires is not None, "the token never ends"
    document = json.loads(json.dumps(_kubeconfig(cluster)))
    document["users"][0]["user"] = {"token": token.value}
    path = cluster.state.file("config", "account-of-a-test.kubeconfig")
    path.write_text(json.dumps(document))
    try:
        from trainfleet.local_cluster.kubectl import kubectl

        done = kubectl(
            cluster.state, f"--kubeconfig={path}", *arguments, stdin=json.dumps(given), check=False
        )
    finally:
        path.unlink()
    return done.stdout + done.stderr


def _kubeconfig(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    return found


def test_a_requested_token_cannot_request_the_next_one(cluster: Cluster, api: Api) -> None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    path = "/api/v1/namespaces/training/serviceaccounts/launcher/token"
    output = as_launcher(cluster, api, "create", "--raw", path, given=review)
    assert 'serviceaccounts "launcher" is forbidden' in output
    assert 'cannot create resource "serviceaccounts/token"' in output


def pod(namespace: str, **container: Any) -> dict[str, Any]:
    metadata = {"name": "tried", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "a", "image": "a", **container}]},
    }


def test_the_launcher_token_creates_pods_only_in_the_training_namespace(cluster: Cluster, api: Api) -> None:
    until(lambda: api.get("/api/v1/namespaces/training/serviceaccounts/default"), "the namespace's account")
    assert "pod/tried created" in as_launcher(
        cluster, api, "create", "--dry-run=server", given=pod("training")
    )
    assert 'cannot create resource "pods" in API group "" in the namespace "default"' in as_launcher(
        cluster, api, "create", given=pod("default")
    )


@pytest.fixture
def labelled(api: Api) -> Iterator[str]:
    """A pod of a Ray cluster that does not exist. It never starts."""
    until(lambda: api.get("/api/v1/namespaces/training/serviceaccounts/default"), "the namespace's account")
    document = pod("training")
    document["metadata"] |= {
        "labels": {"ray.io/cluster": "tried", "trainfleet.io/run": "tried"},
        "annotations": {"example.com/kept": "yes"},
    }
    api.create(document, manager="a-test")
    yield "tried"
    path = "/api/v1/namespaces/training/pods/tried"
    api.delete(path)
    assert api.gone(path, 60)


@pytest.mark.parametrize(
    ("patch", "what"),
    [
        ({"spec": {"containers": [{"name": "a", "image": "of-somebody-else"}]}}, "specification"),
        ({"metadata": {"annotations": {"example.com/kept": "no"}}}, "annotations"),
        ({"metadata": {"annotations": {"example.com/added": "yes"}}}, "annotations"),
        ({"metadata": {"finalizers": ["example.com/kept"]}}, "finalizers"),
        ({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]}},
         "ownerReferences"),
        ({"metadata": {"labels": {"trainfleet.io/run": "another"}}}, "labels"),
        ({"metadata": {"labels": {"trainfleet.io/run": None}}}, "labels"),
        ({"metadata": {"labels": {"app": "added"}}}, "labels by a new one"),
        ({"metadata": {"labels": {"ray.io/cluster": "another"}}}, "labels"),
        ({"metadata": {"labels": {"ray.io/cluster": None}}}, "labels"),
        ({"metadata": {"labels": {"ray.io/cluster": "trainfleet.lost"}}}, ""),
    ],
)  # fmt: skip
def test_training_pods_may_change_only_the_label_by_which_a_pod_is_counted(
    patch: dict[str, Any], what: str, labelled: str, cluster: Cluster, api: Api
) -> None:
    kind = "strategic" if "spec" in patch else "merge"
    arguments = ("patch", "pod", labelled, "-n", "training", f"--type={kind}", "-p", json.dumps(patch))
    if what:
        message = f"training pods may not change the {what} of a pod"

        def rejected() -> bool:
            return message in as_account("trainer", cluster, api, *arguments, "--dry-run=server")

        # The API server takes a new policy up some seconds after its creation.
        until(rejected, message)
        return
    assert "pod/tried patched" in as_account("trainer", cluster, api, *arguments)
    found = api.get("/api/v1/namespaces/training/pods/tried")
    assert found is not None
    expected = {"ray.io/cluster": "trainfleet.lost", "trainfleet.io/run": "tried"}
    assert found["metadata"]["labels"] | expected == found["metadata"]["labels"]


def test_pod_security_rejects_a_privileged_pod(cluster: Cluster, api: Api) -> None:
    until(lambda: api.get("/api/v1/namespaces/training/serviceaccounts/default"), "the namespace's account")
    output = as_launcher(cluster, api, "create", given=pod("training", securityContext={"privileged": True}))
    assert 'violates PodSecurity "baseline:latest": privileged' in output


def test_the_quota_rejects_a_load_balancer(cluster: Cluster, api: Api) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "tried", "namespace": "training"}}
    service |= {"spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}
    until(
        lambda: (api.get("/api/v1/namespaces/training/resourcequotas/no-load-balancers") or {}).get("status"),
        "the quota's first count",
    )
    assert "exceeded quota: no-load-balancers" in as_launcher(cluster, api, "create", given=service)


def test_the_limit_range_sets_default_requests(api: Api) -> None:
    until(lambda: api.get("/api/v1/namespaces/training/serviceaccounts/default"), "the namespace's account")
    made = api.create(pod("training"), dry_run=True)
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}


def test_a_misspelt_field_of_a_custom_resource_is_rejected(api: Api) -> None:
    monitor = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "tried", "namespace": "monitoring"},
    }
    with pytest.raises(ApiError, match="podMetricsEndpoint"):
        api.apply({**monitor, "spec": {"selector": {}, "podMetricsEndpoint": []}}, dry_run=True)


def ray_cluster(namespace: str) -> dict[str, Any]:
    """A Ray cluster whose head never starts: its image does not exist. The tests need only its pod."""
    head = {
        "rayStartParams": {},
        "template": {
            "spec": {"containers": [{"name": "ray", "image": "localhost/none:1", "imagePullPolicy": "Never"}]}
        },
    }
    spec = {"rayVersion": "2.60.0", "headGroupSpec": head}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "tried", "namespace": namespace},
        "spec": spec,
    }


def test_the_operator_of_the_stack_serves_only_the_training_namespace(cluster: Cluster, api: Api) -> None:
    for namespace in ("default", "training"):
        api.create(ray_cluster(namespace), manager="a-test")
    try:
        path = "/api/v1/namespaces/{}/pods"
        selector = {"labelSelector": "ray.io/cluster=tried"}
        until(lambda: api.request("GET", path.format("training"), selector).get("items"), "the head's pod")
        assert not api.request("GET", path.format("default"), selector).get("items")
        assert not (api.get("/apis/ray.io/v1/namespaces/default/rayclusters/tried") or {}).get("status")
    finally:
        for namespace in ("default", "training"):
            gone = f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters/tried"
            api.delete(gone)
            assert api.gone(gone, 60)
