"""The launcher `--on kuberay`. `run_spec` resolves what runs, `pods` and `manifest` build its objects,
`checks` asks the cluster beforehand, and `follow` represents the run on this machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.control import RunControl, RunRef
from trainfleet.training.launch.kuberay.messages import KubeRaySpec
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.run_spec import RunSpec, resolve
from trainfleet.training.launch.remote.follower import Detached
from trainfleet.training.launch.remote.kubernetes import Cluster
from trainfleet.training.launch.remote.pod_template import for_check, stop_seconds
from trainfleet.training.launch.remote.workload_check import CheckedRun, PodCheck, workload_check
from trainfleet.training.launch.request import Target
from trainfleet.training.launch.run_check import RunCheck, Unchecked
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.listing import RunInfo


class KubeRay(Launcher[KubeRayOptions]):
    """A RayJob on a Kubernetes cluster."""

    remote = True
    detachable = True
    pod_roles = ("head", "workers")
    options_model = KubeRayOptions

    def check(self, recipe: Recipe, target: Target) -> None:
        """Reject what the cluster cannot run, as far as it can be known beforehand."""
        from trainfleet.training.launch.kuberay.checks import reach, ready_for

        options = self.options(target)
        run = resolve(recipe, target, options, os.environ)
        cluster = _connected(run)
        if options.attach:
            reach(cluster, run.namespace)
        else:
            ready_for(cluster, run)

    def usd_per_hour(self, recipe: Recipe, target: Target) -> float | None:
        """That of the pool's machines."""
        return resolve(recipe, target, self.options(target), os.environ).usd_per_hour

    def grace(self, recipe: Recipe, target: Target) -> float:
        """A longer grace period of the workers' pods counts here too."""
        run = resolve(recipe, target, self.options(target), os.environ)
        return stop_seconds(run.templates.workers, self.grace_seconds)

    def run_checks(self, recipe: Recipe, target: Target) -> list[RunCheck]:
        """A pod in the namespace of the run."""
        options = self.options(target)
        run = resolve(recipe, target, options, os.environ)
        if run.cluster:
            return [Unchecked(f"the pods of {run.cluster} have an image of their own")]
        check = workload_check(checked_run(run), options.workload_check, without_gpus=True)
        return [PodCheck(_connected(run), check)] if check is not None else []

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        """The command that creates the run's objects and follows it."""
        spec = file.with_name("kuberay.json")
        self.follower_spec(resolve(recipe, target, self.options(target), os.environ), target).write(spec)
        return [sys.executable, "-m", "trainfleet.training.launch.kuberay.follow", str(spec)]

    def place(self, recipe: Recipe, target: Target) -> dict[str, Any]:
        """Context, namespace and RayJob, and the Ray cluster if it outlives the run."""
        run = resolve(recipe, target, self.options(target), os.environ)
        context = run.context or run.outputs.kube_context
        cluster = {"ray_cluster": run.cluster} if run.cluster else {}
        return {"context": context, "namespace": run.namespace, "job": run.job, **cluster}

    def control(self, ref: RunRef) -> RunControl:
        """Through the cluster, else through the run's storage."""
        from trainfleet.training.launch.kuberay.control import KubeRayControl

        return KubeRayControl(ref)

    def runs_in(self, cluster: Cluster) -> list[RunInfo]:
        """The RayJobs of a namespace."""
        from trainfleet.training.launch.kuberay.runs import list_runs

        return [each.info() for each in list_runs(cluster)]

    def render(self, recipe: Recipe, target: Target) -> str:
        """The run's objects as YAML. Asks no cluster."""
        from trainfleet.training.launch.kuberay.manifest import render, run_objects

        return render(run_objects(resolve(recipe, target, self.options(target), os.environ)))

    def follower_spec(self, run: RunSpec, target: Target) -> KubeRaySpec:
        """The message to the follower."""
        from trainfleet.training.launch.kuberay.manifest import cluster_objects, objects_of_run

        options = self.options(target)
        pool = f"pool {run.pool.name}" if run.pool else ""
        return KubeRaySpec(
            detach=options.detach,
            within_s=run.within_s,
            saves=not run.instead,
            context=run.context,
            kubeconfig=run.outputs.kubeconfig,
            kube_context=run.outputs.kube_context,
            namespace=run.namespace,
            job=run.job,
            launch=run.launch,
            cluster=run.cluster,
            pods=run.ray_pods - 1,
            queue=run.outputs.queue,
            tried=", ".join(filter(None, [run.outputs.name or run.context or "", pool])),
            cluster_objects=[] if options.attach else cluster_objects(run),
            objects=[] if options.attach else objects_of_run(run),
            check=workload_check(
                checked_run(run), "never" if run.cluster or options.attach else options.workload_check
            ),
            attach=options.attach,
            detached=_detached(run, target),
        )


def _connected(run: RunSpec) -> Cluster:
    from trainfleet.training.launch.remote.kubernetes import connect

    return connect(run.context, run.outputs.kubeconfig, run.outputs.kube_context, run.namespace)


def checked_run(run: RunSpec) -> CheckedRun:
    """What the workload check needs of the run."""
    return CheckedRun(
        recipe=run.recipe,
        job=run.job,
        namespace=run.namespace,
        image=run.image,
        outputs=run.outputs,
        secrets=run.secrets,
        env=run.env,
        ca=run.ca,
        code=run.code,
        instead=run.instead,
        patches=for_check(run.templates.workers),
    )


def _detached(run: RunSpec, target: Target) -> Detached:
    name = run.recipe.name
    stacks = target.request.stacks
    place = f"--stack {stacks[0]}" if stacks else f"--context {run.context} --namespace {run.namespace}"
    return Detached(
        job=run.job,
        namespace=run.namespace,
        storage=run.recipe.home_url(),
        how=[
            f"submitted {name} as RayJob {run.namespace}/{run.job}",
            f"follow it  trainfleet runs attach {name} {place}",
            f"its log    trainfleet runs logs {name} {place}",
            f"stop it    trainfleet runs stop {name} {place}",
        ],
    )
