"""Validate a recipe document: the schema and the rules between keys, all mistakes at once."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError, create_model

from trainfleet.errors import InputError, Problem
from trainfleet.pod_patches import patch_problems
from trainfleet.pydantic_messages import explain, part_at, path_text
from trainfleet.suggestions import did_you_mean, nearest
from trainfleet.training.recipe.schema import MOMENTUM, Recipe
from trainfleet.training.recipe.schema_data import PREFETCH_FACTOR, RESERVED_CPUS
from trainfleet.training.recipe.schema_tuning import PublishConfig, Space, TuneConfig
from trainfleet.training.stores.urls import parse
from trainfleet.training.workloads.settings import BrokenRule, WorkloadSettings, names, settings_of

KeyPath = tuple[str, ...]
"""Keys from the root of a recipe to a value."""
_PLACEHOLDERS: dict[KeyPath, Any] = {
    ("name",): "rejected",
    ("workload",): {"name": "lm"},
    ("workload", "name"): "lm",
}
"""Replace rejected values of required keys, so that the rest of the document can be validated."""
_MAX_PASSES = 8
INDIVISIBLE = "cannot be divided among"
"""Part of the message about a batch that the workers cannot share. A search ignores it, since another value
of
the search may satisfy the rule.
"""


def check(document: Mapping[str, Any]) -> tuple[Recipe | None, list[tuple[KeyPath, Problem]]]:
    """Validate a document.

    Returns:
        The recipe (None if it cannot be built at all), and every mistake with its key path.
    """
    found: list[tuple[KeyPath, Problem]] = []
    rejected: list[KeyPath] = []
    plain = _copy(document)
    model = _select_model(plain, found, rejected)
    for _ in range(_MAX_PASSES):
        try:
            recipe = Recipe.model_validate(plain)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                keys = tuple(step for step in each["loc"] if isinstance(step, str))
                if not any(keys[: len(other)] == other for other in rejected):
                    found.append((keys, explain(each, model)))
                    rejected.append(keys)
                _repair(plain, keys, model)
        else:
            found += [
                (keys[0], Problem(path_text(keys[0]), what, fix))
                for keys, what, fix in _broken_rules(recipe)
                if not any(each in rejected for each in keys)
            ]
            return recipe, found
    return None, found


def _select_model(
    plain: dict[str, Any], found: list[tuple[KeyPath, Problem]], rejected: list[KeyPath]
) -> type[Recipe]:
    """The recipe model for the selected workload. An unknown workload is reported and replaced in `plain`."""
    keys, workload = ("workload", "name"), plain.get("workload")
    name = workload.get("name") if isinstance(workload, dict) else None
    if not isinstance(workload, dict) or not isinstance(name, str):
        return _model_with(settings_of(_PLACEHOLDERS[keys]))
    try:
        return _model_with(settings_of(name))
    except InputError as error:
        found += [(keys, problem) for problem in error.problems]
        rejected.append(keys)
    similar = nearest(name, names())
    plain["workload"] = workload | {"name": similar} if similar else dict(_PLACEHOLDERS[keys[:1]])
    return _model_with(settings_of(plain["workload"]["name"]))


@functools.cache
def _model_with(settings: type[WorkloadSettings]) -> type[Recipe]:
    """A recipe model with one workload's settings, to look up fields for messages."""
    return create_model("Recipe", __base__=Recipe, workload=(settings, ...))


def _broken_rules(recipe: Recipe) -> Iterator[tuple[list[KeyPath], str, str]]:
    """The keys that each broken rule reads (the first one is reported), what is wrong, and the fix."""
    schema_rules = (
        _duration_rules,
        _batch_rules,
        _loading_rules,
        _sharding_rules,
        _optimizer_rules,
        _float8_rules,
        _checkpoint_rules,
        _profile_rules,
        _storage_rules,
        _notification_rules,
        _pod_rules,
    )
    for rules in schema_rules:
        for reads, what, fix in rules(recipe):
            yield [tuple(each.split(".")) for each in reads.split()], what, fix
    for reads, what, fix in recipe.workload.check_recipe(recipe):
        yield [tuple(each.split(".")) for each in reads.split()], what, fix
    for key, what, fix in _metric_rules(recipe):
        yield [tuple(key.split("."))], what, fix


def _duration_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    if recipe.steps is None and recipe.epochs is None:
        yield "steps epochs", "the length of the training is missing", "give one of `steps` and `epochs`"
    elif recipe.steps is not None and recipe.epochs is not None:
        yield "steps epochs", "both `steps` and `epochs` are given", "give one of `steps` and `epochs`"


