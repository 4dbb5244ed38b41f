"""Policies check what a chart renders: what is new of it, and which level it has."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.repos import PARTS, Repo
from trainfleet.rehearsal.diff.chart_policies import OF_HELM, failing_in_charts
from trainfleet.rehearsal.diff.charts import BothRenderings, ComparedCharts
from trainfleet.rehearsal.diff.helm.chart import CHART, RELEASE, Chart
from trainfleet.rehearsal.diff.helm.template import Rendering, objects_of

Diffs = Callable[..., "subprocess.CompletedProcess[str]"]
SAFE = "securityContext: {allowPrivilegeEscalation: false}, image: 'db@sha256:0'"
POD = """apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{containers: [{{name: main, {container}}}]}}
---
"""
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {token: planted-42d1}\n---\n"
PACK = """from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy, StackValidationPolicy

def privileged(args, report):
    print("a policy may print")
    if args.resource_type != "kubernetes:core/v1:Pod":
        return
    for each in args.props["spec"]["containers"]:
        if each.get("securityContext", {}).get("privileged"):
            report(f"{args.name} in {args.props['metadata']['namespace']} is privileged")

async def token(args, report):
    if args.resource_type == "kubernetes:core/v1:Secret":
        report(f"holds {args.props['stringData']['token']}")

def whole(args, report):
    report("not called")

PolicyPack("tiny", [
    ResourceValidationPolicy("no-privileged-pods", "d", privileged, EnforcementLevel.MANDATORY),
    ResourceValidationPolicy("no-tokens", "d", token, EnforcementLevel.ADVISORY),
    ResourceValidationPolicy("off", "d", lambda args, report: report("off"), EnforcementLevel.DISABLED),
    StackValidationPolicy("whole", "d", whole),
])
"""


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "PulumiPolicy.yaml").write_text("runtime: python\n")
    (folder / "__main__.py").write_text(PACK)
    return folder


def chart(token: str) -> Chart:
    return Chart(f"urn:pulumi:one::tiny::{token}::queue", token, "./queue", "", "", "queue", "jobs")


def charts(token: str, before: str, after: str) -> ComparedCharts:
    one = chart(token)
    sides = (Rendering(objects_of(text, one)) for text in (before, after))
    return ComparedCharts(renderings=(BothRenderings(one, next(sides), one, next(sides)),))


def pod(name: str, container: str = SAFE) -> str:
    return POD.format(name=name, container=container)


PRIVILEGED = "securityContext: {privileged: true}"


@pytest.mark.parametrize(
    ("token", "level", "end"), [(CHART, "mandatory", "privileged"), (RELEASE, "advisory", OF_HELM)]
)
def test_only_what_is_new_is_reported(pack: Path, token: str, level: str, end: str) -> None:
    old = pod("kept", PRIVILEGED) + pod("raised")
    new = pod("kept", f"{PRIVILEGED}, image: 'db'") + pod("raised", PRIVILEGED) + pod("fine")
    (found,), notes = failing_in_charts(charts(token, old, new), pack, pack.parent, {})
    assert notes == []
    assert (found.policy, found.resource, found.level) == (
        "no-privileged-pods",
        "Pod raised of chart queue",
        level,
    )
    assert found.message.startswith("raised in jobs is privileged")
    assert found.message.endswith(end)


def test_a_policy_does_not_see_the_data_of_a_secret(pack: Path) -> None:
    (found,), _ = failing_in_charts(charts(CHART, "", SECRET), pack, pack.parent, {})
    assert (found.policy, found.message) == ("no-tokens", "holds [secret]")


def test_a_pack_that_fails_is_a_note(pack: Path) -> None:
    (pack / "__main__.py").write_text("raise SystemError('broken')")
    found, (note,) = failing_in_charts(charts(CHART, "", pod("new")), pack, pack.parent, {})
    assert found == ()
    assert "could not be checked against the policies: SystemError: broken" in note


def test_the_own_pack_checks_the_objects_of_a_chart(root: Path) -> None:
    found, notes = failing_in_charts(
        charts(CHART, pod("runner"), pod("runner", PRIVILEGED)), root / "policies", root, {}
    )
    assert notes == []
    assert "Pod runner of chart queue" in {each.resource for each in found}


def test_without_a_pack_nothing_is_checked() -> None:
    assert failing_in_charts(charts(CHART, "", pod("new", PRIVILEGED)), None, Path(), {}) == ((), [])


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["helm.v3.Release", "helm.v4.Chart"])
def test_a_diff_reports_what_a_chart_newly_violates(
    repo: Repo, diff: Diffs, tmp_path: Path, pack: Path, kind: str
) -> None:
    """With a program in place of helm, which prints the chart's file."""
    helm = tmp_path / "bin" / "helm"
    helm.parent.mkdir()
    helm.write_text('#!/bin/sh\nfor last; do :; done\ncat "$last/objects.yaml"\n')
    helm.chmod(helm.stat().st_mode | stat.S_IXUSR)
    install = f"""    import pulumi_kubernetes as kubernetes

    cluster = kubernetes.Provider("cluster", kubeconfig="{{}}", cluster_identifier="c")
    kubernetes.{kind}("queue", chart="./queue", opts=pulumi.ResourceOptions(provider=cluster))
"""
    repo.replace(PARTS, "    vpc = aws.ec2.Vpc(", f"{install}\n    vpc = aws.ec2.Vpc(")
    for file in pack.iterdir():
        repo.write(f"policies/{file.name}", file.read_text())
    repo.write("queue/Chart.yaml", "name: queue\nversion: 1.0.0\n")
    repo.write("queue/objects.yaml", pod("db"))
    repo.commit("a chart")
    repo.write("queue/objects.yaml", pod("db", PRIVILEGED))
    repo.commit("privileged")
    done = diff("one", "--json", PATH=f"{helm.parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode in (2, 3), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert [(each["policy"], each["resource"]) for each in document["policies"]["newly_failing"]] == [
        ("no-privileged-pods", "Pod db of chart queue")
    ]
