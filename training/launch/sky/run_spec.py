"""A run by SkyPilot, resolved: the platforms, the plan of pools, and the task."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.platform_outputs import NamedPlatform, external_cluster
from trainfleet.training.launch.remote import pod_template
from trainfleet.training.launch.remote.priority import choose_priority
from trainfleet.training.launch.remote.secret_variables import unset
from trainfleet.training.launch.remote.storage_env import authority, forwarded
from trainfleet.training.launch.request import Target
from trainfleet.training.launch.sky.namespace import namespace_of
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.plan import Candidate, Plan, make_plan
from trainfleet.training.launch.sky.task import TaskOptions, task_document
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import events
from trainfleet.training.runtime.code_archive import CODE

CLUSTER_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


@dataclass(frozen=True)
class RunSpec:
    """A task with its pools as alternatives, and the plan that it follows."""

    task: dict[str, Any]
    plan: Plan
    platforms: dict[str, PlatformOutputs]

    @property
    def tried(self) -> list[Candidate]:
        """The pools of the task, which has one number of pods."""
        return [each for each in self.plan.possible if each.nodes == self.plan.possible[0].nodes]


def by_name(platforms: Sequence[NamedPlatform]) -> list[tuple[str, PlatformOutputs]]:
    """Each platform's outputs by the name under which a plan shows them."""
    return [(platform.name, platform.outputs) for platform in platforms]


def resolve(recipe: Recipe, target: Target, options: SkyOptions, env: Mapping[str, str]) -> RunSpec:
    """What a launch runs, and where it is tried.

    Raises:
        InputError: no pool can run it (with the reason of every pool), or a secret is not set.
    """
    if problems := _without_effect(recipe, target, options):
        raise InputError("SkyPilot cannot run this as requested", problems)
    platforms = _platforms(target, options, env)
    # Every alternative writes to one storage, which pods in another cloud cannot open without keys.
    plan = make_plan(recipe, platforms, options.plan_options(recipe.home_url()))
    if not plan.possible:
        problems = [
            Problem(f"{each.platform}/{each.pool}".rstrip("/"), "; ".join(each.refusals))
            for each in plan.refused
        ]
        raise InputError("no platform can run this recipe", problems)
    if missing := [name for name in options.secrets if name not in env]:
        problems = [Problem(f"--secret {name}", "is not set", f"export {name}=...") for name in missing]
        raise InputError("a secret is missing", problems)
    allowed = ",".join(target.request.allow_changes)
    settings = {
        events.ALLOW_CHANGES: allowed,
        events.JOB: target.request.job,
        CODE: target.code_url,
        events.NOTIFIED_LAUNCH: target.launch_id if recipe.notifications.enabled else "",
    }
    priorities, problems = _priorities(platforms, options)
    if problems:
        raise InputError("SkyPilot cannot run this as requested", problems)
    names = set.intersection(*(set(outputs.secrets) for _, outputs in platforms))
    unknown = bool(options.from_secrets or options.pod_template)
    fix = "secrets.names of every platform, --secret NAME or --from-secret NAME"
    if problems := unset(recipe.notifications, names, options.secrets, unknown=unknown, fix=fix):
        raise InputError("notifications cannot be sent", problems)
    task_options = TaskOptions(
        name=recipe.name,
        managed=options.managed,
        token=secrets.token_hex(32),
        secrets={name: env[name] for name in options.secrets},
        settings=forwarded(env) | {name: value for name, value in settings.items() if value},
        authority=authority(env),
        from_secrets=options.from_secrets,
        patches=run_patches(recipe, options),
        priorities=priorities,
        cluster=options.cluster,
    )
    task = task_document(recipe, plan.possible, dict(platforms), task_options)
    return RunSpec(task, plan, dict(platforms))


def _priorities(
    platforms: Sequence[tuple[str, PlatformOutputs]], options: SkyOptions
) -> tuple[dict[str, str], list[Problem]]:
    """The priority class on each platform, if the run asks for one; else that of the context."""
    if options.priority is None:
        return {}, []
    chosen = {name: choose_priority(each.priority_classes, options.priority) for name, each in platforms}
    problems = [replace(each, where=f"{name}: {each.where}") for name in chosen for each in chosen[name][1]]
    return {name: each for name, (each, _) in chosen.items()}, problems


