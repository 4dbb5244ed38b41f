"""Which clusters `--clusters` names, and what differs on each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.pydantic_messages import explain
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.base import find, parse_options
from trainfleet.training.launch.durations import seconds_of
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.request import Request

UNREADABLE = "cannot read the clusters"
NOT_OF_LAUNCHES = ("write", "attach", "launch")
"""Fields that write files for one cluster, or follow a run of another launch."""
TIMES = ("within_s", "idle_s")
"""Fields whose flags are in minutes or have a unit."""
NAME = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
NAMED = "lowercase letters, digits and dashes"


class ClusterEntry(BaseModel):
    """A cluster, and what differs on it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("", pattern=rf"{NAME}|^$", description=NAMED)
    """Ends the name of its run; by default the name of its platform, or its launcher."""
    launcher: str = ""
    """Its launcher, as for --on; by default that of the command. (YAML reads the key `on` as true.)"""
    stack: tuple[str, ...] = ()
    """Its platform: an outputs file or a Pulumi stack; several for SkyPilot."""
    storage: str | None = None
    """Where its runs are stored; by default at its platform."""
    overrides: tuple[str, ...] = ()
    """Changes of the recipe, KEY=VALUE, after those of the command."""
    options: dict[str, Any] = {}
    """Options of its launcher, by their flags without dashes; they replace those of the command."""

    @field_validator("stack", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


def read_entries(text: str, on: str) -> list[ClusterEntry]:
    """The clusters of `--clusters TEXT`: platforms with commas between them, or a YAML file with a list.

    Args:
        text: the value of the option.
        on: the launcher of entries that name none.

    Raises:
        InputError: no such file, not a list, or every mistake in it.
    """
    if text.endswith((".yaml", ".yml")):
        entries = _from_file(Path(text))
    else:
        entries = [ClusterEntry(stack=(each.strip(),)) for each in text.split(",") if each.strip()]
    entries = [each.model_copy(update={"launcher": each.launcher or on}) for each in entries]
    named = [each.model_copy(update={"name": each.name or _name_of(each)}) for each in entries]
    counts = Counter(each.name for each in named)
    problems = [
        Problem(f"--clusters {text}", f"{count} clusters are named {name}", "give each a `name`")
        for name, count in counts.items()
        if count > 1
    ]
    fix = f"a `name` of {NAMED}, in a YAML file"
    problems += [
        Problem(f"--clusters {text}", f"`{name}` cannot end the name of a run", fix)
        for name in dict.fromkeys(each.name for each in named if each.stack)
        if not re.fullmatch(NAME, name)
    ]
    if len(named) < 2:
        count = "only one" if named else "no"
        fix = "a.json,b.json, or a YAML file with a list; for one cluster --stack"
        problems.append(Problem(f"--clusters {text}", f"names {count} cluster", fix))
    if problems:
        raise InputError(UNREADABLE, problems)
    return named


def requests(
    base: Request, name: str, entries: list[ClusterEntry], given: Mapping[str, Any]
) -> list[Request]:
    """The launch on each cluster.

    Args:
        base: what is the same everywhere.
        name: the name with which each run's name begins.
        entries: the clusters.
        given: the launchers' options of the command, by field.

    Raises:
        InputError: options that a launcher does not have: all of them.
    """
    found, problems = [], []
    for entry in entries:
        own_storage = any(each.partition("=")[0].strip() == "storage" for each in entry.overrides)
        try:
            options = _options(entry, given)
        except InputError as error:
            problems += [
                Problem(f"{entry.name} {each.where}".rstrip(), each.what, each.fix) for each in error.problems
            ]
            continue
        found.append(
            replace(
                base,
                overrides=(*base.overrides, *entry.overrides),
                on=entry.launcher,
                run=f"{name}-{entry.name}",
                storage=entry.storage or (None if own_storage else base.storage),
                stacks=entry.stack,
                json=True,
                options=options,
            )
        )
    if problems:
        raise InputError("not every cluster can be launched on", problems)
    return found


def located(name: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems, with where they are: on this cluster or in this file."""
    return [Problem(f"{name} {each.where}".rstrip(), each.what, each.fix) for each in problems]


def _from_file(path: Path) -> list[ClusterEntry]:
    try:
        document = yaml_limits.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(UNREADABLE, [Problem(str(path), error.strerror or str(error))]) from error
    except UnicodeDecodeError as error:
        raise InputError(UNREADABLE, [Problem(str(path), "is not UTF-8 text")]) from error
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        what = (isinstance(error, yaml.MarkedYAMLError) and error.problem) or " ".join(str(error).split())
        raise InputError(UNREADABLE, [Problem(where, f"is not YAML: {what}")]) from error
    if not isinstance(document, list):
        fix = "one item for each cluster, such as `- {stack: aws-prod.json, launcher: kuberay}`"
        raise InputError(UNREADABLE, [Problem(str(path), "is not a list", fix)])
    entries, problems = [], []
    for number, item in enumerate(document):
        try:
            entries.append(ClusterEntry.model_validate(item))
        except ValidationError as error:
            explained = [explain(each, ClusterEntry) for each in error.errors(include_url=False)]
            problems += located(f"{path} [{number}]", explained)
    if problems:
        raise InputError(UNREADABLE, problems)
    return entries


def _name_of(entry: ClusterEntry) -> str:
    """The name of the first platform without folder and suffix, else that of the launcher."""
    return Path(entry.stack[0]).name.removesuffix(".json").lower() if entry.stack else entry.launcher


def _options(entry: ClusterEntry, given: Mapping[str, Any]) -> LaunchOptions:
    model: type[LaunchOptions] = find(entry.launcher).options_model
    fields = {
        model.flag(field).lstrip("-").partition("/")[0]: field
        for field in model.model_fields
        if field not in NOT_OF_LAUNCHES
    }
    unknown = [flag for flag in entry.options if flag not in fields]
    if unknown:
        what = f"is not an option of --on {entry.launcher}"
        raise InputError(UNREADABLE, [Problem(each, what, did_you_mean(each, fields)) for each in unknown])
    own, problems = _own(entry.options, fields)
    flags = {field: flag for flag, field in fields.items()}
    try:
        options = parse_options(entry.launcher, {**given, **own})
    except ValidationError as error:
        for each in error.errors(include_url=False):
            found, field = explain(each, model), str(each["loc"][0])
            where = found.where.replace(field, flags.get(field, field), 1)
            problems.append(Problem(where, found.what, found.fix))
    except InputError as error:
        problems += error.problems
    else:
        if not problems:
            return options
    raise InputError(UNREADABLE, problems)


def _own(given: Mapping[str, Any], fields: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """The options of an entry by field, read as their flags are, and the problems of the others."""
    own, problems = dict[str, Any](), list[Problem]()
    for flag, value in given.items():
        field = fields[flag]
        try:
            times = field in TIMES and value is not None
            own[field] = seconds_of(value) if times else tuple(value) if isinstance(value, list) else value
        except ValueError as error:
            what, _, fix = str(error).partition(": ")
            problems.append(Problem(flag, what, fix))
    return own, problems
