"""Load a `PlatformSpec` from a stack file or a mapping, or report every mistake in it at once.

A rejected value is replaced by a valid placeholder, so that the rules can check the rest. Findings that
depend on a placeholder are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainfleet.errors import InputError, Problem
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.collisions import IDENTIFYING, same_names
from trainfleet.infra.spec.deprecated import Warn, print_warning, upgraded
from trainfleet.infra.spec.field_docs import describe_fields
from trainfleet.infra.spec.provider_settings import encrypted_in, provider_settings
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.stack_file import (
    PLATFORM_KEY,
    PLATFORM_PATH,
    StackFile,
    override,
    project_root,
    read_stack,
)
from trainfleet.infra.validation.rules import notices, violations
from trainfleet.pydantic_messages import Path as KeyPath
from trainfleet.pydantic_messages import (
    annotation_at,
    explain,
    likely_field,
    model_in,
    part_at,
    path_text,
    plain_path,
    printable,
    shown,
)
from trainfleet.suggestions import did_you_mean, nearest

Locate = Callable[[KeyPath], str]
"""Returns where a path of the spec is written (file and line), or an empty string."""

PLACEHOLDERS: dict[str, Any] = {
    "name": "rejected",
    "cloud": Cloud.AWS.value,
    "owner": "rejected@example.com",
    "accelerator": "rejected",
    "vcpu": 1,
    "memory_gib": 1,
    "gpu_memory_gib": 1,
    "id": "rejected",
    "subnets": {},
    "monthly_usd": 1,
    "policy": "rejected",
    "kind": "webhook",
    "resource": "rejected",
    "reason": "rejected here",
    "until": date.max,
}
"""By name of a required field: a well-formed value, so that the rest can still be validated."""

_PASSES = 12
_PLAIN_TEXT = "write it as plain text: a spec contains the names of secrets, never their values"
STACK_KEYS = ("config", "environment", "secretsprovider", "encryptedkey", "encryptionsalt")
"""Top-level keys that Pulumi allows in a stack file."""


def parse_spec(
    data: Mapping[str, Any],
    source: str = "",
    *,
    locate: Locate | None = None,
    warn: Warn = print_warning,
) -> PlatformSpec:
    """Validate a platform spec, a mapping from JSON or YAML.

    Args:
        data: the value of `trainfleet:platform`.
        source: printed before the path of each mistake, for example a file.
        locate: replaces `source`; returns the location of a path.
        warn: called with each deprecated key.

    Raises:
        InputError: with every mistake, of fields and of rules.
    """
    checked = _check(data)
    for each in checked.warnings:
        warn(each)
    if checked.spec is not None and not checked.mistakes:
        return checked.spec
    raise _error(checked.mistakes, locate or (lambda _: source))


def load_stack(
    stack: str, root: Path | None = None, overrides: Sequence[str] = (), warn: Warn = print_warning
) -> PlatformSpec:
    """Read the spec of a stack from stacks/Pulumi.<stack>.yaml.

    Args:
        stack: the stack's name, or the path of a stack file.
        root: the checkout; None = the one that contains the current folder.
        overrides: settings like `gpu_pools[0].max_nodes=3`, applied before the spec is validated.
        warn: called with each deprecated key, and where it is.

    Raises:
        InputError: no such stack, bad YAML, or every mistake in the stack's config.
    """
    file = read_stack(stack, root or project_root())
    config, problems = _config(file)
    if PLATFORM_KEY not in config:
        raise InputError(f"{file.shown_as} has no platform", problems)
    platform = config[PLATFORM_KEY]
    if encrypted := [
        Problem(
            f"{file.locate(PLATFORM_PATH + path)} {path_text(path)}".strip(),
            "is encrypted, so a review cannot read it",
            _PLAIN_TEXT,
        )
        for path in encrypted_in(platform)
    ]:
        raise InputError(f"{file.shown_as}: {_count(encrypted)}", [*problems, *encrypted])
    changed: tuple[KeyPath, ...] = ()
    if overrides and isinstance(platform, Mapping):
        platform, changed = override(platform, overrides)

    def locate(path: KeyPath) -> str:
        if any(path[: len(each)] == each for each in changed):
            return "--set"
        return file.locate(PLATFORM_PATH + path)

    checked = _check(platform)
    for each in checked.warnings:
        path = tuple(each.where.split("."))
        warn(replace(each, where=f"{locate(path)} {each.where}"))
    error = _error(checked.mistakes, locate)
    problems += [
        *error.problems,
        *provider_settings(file, config, checked.spec, checked.is_wrong),
    ]
    spec = checked.spec
    if spec is not None and not any(checked.rests_on_rejected((name,)) for name in IDENTIFYING):
        problems += same_names(file, spec, locate(("name",)))
    if spec is not None and not problems:
        return spec
    raise InputError(f"{file.shown_as}: {_count(problems)}", problems)


@dataclass
class _Checked:
    """The state of a validation: the spec with placeholders, its mistakes by path, the paths of rejected
    values, and warnings.
    """

    spec: PlatformSpec | None = None
    mistakes: list[tuple[KeyPath, Problem]] = field(default_factory=list)
    rejected: set[KeyPath] = field(default_factory=set)
    warnings: list[Problem] = field(default_factory=list)

    def rests_on_rejected(self, path: KeyPath) -> bool:
        return any(path[: len(each)] == each or each[: len(path)] == path for each in self.rejected)

    def is_wrong(self, path: KeyPath) -> bool:
        """Whether a value was rejected or breaks a rule, so that nothing should be compared with it."""
        return self.rests_on_rejected(path) or any(path == where for where, _ in self.mistakes)


def _check(data: Any) -> _Checked:
    checked = _Checked()
    if not isinstance(data, Mapping):
        kind = "nothing" if data is None else "a list" if isinstance(data, list | tuple) else shown(data)
        checked.mistakes.append(
            (
                (),
                Problem(
                    "",
                    f"a platform must be a group of keys, not {kind}",
                    "see docs/reference/spec.md for an example",
                ),
            )
        )
        return checked
    try:
        document, checked.warnings = upgraded(_plain(data, (), checked))
        checked.spec = _with_placeholders(document, checked)
    except RecursionError:
        checked.mistakes.append(((), Problem("", "is nested too deeply, or contains itself")))
        return checked
    if checked.spec is not None:
        for finding in violations(checked.spec):
            if not any(checked.rests_on_rejected(path) for path in (finding.where, *finding.reads)):
                checked.mistakes.append(
                    (finding.where, Problem(path_text(finding.where), finding.what, finding.fix))
                )
        checked.warnings += [
            Problem(path_text(finding.where), finding.what, finding.fix)
            for finding in notices(checked.spec)
            if not any(checked.rests_on_rejected(path) for path in (finding.where, *finding.reads))
        ]
    return checked


def _plain(value: Any, path: KeyPath, checked: _Checked) -> Any:
    """A copy as dicts and lists, without keys that are not printable text (YAML reads `on:` as true and `5:`
    as a number) and without sets (`!!set`).
    """
    if isinstance(value, Mapping):
        plain = {}
        for key, member in value.items():
            if isinstance(key, str) and key.isprintable():
                plain[key] = _plain(member, (*path, key), checked)
            else:
                where = f"{path_text(path)} key {shown(key)}".strip()
                checked.mistakes.append(
                    (
                        path,
                        Problem(
                            where,
                            "a key must be text",
                            f'put it in quotes: "{shown(key).strip("`")}"',
                        ),
                    )
                )
        return plain
    if isinstance(value, list | tuple):
        return [_plain(member, (*path, index), checked) for index, member in enumerate(value)]
    if isinstance(value, set):
        return dict.fromkeys(sorted(map(str, value)))  # in YAML, a mapping whose values are null
    return value


def _with_placeholders(document: dict[str, Any], checked: _Checked) -> PlatformSpec | None:
    """The spec with a placeholder for every rejected value; None if replacing does not converge."""
    for _ in range(_PASSES):
        try:
            return PlatformSpec.model_validate(document)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        describe_fields()
        renamed = _renamed(errors, document)
        for each in errors:
            path = plain_path(each)
            if not (each["type"] == "missing" and path in renamed) and not checked.rests_on_rejected(path):
                checked.mistakes.append((path, explain(each, PlatformSpec)))
        checked.rejected |= renamed
        for each in errors:
            _repair(document, each, checked)
    return None


def _renamed(errors: Sequence[ErrorDetails], document: dict[str, Any]) -> set[KeyPath]:
    """Paths that unknown keys were most likely meant to be. They are not reported again as missing."""
    meant: set[KeyPath] = set()
    for error in errors:
        path = plain_path(error)
        part = part_at(PlatformSpec, path[:-1]) if error["type"] == "extra_forbidden" else None
        match = likely_field(str(path[-1]), part, PlatformSpec)
        if match and match not in _at(document, path[:-1]):
            meant.add((*path[:-1], match))
    return meant


def _repair(document: dict[str, Any], error: ErrorDetails, checked: _Checked) -> None:
    """Remove the rejected value from the document, or replace it where a value is required."""
    path = plain_path(error)
    if error["type"] == "extra_forbidden":
        _at(document, path[:-1]).pop(path[-1], None)
        return
    while path:
        owner, step = part_at(PlatformSpec, path[:-1]), path[-1]
        part = model_in(annotation_at(PlatformSpec, path)) if isinstance(step, int) else None
        if part is not None:
            _at(document, path[:-1])[step] = _placeholder(part)
            break
        if owner is not None and isinstance(step, str):
            holder = _at(document, path[:-1])
            if owner.model_fields[step].is_required():
                holder[step] = PLACEHOLDERS[step]
            else:
                holder.pop(step, None)
            break
        path = path[:-1]
    checked.rejected.add(path)


def _placeholder(part: type[BaseModel]) -> dict[str, Any]:
    return {
        name: PLACEHOLDERS[name] for name, declared in part.model_fields.items() if declared.is_required()
    }


def _at(document: Any, path: KeyPath) -> Any:
    for step in path:
        document = document[step]
    return document


def _config(file: StackFile) -> tuple[dict[str, Any], list[Problem]]:
    """The stack file's config, and problems outside the platform."""
    problems = [
        Problem(
            f"{file.locate((key,))} {key}",
            "is not a key of a Pulumi stack file",
            did_you_mean(key, STACK_KEYS),
        )
        for key in map(str, file.document)
        if key not in STACK_KEYS
    ]
    config = file.document.get("config")
    if not isinstance(config, dict):
        problems.append(
            Problem(
                file.locate(("config",)),
                "has no `config:`",
                f"put the platform under config: {PLATFORM_KEY}:",
            )
        )
        return {}, problems
    unknown = [
        key
        for key in map(str, config)
        if key != PLATFORM_KEY and (key.startswith("trainfleet:") or ":" not in key)
    ]
    problems += [
        Problem(f"{file.locate(('config', key))} {key}", "unknown key", did_you_mean(key, [PLATFORM_KEY]))
        for key in unknown
    ]
    if PLATFORM_KEY not in config and not any(nearest(key, [PLATFORM_KEY]) for key in unknown):
        problems.append(
            Problem(
                file.locate(("config",)),
                f"has no `{PLATFORM_KEY}`",
                f"put the platform under config: {PLATFORM_KEY}:",
            )
        )
    return config, problems


def _error(mistakes: Sequence[tuple[KeyPath, Problem]], locate: Locate) -> InputError:
    problems = [
        Problem(f"{locate(path)} {problem.where}".strip(), printable(problem.what), printable(problem.fix))
        for path, problem in mistakes
    ]
    return InputError(f"the platform spec has {_count(problems)}", problems)


def _count(problems: Sequence[Problem]) -> str:
    return "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