def run_patches(recipe: Recipe, options: SkyOptions) -> tuple[dict[str, Any], ...]:
    """The run's changes of the pods, which are equal: SkyPilot's first pod is also a worker.

    Raises:
        InputError: a change of the head.
    """
    option = pod_template.load(options.pod_template)
    heads = {"pod_template.head": recipe.pod_template.head, f"{options.pod_template}: head": option.head}
    what = "SkyPilot's pods are equal: each of them trains"
    if problems := [Problem(where, what, "only `workers:`") for where, head in heads.items() if head]:
        raise InputError("SkyPilot cannot run this as requested", problems)
    return tuple(each for each in (recipe.pod_template.workers, option.workers) if each)


def _without_effect(recipe: Recipe, target: Target, options: SkyOptions) -> list[Problem]:
    """The options that this launch could not honour."""
    given = {"--context": options.context, "--namespace": options.namespace}
    named = [flag for flag, value in given.items() if value and target.platforms]
    problems = [
        Problem(flag, "a stack defines its own", "leave it out, or leave out --stack") for flag in named
    ]
    problems += _of_clusters(options)
    if recipe.scaling.use_gpu:
        if options.nodes != 1:
            what = "is for recipes without GPUs: the machines of the pool decide how many pods a run has"
            problems.append(Problem("--nodes", what, "leave it out"))
        return problems
    of_pools = {"--pool": options.pool, "--price": options.prices, "--no-spot": not options.spot}
    what = "chooses between pools with GPUs, and this recipe trains without"
    return [
        *problems,
        *(
            Problem(flag, what, "leave it out, or scaling.use_gpu=true")
            for flag, value in of_pools.items()
            if value
        ),
    ]


def _of_clusters(options: SkyOptions) -> list[Problem]:
    """What a cluster that outlives its runs rules out, and what it alone has."""
    name = options.cluster
    if name is None:
        what = "a run without --cluster deletes its pods at its end"
        return (
            [Problem("--idle", what, "leave it out, or add --cluster NAME")] if options.idle_minutes else []
        )
    problems = []
    if not CLUSTER_NAME.fullmatch(name) or name.startswith("tf-"):
        what = "a name has at most 40 of a-z, 0-9 and -, begins with a letter, and not with tf-, as runs do"
        problems.append(Problem(f"--cluster {name}", what, "such as --cluster shared"))
    if options.managed:
        what = "SkyPilot moves a managed job to pods of its own, which end with it"
        problems.append(Problem("--managed", what, "leave it out, or leave out --cluster"))
    if options.priority:
        what = f"the pods of {name} keep their priority"
        problems.append(Problem("--priority", what, "leave it out, or leave out --cluster"))
    if options.workload_check == "always":
        what = f"the pods of {name} check the workload themselves, within seconds"
        problems.append(Problem("--workload-check always", what, "leave it out, or leave out --cluster"))
    return problems


def _platforms(
    target: Target, options: SkyOptions, env: Mapping[str, str]
) -> list[tuple[str, PlatformOutputs]]:
    """The platforms of `--stack`, or the cluster of `--context`, with the image that was requested."""
    if target.platforms:
        platforms = by_name(target.platforms)
        image = {} if options.image is None else {"image": options.image}
        return [(name, outputs.model_copy(update=image)) for name, outputs in platforms]
    if options.context is None:
        fix = "--stack OUTPUTS.json (repeatable), or --context NAME --image REF --storage URL"
        raise InputError("no platform is named", [Problem("--stack", "is missing", fix)])
    if options.image is None:
        fix = "an image with this Trainfleet, Ray and torch"
        raise InputError("no image is named", [Problem("--image", "is required with --context", fix)])
    namespace = namespace_of(options.context, options.namespace, env)
    storage = target.request.storage or ""
    return [(options.context, external_cluster(options.context, namespace, options.image, storage))]
