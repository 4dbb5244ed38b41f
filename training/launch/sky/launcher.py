"""The launcher `--on sky`. `run_spec` resolves the task and its alternatives; `follow` hands it to SkyPilot.

SkyPilot takes seconds to import, so only the follower's process and `render` do it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.control import RunControl, RunRef
from trainfleet.training.launch.options import When
from trainfleet.training.launch.remote.kubernetes import Cluster, connect
from trainfleet.training.launch.remote.platform_objects import platform_objects, pod_secrets
from trainfleet.training.launch.remote.pod_template import for_check, of_platform, stop_seconds
from trainfleet.training.launch.remote.storage_env import authority, forwarded, require_reachable
from trainfleet.training.launch.remote.workload_check import (
    CheckedRun,
    PodCheck,
    WorkloadCheck,
    workload_check,
)
from trainfleet.training.launch.request import Target
from trainfleet.training.launch.run_check import RunCheck, Unchecked
from trainfleet.training.launch.sky.configure import config_path
from trainfleet.training.launch.sky.kept_cluster import CLUSTER_LABEL
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.pods import SKY_LABEL, context_problem, runs_of
from trainfleet.training.launch.sky.probe import outdated_certificates
from trainfleet.training.launch.sky.run_spec import RunSpec, resolve, run_patches
from trainfleet.training.launch.sky.server import (
    answers,
    ensure_server,
    remote_endpoint,
    require_server,
    shown,
)
from trainfleet.training.launch.sky.skypilot import parse, require_skypilot, to_yaml
from trainfleet.training.launch.sky.task import RUN_LABEL, cluster_name, left_out, redacted
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.listing import RunInfo


class Sky(Launcher[SkyOptions]):
    """A SkyPilot task on one of several platforms."""

    remote = True
    detachable = True
    pod_roles = ("workers",)
    options_model = SkyOptions

    def check(self, recipe: Recipe, target: Target) -> None:
        """Reject what cannot run on any platform, and a run that would be stored on its pods' disks."""
        require_skypilot()
        require_reachable(recipe.storage, os.environ)
        _require_no_check(self.options(target))
        resolve(recipe, target, self.options(target), os.environ)

    def usd_per_hour(self, recipe: Recipe, target: Target) -> float | None:
        """That of the cheapest pool that SkyPilot may choose."""
        run = resolve(recipe, target, self.options(target), os.environ)
        return min((each.usd_per_hour for each in run.tried if each.usd_per_hour), default=None)

    def grace(self, recipe: Recipe, target: Target) -> float:
        """A longer grace period of the pods counts here too."""
        return stop_seconds(run_patches(recipe, self.options(target)), self.grace_seconds)

    def place(self, recipe: Recipe, target: Target) -> dict[str, Any]:
        """The SkyPilot cluster or managed job, and the contexts that are tried, with their namespaces."""
        options = self.options(target)
        run = resolve(recipe, target, options, os.environ)
        return {
            "cluster": options.cluster or cluster_name(recipe.name),
            "managed": options.managed,
            "kept": options.cluster is not None,
            "selector": f"{CLUSTER_LABEL if options.cluster else RUN_LABEL}={options.cluster or recipe.name}",
            "contexts": {each.context: run.platforms[each.platform].namespace for each in run.tried},
        }

    def control(self, ref: RunRef) -> RunControl:
        """Through SkyPilot, the run's pods or its storage."""
        from trainfleet.training.launch.sky.control import SkyControl

        return SkyControl(ref)

    def runs_in(self, cluster: Cluster) -> list[RunInfo]:
        """The runs whose SkyPilot pods are in a namespace."""
        return runs_of(cluster.items("Pod", f"{RUN_LABEL},{SKY_LABEL}"))

    def render(self, recipe: Recipe, target: Target) -> str:
        """The task as YAML, after SkyPilot's parser accepted it. Secrets are hidden."""
        require_skypilot()
        run = resolve(recipe, target, self.options(target), os.environ)
        parse(run.task)
        return "".join(f"# left out: {each}\n" for each in left_out(run.plan)) + to_yaml(redacted(run.task))

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        """The command that has SkyPilot run the task and reports what it prints."""
        options = self.options(target)
        run = resolve(recipe, target, options, os.environ)
        contexts = {each.context: run.platforms[each.platform].namespace for each in run.tried}
        label = CLUSTER_LABEL if options.cluster else RUN_LABEL
        config = config_path(os.environ)
        endpoint = remote_endpoint(os.environ, config)
        if endpoint:
            require_server(endpoint)
        else:
            _require_current_certificates(run)
            usable = (context_problem(*each) is None for each in contexts.items())
            if not answers(os.environ) and any(usable):
                # Now, so that the launch does not wait for it, and a failure to start is reported first.
                ensure_server(os.environ, config)
        spec = file.with_name("sky.json")
        SkySpec(
            detach=options.detach,
            within_s=options.within_s,
            saves=not target.request.job,
            task=run.task,
            cluster=options.cluster or cluster_name(recipe.name),
            run=recipe.name,
            managed=options.managed,
            kept=options.cluster is not None,
            server=shown(endpoint),
            idle_minutes=options.idle_minutes,
            selector=f"{label}={options.cluster or recipe.name}",
            contexts=contexts,
            required={
                each.context: platform_objects(outputs, pod_secrets(outputs, options.from_secrets))
                for each in run.tried
                for outputs in (run.platforms[each.platform],)
            },
            checks={} if endpoint else self._checks(run, recipe, target),
            left_out=left_out(run.plan),
        ).write(spec)
        return [sys.executable, "-m", "trainfleet.training.launch.sky.follow", str(spec)]

    def run_checks(self, recipe: Recipe, target: Target) -> list[RunCheck]:
        """A pod on each cluster that is tried. Those that cannot be used are left out, as by the run."""
        options = self.options(target)
        if options.cluster:
            return [Unchecked(f"the pods of {options.cluster} have an image of their own")]
        if endpoint := remote_endpoint(os.environ, config_path(os.environ)):
            return [Unchecked(f"the clusters are reached by SkyPilot's server at {shown(endpoint)}")]
        run = resolve(recipe, target, options, os.environ)
        checks = self._checks(run, recipe, target, without_gpus=True)
        platforms = {each.context: run.platforms[each.platform] for each in run.tried}
        found: list[RunCheck] = []
        problems = []
        for context, outputs in platforms.items():
            required = platform_objects(outputs, pod_secrets(outputs, options.from_secrets))
            if why := context_problem(context, outputs.namespace, required):
                problems.append(Problem(context, why))
            elif context in checks:
                cluster = connect(context, "", "", outputs.namespace)
                found.append(PodCheck(cluster, checks[context], context))
        if len(problems) == len(platforms):
            raise InputError("no context can be used", problems)
        return found

    def _checks(
        self, run: RunSpec, recipe: Recipe, target: Target, *, without_gpus: bool = False
    ) -> dict[str, WorkloadCheck]:
        """What validates the workload, by context."""
        options = self.options(target)
        found = {}
        for each in run.tried:
            outputs = run.platforms[each.platform]
            pool = next((one for one in outputs.pools if one.name == each.pool), None)
            checked = CheckedRun(
                recipe=recipe,
                job=cluster_name(recipe.name),
                namespace=outputs.namespace,
                image=outputs.image,
                outputs=outputs,
                secrets=pod_secrets(outputs, options.from_secrets),
                env=forwarded(os.environ),
                ca=authority(os.environ),
                code=target.code_url,
                instead=target.request.job,
                secret_values={name: os.environ[name] for name in options.secrets},
                patches=for_check([*of_platform(outputs, pool), *run_patches(recipe, options)]),
            )
            when: When = "never" if options.cluster else options.workload_check
            if check := workload_check(checked, when, without_gpus=without_gpus):
                found[each.context] = check
        return found


def _require_current_certificates(run: RunSpec) -> None:
    """Reject a configuration whose pods would wait for ever for a Secret that the platform has no more."""
    platforms = [run.platforms[each.platform] for each in run.tried]
    found = [problem for outputs in platforms for problem in outdated_certificates(outputs, os.environ)]
    if found:
        raise InputError("SkyPilot's configuration is older than the platform", dict.fromkeys(found))


def _require_no_check(options: SkyOptions) -> None:
    """The workload check is a pod that this machine creates, and only a team's server may reach the cluster.

    Raises:
        InputError: it is required.
    """
    endpoint = remote_endpoint(os.environ, config_path(os.environ))
    if endpoint and options.workload_check == "always":
        what = f"the clusters are reached by SkyPilot's server at {shown(endpoint)}, not by this machine"
        problem = Problem("--workload-check always", what, "leave it out; the pods check the workload too")
        raise InputError("the workload cannot be checked first", [problem])
