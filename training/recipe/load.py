"""A recipe: everything that decides a training run, read from YAML, the environment and `key=value`, later
ones winning.

Used by every launcher and by the step loop. Easy to get wrong: all mistakes are reported at once, each where
it was
written (file, variable or override), so values are remembered with their origin until the last check.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, SerializeAsAny, ValidationError, create_model

from trainfleet.errors import InputError, Problem
from trainfleet.pydantic_messages import explain, part_at, path_text
from trainfleet.suggestions import did_you_mean, nearest
from trainfleet.training.recipe.after_training import Publish, Tune, broken_gates, broken_space
from trainfleet.training.recipe.sections import (
    Batch,
    Checkpoints,
    Controllers,
    Guards,
    Log,
    Optimizer,
    SampleOrder,
    Scaling,
    Section,
    Sharding,
    Validation,
    Workload,
)
from trainfleet.training.stores.urls import is_remote, parse
from trainfleet.training.workloads.settings import WorkloadSettings, names, settings_of

ENVIRONMENT = "TRAINFLEET_"
FREE = (
    *(
        "scaling",
        "log",
        "storage",
        "checkpoint.keep_last",
        "checkpoint.keep_best",
        "checkpoint.keep_every",
        "checkpoint.patience",
    ),
    *("strategy", "sharding", "activation_checkpointing", "compile"),
    *("publish", "tune"),
    *("workload.data.memory_mib", "workload.data.disk_gib"),
)
"""What may differ between a checkpoint's recipe and the one that resumes it: nothing here changes a loss by
more than rounding.
"""

KeyPath = tuple[str, ...]
"""Keys from the root of a recipe to a value."""
_STAND_INS: dict[KeyPath, Any] = {
    ("name",): "refused",
    ("workload",): {"name": "lm"},
    ("workload", "name"): "lm",
}


class Recipe(Section):
    """A training run, declared."""

    name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="Lower case, digits and dashes; the run folder's name by default.",
    )
    seed: int = Field(0, ge=0, le=2**31 - 1)
    workload: SerializeAsAny[Workload]
    strategy: Literal["ddp", "fsdp", "hsdp"] = Field(
        "ddp",
        description="`ddp`: the model whole on every rank; `fsdp`: in shards; `hsdp`: shards, held several times.",
    )
    sharding: Sharding = Sharding()
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        "none", description="Compute activations again instead of keeping them."
    )
    compile: bool = Field(
        False, description="Compile the model's blocks with torch.compile; needs a C++ compiler."
    )
    optimizer: Optimizer = Optimizer()
    batch: Batch = Batch()
    order: SampleOrder = SampleOrder()
    steps: int | None = Field(None, ge=1, description="Optimizer steps; say this or `epochs`.")
    epochs: float | None = Field(
        None, gt=0, description="Passes over the training split; the loop turns them into steps."
    )
    precision: Literal["fp32", "bf16"] = "fp32"
    deterministic: bool = Field(True, description="Refuse operations that may differ from run to run.")
    validation: Validation = Validation()
    checkpoint: Checkpoints = Checkpoints()
    guards: Guards = Guards()
    controllers: Controllers = Controllers()
    log: Log = Log()
    scaling: Scaling = Scaling()
    publish: Publish = Publish()
    tune: Tune | None = Field(None, description="A search over this recipe's keys.")
    storage: str = Field(
        "runs", description="Folder or URL (file://, s3://, gs://, az://) under which the run is kept."
    )

    def total_steps(self, train_samples: int) -> int:
        """Optimizer steps of the whole run; `epochs` is turned into steps by the size of the training split."""
        if self.steps is not None:
            return self.steps
        return max(1, -int(-(self.epochs or 1) * train_samples // self.batch.global_batch))

    def run_dir(self) -> Path:
        """The run's folder on this machine unless its caller says otherwise: STORAGE/NAME; for a URL
        runs/NAME.
        """
        folder = "runs" if is_remote(self.storage) else self.storage.removeprefix("file://")
        return Path(folder) / self.name

    def home_url(self) -> str:
        """Where the run is kept: STORAGE/NAME, a URL where `storage` is one."""
        return f"{self.storage.rstrip('/')}/{self.name}" if is_remote(self.storage) else str(self.run_dir())


def known_recipes() -> dict[str, Path]:
    """Recipes that come with Trainfleet, by name."""
    from trainfleet import recipes

    return {path.stem: path for path in sorted(Path(recipes.__path__[0]).glob("*.yaml"))}


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Recipe:
    """Read a recipe.

    Args:
        path: a YAML file, or the name of a recipe that comes with Trainfleet.
        overrides: `optimizer.lr=3e-4`; values are YAML.
        env: variables such as TRAINFLEET_OPTIMIZER__LR=3e-4; the file loses to them and they lose to
        `overrides`.

    Raises:
        InputError: no such file, bad YAML, or every mistake at once.
    """
    file = _find(path)
    document = _read(file)
    problems: list[Problem] = []
    origins: dict[KeyPath, str] = {}
    for keys, text, origin in [*_from_environment(env or {}), *_from_overrides(overrides, problems)]:
        try:
            _put(document, keys, yaml.safe_load(text))
        except yaml.YAMLError:
            problems.append(
                Problem(
                    origin,
                    f"`{text}` is no YAML value",
                    f"""put it in quotes if it is text: '{".".join(keys)}="{text}"'""",
                )
            )
            continue
        origins[keys] = origin
    recipe, found = check(document)
    for keys, problem in found:
        origin = _origin(keys, origins) or str(path)
        problems.append(
            Problem(f"{origin}: {problem.where}" if problem.where else origin, problem.what, problem.fix)
        )
    if recipe is None or problems:
        raise InputError(
            f"{path}: {len(problems)} mistake{'s' if len(problems) != 1 else ''} in the recipe", problems
        )
    return recipe


def _origin(keys: KeyPath, origins: Mapping[KeyPath, str]) -> str | None:
    """The override or variable that said `keys`, a group around it, or (for a group that nobody else wrote)
    something in it.
    """
    around = (origins[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in origins)
    inside = (origin for said, origin in origins.items() if said[: len(keys)] == keys)
    return next(around, None) or next(inside, None)


def check(document: Mapping[str, Any]) -> tuple[Recipe | None, list[tuple[KeyPath, Problem]]]:
    """Read a document: the recipe (None where it cannot be built at all) and every mistake with its path."""
    found: list[tuple[KeyPath, Problem]] = []
    refused: list[KeyPath] = []
    plain = _copy(document)
    shape = _shape_named(plain, found, refused)
    for _ in range(8):
        try:
            recipe = Recipe.model_validate(plain)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                keys = tuple(step for step in each["loc"] if isinstance(step, str))
                if not any(keys[: len(other)] == other for other in refused):
                    found.append((keys, explain(each, shape)))
                    refused.append(keys)
                _repair(plain, keys, shape)
        else:
            found += [
                (keys, problem)
                for reads, keys, problem in _broken(recipe)
                if not any(each in refused for each in reads)
            ]
            return recipe, found
    return None, found


def _shape_named(
    plain: dict[str, Any], found: list[tuple[KeyPath, Problem]], refused: list[KeyPath]
) -> type[Recipe]:
    """What a recipe of the workload that is named may hold; where there is no such workload, that is found,
    and a stand-in judged instead.
    """
    keys, workload = ("workload", "name"), plain.get("workload")
    name = workload.get("name") if isinstance(workload, dict) else None
    if not isinstance(workload, dict) or not isinstance(name, str):
        return _shape(settings_of(_STAND_INS[keys]))
    try:
        return _shape(settings_of(name))
    except InputError as error:
        found.append((keys, error.problems[0]))
        refused.append(keys)
    meant = nearest(name, names())
    plain["workload"] = workload | {"name": meant} if meant else dict(_STAND_INS[keys[:1]])
    return _shape(settings_of(plain["workload"]["name"]))


@functools.cache
def _shape(settings: type[WorkloadSettings]) -> type[Recipe]:
    """A recipe as one workload has it: for looking up fields, not for reading."""
    return create_model("Recipe", __base__=Recipe, workload=(settings, ...))


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], allowed: Iterable[str] = ()
) -> list[tuple[str, Any, Any]]:
    """Key, old and new value wherever these differ between two dumped recipes, except what is free to change
    or named in `allowed`.
    """
    before, after = dict(_flat(old)), dict(_flat(new))
    open_keys = (*FREE, *allowed)
    changed = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    closed = [
        key for key in changed if not any(key == each or key.startswith(f"{each}.") for each in open_keys)
    ]
    return [(key, before.get(key), after.get(key)) for key in closed]


def dump(recipe: Recipe) -> str:
    """The recipe as YAML, every default written out."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


