"""`--on kuberay`: Ray on a Kubernetes cluster, made for the run by KubeRay and taken down with it, or a
long-lived one (`--cluster`).

Used by `trainfleet.training.launch.supervise` as any way to start a run. `site` decides, `pods` and
`manifest` write it down, `checks` looks before
anything is made, and `follow` is the process that stands for the run on this machine. Nothing else differs
from `--on local`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.training.recipe.schema import Recipe

if TYPE_CHECKING:
    from trainfleet.training.launch.kuberay.client import Cluster
    from trainfleet.training.launch.kuberay.run_spec import Site
    from trainfleet.training.launch.request import Target

AFAR = True
GRACE_S = 180.0
"""A run that is asked to stop uploads its checkpoint first."""


def check(recipe: Recipe, target: Target) -> None:
    """Refuse what the cluster cannot run, as far as can be seen before.

    Raises:
        InputError: options, storage, pool, or what the cluster lacks.
        MissingToolError: no KubeRay there, or not the package `kubernetes` here.
    """
    from trainfleet.training.launch.kuberay.checks import reach, ready_for
    from trainfleet.training.launch.kuberay.run_spec import decide

    site = decide(recipe, target, os.environ)
    cluster = _cluster(site)
    if target.request.options.get("attach"):
        reach(cluster, site.namespace)
    else:
        ready_for(cluster, site)


def command(recipe: Recipe, file: Path, target: Target) -> list[str]:
    """The command that follows the run of `recipe`; what it needs to know lies beside `file`."""
    from trainfleet.training.launch.kuberay.run_spec import decide

    site = decide(recipe, target, os.environ)
    spec = file.with_name("kuberay.json")
    spec.write_text(json.dumps(specification(site, target)), encoding="utf-8")
    spec.chmod(0o600)
    return [sys.executable, "-m", "trainfleet.training.launch.kuberay.follow", str(spec)]


def render(recipe: Recipe, target: Target) -> str:
    """The run's objects as YAML, without asking any cluster."""
    from trainfleet.training.launch.kuberay.manifest import render as rendered
    from trainfleet.training.launch.kuberay.manifest import run_objects
    from trainfleet.training.launch.kuberay.run_spec import decide

    return rendered(run_objects(decide(recipe, target, os.environ)))


def specification(site: Site, target: Target) -> dict[str, Any]:
    """What the following process is told."""
    from trainfleet.training.launch.kuberay.manifest import run_objects

    run, where = site.recipe.name, " ".join(_same_place(site, target))
    return {
        "context": site.context,
        "kubeconfig": site.outputs.kubeconfig,
        "kube_context": site.outputs.kube_context,
        "namespace": site.namespace,
        "job": site.job,
        "launch": site.launch,
        "cluster": site.cluster,
        "pods": site.pods,
        "queue": site.outputs.queue,
        "within_s": site.within_s,
        "tried": ", ".join(
            filter(
                None, [site.outputs.name or site.context or "", f"pool {site.pool.name}" if site.pool else ""]
            )
        ),
        "objects": run_objects(site),
        "attach": bool(target.request.options.get("attach")),
        "detach": target.request.detach,
        "detached": {
            "job": site.job,
            "namespace": site.namespace,
            "storage": site.recipe.home_url(),
            "how": [
                f"{run} was handed over as RayJob {site.namespace}/{site.job}",
                f"watch it   trainfleet runs attach {run} {where}",
                f"its log    trainfleet runs logs {run} {where}",
                f"end it     trainfleet runs stop {run} {where}",
            ],
        },
    }


def _same_place(site: Site, target: Target) -> list[str]:
    if target.request.stacks:
        return ["--stack", target.request.stacks[0]]
    return ["--context", str(site.context), "--namespace", site.namespace]


def _cluster(site: Site) -> Cluster:
    from trainfleet.training.launch.kuberay.client import connect

    return connect(site.context, site.outputs.kubeconfig, site.outputs.kube_context, site.namespace)