def _batch_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    batch, scaling = recipe.batch, recipe.scaling
    share = batch.micro_batch * scaling.workers
    if batch.global_batch % share:
        closest = max(share, round(batch.global_batch / share) * share)
        yield (
            "batch.global_batch batch.micro_batch scaling.workers",
            f"{batch.global_batch} {INDIVISIBLE} {scaling.workers} workers in micro batches of"
            f" {batch.micro_batch}",
            f"a multiple of {share}, such as {closest}",
        )
    if scaling.min_workers is not None and scaling.min_workers > scaling.workers:
        what = f"{scaling.min_workers} is more than scaling.workers, {scaling.workers}"
        yield "scaling.min_workers scaling.workers", what, f"at most {scaling.workers}"


def _loading_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    loading = recipe.data_loading
    if loading.workers == 0 and loading.prefetch_factor != PREFETCH_FACTOR:
        what = "nothing is built ahead with data_loading.workers=0"
        yield "data_loading.prefetch_factor data_loading.workers", what, "at least 1 worker, or leave it out"
    if loading.engine == "ray" and loading.workers == 0:
        what = "`ray` builds nothing with data_loading.workers=0"
        yield "data_loading.engine data_loading.workers", what, "at least 1 worker, or engine=threads"
    if loading.engine != "ray" and loading.cpus_per_worker != RESERVED_CPUS:
        what = f"`{loading.engine}` reserves no CPUs"
        yield "data_loading.cpus_per_worker data_loading.engine", what, "engine=ray, or leave it out"


def _sharding_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    replicas, workers = recipe.sharding.replicas, recipe.scaling.workers
    if replicas is not None and recipe.strategy != "hsdp":
        what = f"only `hsdp` replicates shards, not `{recipe.strategy}`"
        yield "sharding.replicas strategy", what, "strategy=hsdp, or leave it out"
    elif replicas is not None and workers % replicas:
        what = f"{workers} workers cannot be divided into {replicas} replicas"
        yield "sharding.replicas scaling.workers", what, f"a divisor of {workers}"
    if recipe.sharding.cpu_offload and recipe.strategy == "ddp":
        what = "`ddp` keeps the whole model on the device"
        yield "sharding.cpu_offload strategy", what, "strategy=fsdp, or leave it out"


def _optimizer_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    optimizer = recipe.optimizer
    if recipe.steps is not None and optimizer.warmup > recipe.steps:
        what = f"{optimizer.warmup} is more than all {recipe.steps} steps"
        yield "optimizer.warmup steps", what, "warm up for a small share of the steps"
    if any(not 0 <= beta < 1 for beta in optimizer.betas):
        yield "optimizer.betas", f"{list(optimizer.betas)} must be within [0, 1)", "such as [0.9, 0.95]"
    if optimizer.name == "muon" and recipe.sharding.cpu_offload:
        what = "`muon` gathers each matrix on the devices, and shards in host memory are not there"
        fix = "sharding.cpu_offload=false, or optimizer.name=adamw"
        yield "optimizer.name sharding.cpu_offload", what, fix
    if optimizer.name != "muon" and optimizer.momentum != MOMENTUM:
        what = f"`{optimizer.name}` has no momentum of this kind"
        yield "optimizer.momentum optimizer.name", what, "optimizer.name=muon, or leave it out"


def _float8_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    used = recipe.float8.scaling != "none"
    if used and recipe.precision != "bf16":
        what = f"the other operations are in bf16, not in {recipe.precision}"
        yield "float8.scaling precision", what, "precision=bf16, or float8.scaling=none"
    if recipe.float8.emulate and not used:
        yield (
            "float8.emulate float8.scaling",
            "emulates nothing",
            "float8.scaling=tensorwise, or leave it out",
        )


def _checkpoint_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    config = recipe.checkpoint
    if config.mtbf_hours is not None and config.every != "auto":
        what = f"decides nothing, because checkpoint.every is {config.every}"
        yield "checkpoint.mtbf_hours checkpoint.every", what, "checkpoint.every=auto, or leave it out"