def _broken(recipe: Recipe) -> Iterable[tuple[list[KeyPath], KeyPath, Problem]]:
    """Rules between fields: the paths each reads, where it is reported, and what is wrong."""
    batch, scaling = recipe.batch, recipe.scaling

    def finding(reads: str, what: str, fix: str) -> tuple[list[KeyPath], KeyPath, Problem]:
        paths = [tuple(each.split(".")) for each in reads.split()]
        return paths, paths[0], Problem(path_text(paths[0]), what, fix)

    if (recipe.steps is None) == (recipe.epochs is None):
        said = (
            "both `steps` and `epochs` are given"
            if recipe.steps is not None
            else "how long to train is missing"
        )
        yield finding("steps epochs", said, "give one of `steps` and `epochs`")
    share = batch.micro_batch * scaling.workers
    if batch.global_batch % share:
        nearest = max(share, round(batch.global_batch / share) * share)
        what = f"{batch.global_batch} cannot be shared by {scaling.workers} workers in micro batches of {batch.micro_batch}"
        yield finding(
            "batch.global_batch batch.micro_batch scaling.workers",
            what,
            f"a multiple of {share}, such as {nearest}",
        )
    for each in recipe.workload.broken(recipe):
        yield finding(*each)
    if scaling.min_workers is not None and scaling.min_workers > scaling.workers:
        what = f"{scaling.min_workers} is more than scaling.workers, {scaling.workers}"
        yield finding("scaling.min_workers scaling.workers", what, f"at most {scaling.workers}")
    if recipe.sharding.replicas is not None and recipe.strategy != "hsdp":
        yield finding(
            "sharding.replicas strategy",
            f"only `hsdp` has replicas of shards, not `{recipe.strategy}`",
            "strategy=hsdp, or leave it out",
        )
    elif recipe.sharding.replicas is not None and scaling.workers % recipe.sharding.replicas:
        what = f"{scaling.workers} workers cannot be shared out to {recipe.sharding.replicas} replicas"
        yield finding("sharding.replicas scaling.workers", what, f"a divisor of {scaling.workers}")
    if recipe.sharding.cpu_offload and recipe.strategy == "ddp":
        yield finding(
            "sharding.cpu_offload strategy",
            "`ddp` keeps the whole model on the device",
            "strategy=fsdp, or leave it out",
        )
    if recipe.steps is not None and recipe.optimizer.warmup > recipe.steps:
        yield finding(
            "optimizer.warmup steps",
            f"{recipe.optimizer.warmup} is more than all {recipe.steps} steps",
            "warm up for a small share of them",
        )
    if any(not 0 <= beta < 1 for beta in recipe.optimizer.betas):
        yield finding(
            "optimizer.betas", f"{list(recipe.optimizer.betas)} must lie in [0, 1)", "such as [0.9, 0.95]"
        )
    try:
        parse(recipe.storage)
    except InputError as error:
        yield finding("storage", error.problems[0].what, error.problems[0].fix)
    for key, what, fix in _unmeasured(recipe):
        yield [tuple(key.split("."))], tuple(key.split(".")), Problem(key, what, fix)


def _unmeasured(recipe: Recipe) -> Iterable[tuple[str, str, str]]:
    """Keys that name a metric which no validation or test measures, and what else is wrong with gates and
    searches.
    """
    known = ("validation/loss", *(f"validation/{each}" for each in recipe.workload.figures))
    watches = recipe.controllers.rate.kind in ("plateau", "restarts")
    judges = {"checkpoint.metric": recipe.checkpoint.metric} | (
        {"controllers.rate.metric": recipe.controllers.rate.metric} if watches else {}
    )
    for key, metric in judges.items():
        if metric not in known:
            yield key, f"`{metric}` is not measured", did_you_mean(metric, known)
    measured = [f"{split}/{each.partition('/')[2]}" for split in ("validation", "test") for each in known]
    yield from broken_gates(recipe.publish, measured)
    if recipe.tune is not None:
        yield from broken_space(recipe.tune, list(known))


def _find(path: str | Path) -> Path:
    if Path(path).is_file():
        return Path(path)
    known = known_recipes()
    if str(path) in known:
        return known[str(path)]
    if Path(path).is_dir():
        raise InputError("no recipe there", [Problem(str(path), "is a folder", "name a YAML file")])
    raise InputError(
        "no such recipe",
        [
            Problem(
                str(path),
                "is no file, and no recipe that comes with Trainfleet",
                did_you_mean(Path(path).stem, known),
            )
        ],
    )