def _profile_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    profile, workers = recipe.profile, recipe.scaling.workers
    if (steps := profile.first_and_last()) is None:
        if profile.ranks != (0,):
            yield "profile.ranks profile.steps", "records nothing without steps", "profile.steps=10-14"
        return
    first, last = steps
    if first > last:
        yield "profile.steps", f"{first} is after {last}", f"profile.steps={last}-{first}"
    elif recipe.steps is not None and last > recipe.steps:
        what = f"the run ends after {recipe.steps} steps, so step {last} is never recorded"
        yield "profile.steps steps", what, "steps within the run"
    if missing := sorted(rank for rank in profile.ranks if rank >= workers):
        what = f"there is no rank {missing[0]} among {workers} workers"
        yield "profile.ranks scaling.workers", what, f"ranks below {workers}"


def _storage_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    try:
        parse(recipe.storage)
    except InputError as error:
        yield "storage", error.problems[0].what, error.problems[0].fix


def _notification_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    config = recipe.notifications
    if config.signing_key and not config.webhook:
        what = "signs the messages of a webhook, and there is none"
        yield (
            "notifications.signing_key notifications.webhook",
            what,
            "notifications.webhook, or leave it out",
        )


def _pod_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    given = {"head": recipe.pod_template.head, "workers": recipe.pod_template.workers}
    for problem in patch_problems({role: patch for role, patch in given.items() if patch}):
        role, _, rest = problem.where.partition(".")
        yield f"pod_template.{role}", f"{rest} {problem.what}".lstrip(), problem.fix


def _metric_rules(recipe: Recipe) -> Iterable[BrokenRule]:
    """Keys that name an unmeasured metric, and broken rules of gates and searches."""
    known = ("validation/loss", *(f"validation/{each}" for each in recipe.workload.metric_names))
    watched = {"checkpoint.metric": recipe.checkpoint.metric}
    if recipe.controllers.rate.kind in ("plateau", "restarts"):
        watched["controllers.rate.metric"] = recipe.controllers.rate.metric
    for key, metric in watched.items():
        if metric not in known:
            yield key, f"`{metric}` is not measured", did_you_mean(metric, known)
    measured = [f"{split}/{each.partition('/')[2]}" for split in ("validation", "test") for each in known]
    yield from _gate_rules(recipe.publish, measured)
    if recipe.tune is not None:
        yield from _search_rules(recipe.tune, list(known))


def _gate_rules(publish: PublishConfig, known: list[str]) -> Iterable[BrokenRule]:
    for name, gate in publish.gates.items():
        key = f"publish.gates.{name}"
        if name not in known:
            yield key, f"`{name}` is not measured", did_you_mean(name, known)
        if gate.min is None and gate.max is None:
            yield key, "has no condition", "give `min`, `max` or both"
        elif gate.min is not None and gate.max is not None and gate.min > gate.max:
            yield key, f"no value is at least {gate.min:g} and at most {gate.max:g}", "min below max"
    if publish.gates and publish.require_test and not any(name.startswith("test/") for name in publish.gates):
        what, fix = (
            "no gate uses the test split",
            "such as test/loss: {max: 2.0}, or publish.require_test=false",
        )
        yield "publish.gates", what, fix


def _search_rules(tune: TuneConfig, known: list[str]) -> Iterable[BrokenRule]:
    """Rules of a search alone. Whether its keys and values fit the recipe is checked by
    `trainfleet.training.tune.search`.
    """
    if tune.metric not in known:
        yield "tune.metric", f"`{tune.metric}` is not measured", did_you_mean(tune.metric, known)
    for name, space in tune.space.items():
        key, kind = f"tune.space.{name}", space.kind()
        if kind is None:
            yield key, "needs exactly one distribution", f"one of {', '.join(Space.model_fields)}"
        elif kind != "choice" and not space.ends()[0] < space.ends()[1]:
            yield f"{key}.{kind}", f"{space.ends()} is not a range", "the smaller number first"
        elif kind == "log_uniform" and space.ends()[0] <= 0:
            yield f"{key}.{kind}", f"{space.ends()[0]:g} has no logarithm", "numbers above 0"


def _repair(document: dict[str, Any], keys: KeyPath, model: type[Recipe]) -> None:
    """Remove a rejected value, or replace it if it is required, so that the rest can be validated."""
    holder: Any = document
    for key in keys[:-1]:
        if not isinstance(holder.get(key), dict):
            keys = keys[: keys.index(key) + 1]
            break
        holder = holder[key]
    section = part_at(model, keys[:-1])
    if keys and isinstance(holder, dict):
        holder.pop(keys[-1], None)
        if keys in _PLACEHOLDERS and section is not None:
            holder[keys[-1]] = _PLACEHOLDERS[keys]


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _copy(member) for key, member in value.items()}
    return list(value) if isinstance(value, list | tuple) else value