class _OnceLoader(yaml.SafeLoader):
    """YAML in which a key may stand once: PyYAML itself silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"`{key.value}` stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(file: Path) -> dict[str, Any]:
    try:
        document = yaml.load(file.read_text(encoding="utf-8"), _OnceLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "cannot read the recipe",
            [Problem(str(file), getattr(error, "strerror", None) or "is not text in UTF-8")],
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise InputError(
            "the recipe is no YAML", [Problem(where, getattr(error, "problem", None) or "cannot be read")]
        ) from error
    if not isinstance(document, dict):
        raise InputError(
            "the recipe is empty or no group of keys",
            [Problem(str(file), "must hold `name:`, `workload:` and so on")],
        )
    return document


def _from_environment(env: Mapping[str, str]) -> list[tuple[KeyPath, str, str]]:
    """Variables that name a field. Other TRAINFLEET_ variables without `__` are settings of the program, not
    of a recipe.
    """
    found = []
    for name in sorted(env):
        keys = tuple(name.removeprefix(ENVIRONMENT).lower().split("__"))
        if name.startswith(ENVIRONMENT) and (len(keys) > 1 or keys[0] in Recipe.model_fields):
            found.append((keys, env[name], name))
    return found


def _from_overrides(overrides: Sequence[str], problems: list[Problem]) -> list[tuple[KeyPath, str, str]]:
    found = []
    for override in overrides:
        key, equals, text = override.partition("=")
        keys = tuple(part.strip() for part in key.split("."))
        if not equals or not all(keys):
            problems.append(Problem(override, "is no setting", "write key=value, such as optimizer.lr=3e-4"))
        else:
            found.append((keys, text, override))
    return found


def _put(document: dict[str, Any], keys: KeyPath, value: Any) -> None:
    for key in keys[:-1]:
        inner = document.get(key)
        document[key] = document = inner if isinstance(inner, dict) else {}
    document[keys[-1]] = value


def _repair(document: dict[str, Any], keys: KeyPath, shape: type[Recipe]) -> None:
    """Take a refused value out, or put a stand-in where one is needed, so that the rest can be judged."""
    holder: Any = document
    for key in keys[:-1]:
        if not isinstance(holder.get(key), dict):
            keys = keys[: keys.index(key) + 1]
            break
        holder = holder[key]
    section = part_at(shape, keys[:-1])
    if keys and isinstance(holder, dict):
        holder.pop(keys[-1], None)
        if keys in _STAND_INS and section is not None:
            holder[keys[-1]] = _STAND_INS[keys]


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _copy(member) for key, member in value.items()}
    return list(value) if isinstance(value, list | tuple) else value


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, member in value.items():
        if isinstance(member, Mapping):
            yield from _flat(member, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(member) if isinstance(member, tuple) else member
