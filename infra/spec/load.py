"""From what a user wrote to a `PlatformSpec`, or to every mistake in it at once.

Used by the Pulumi program (config), the rehearsal and the command line (stack files). Easy to get wrong: a
rule must not
judge a value that was itself refused, so refused values are replaced by stand-ins and findings that rest on
them dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainfleet.errors import InputError, Problem
from trainfleet.infra.spec.field_docs import describe_fields
from trainfleet.infra.spec.schema import Cloud, PlatformSpec
from trainfleet.infra.spec.stack_file import (
    PLATFORM_KEY,
    PLATFORM_PATH,
    StackFile,
    override,
    project_root,
    read_stack,
    read_stack_file,
    shown_path,
)
from trainfleet.infra.validation import broken
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
"""Says where a path of the spec is written (a file and line), or nothing."""

STAND_INS: dict[str, Any] = {
    "name": "refused",
    "cloud": Cloud.AWS.value,
    "owner": "refused@example.com",
    "accelerator": "refused",
    "monthly_usd": 1,
    "policy": "refused",
    "resource": "*",
    "reason": "refused here",
    "until": date.max,
}
"""By name of a required field: a value that is well-formed, so that the rest can still be judged."""

PROVIDER_SETTINGS: dict[Cloud, tuple[tuple[str, str], ...]] = {
    Cloud.AWS: (("aws:region", "region"),),
    Cloud.GCP: (("gcp:project", "account"), ("gcp:region", "region")),
    Cloud.AZURE: (("azure-native:location", "region"), ("azure-native:subscriptionId", "account")),
    Cloud.LOCAL: (),
}
"""By cloud: settings of its Pulumi provider that must say the same as a field of the spec."""
PACKAGES = {
    "aws": Cloud.AWS,
    "aws-native": Cloud.AWS,
    "gcp": Cloud.GCP,
    "google-native": Cloud.GCP,
    "azure-native": Cloud.AZURE,
    "azure": Cloud.AZURE,
}
"""By Pulumi package: whose settings stand under its name."""

_PASSES = 12
_IN_THE_CLEAR = "write it in the clear: a platform's spec holds no secrets, only their names"
STACK_KEYS = ("config", "environment", "secretsprovider", "encryptedkey", "encryptionsalt")
"""What Pulumi allows at the top of a stack file."""


def parse_spec(data: Mapping[str, Any], source: str = "", *, locate: Locate | None = None) -> PlatformSpec:
    """Read a platform spec: a mapping as JSON or YAML gives it.

    Args:
        data: what stands under `trainfleet:platform`.
        source: named before the path of each mistake, for example a file.
        locate: instead of `source`, says it for each path.

    Raises:
        InputError: with every mistake, fields and rules together.
    """
    checked = _check(data)
    if checked.spec is not None and not checked.mistakes:
        return checked.spec
    raise _error(checked.mistakes, locate or (lambda _: source))


def load_stack(stack: str, root: Path | None = None, overrides: Sequence[str] = ()) -> PlatformSpec:
    """Read the spec of a stack from stacks/Pulumi.<stack>.yaml.

    Args:
        stack: the stack's name, or the path of a stack file.
        root: the checkout; None = the one around the current folder.
        overrides: settings like `gpu_pools[0].max_nodes=3` that are put in before the spec is checked.

    Raises:
        InputError: no such stack, bad YAML, or every mistake in the stack's config.
    """
    file = read_stack(stack, root or project_root())
    config, problems = _config(file)
    if PLATFORM_KEY not in config:
        raise InputError(f"{file.shown_as} holds no platform", problems)
    platform = config[PLATFORM_KEY]
    if encrypted := [
        Problem(
            f"{file.locate(PLATFORM_PATH + path)} {path_text(path)}".strip(),
            "is encrypted, and whoever reviews it has no passphrase",
            _IN_THE_CLEAR,
        )
        for path in _encrypted(platform)
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
    error = _error(checked.mistakes, locate)
    problems += [
        *error.problems,
        *_provider_settings(file, config, checked),
        *_same_place(file, checked, locate),
    ]
    if checked.spec is not None and not problems:
        return checked.spec
    raise InputError(f"{file.shown_as}: {_count(problems)}", problems)


@dataclass
class _Checked:
    """A spec under examination: sound after stand-ins, its mistakes by path, and the paths whose values were
    refused.
    """

    spec: PlatformSpec | None = None
    mistakes: list[tuple[KeyPath, Problem]] = field(default_factory=list)
    refused: set[KeyPath] = field(default_factory=set)

    def rests_on_refused(self, path: KeyPath) -> bool:
        return any(path[: len(each)] == each or each[: len(path)] == path for each in self.refused)


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
                    "see docs/architecture.md for an example",
                ),
            )
        )
        return checked
    try:
        document = _plain(data, (), checked)
        checked.spec = _sound(document, checked)
    except RecursionError:
        checked.mistakes.append(((), Problem("", "is nested too deep, or in itself")))
        return checked
    if checked.spec is not None:
        for finding in broken(checked.spec):
            if not any(checked.rests_on_refused(path) for path in (finding.where, *finding.reads)):
                checked.mistakes.append(
                    (finding.where, Problem(path_text(finding.where), finding.what, finding.fix))
                )
    return checked


def _plain(value: Any, path: KeyPath, checked: _Checked) -> Any:
    """A copy made of dicts and lists, without keys that are no readable text (YAML reads `on:` as true and
    `5:` as a number).
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
                            f'put it in quotes, as it was meant: "{shown(key).strip("`")}"',
                        ),
                    )
                )
        return plain
    if isinstance(value, list | tuple):
        return [_plain(member, (*path, index), checked) for index, member in enumerate(value)]
    return value


def _sound(document: dict[str, Any], checked: _Checked) -> PlatformSpec | None:
    """The spec with every refused value replaced by a stand-in; None when that does not come to an end."""
    for _ in range(_PASSES):
        try:
            return PlatformSpec.model_validate(document)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        describe_fields()
        renamed = _renamed(errors, document)
        for each in errors:
            path = plain_path(each)
            if not (each["type"] == "missing" and path in renamed) and not checked.rests_on_refused(path):
                checked.mistakes.append((path, explain(each, PlatformSpec)))
        checked.refused |= renamed
        for each in errors:
            _repair(document, each, checked)
    return None


def _renamed(errors: Sequence[ErrorDetails], document: dict[str, Any]) -> set[KeyPath]:
    """Paths that unknown keys were most likely meant to be: nothing more is said about them."""
    meant: set[KeyPath] = set()
    for error in errors:
        path = plain_path(error)
        part = part_at(PlatformSpec, path[:-1]) if error["type"] == "extra_forbidden" else None
        match = likely_field(str(path[-1]), part, PlatformSpec)
        if match and match not in _at(document, path[:-1]):
            meant.add((*path[:-1], match))
    return meant


def _repair(document: dict[str, Any], error: ErrorDetails, checked: _Checked) -> None:
    """Take the refused value out of the document, or put a stand-in where one is needed."""
    path = plain_path(error)
    if error["type"] == "extra_forbidden":
        _at(document, path[:-1]).pop(path[-1], None)
        return
    while path:
        owner, step = part_at(PlatformSpec, path[:-1]), path[-1]
        part = model_in(annotation_at(PlatformSpec, path)) if isinstance(step, int) else None
        if part is not None:
            _at(document, path[:-1])[step] = _stand_in(part)
            break
        if owner is not None and isinstance(step, str):
            holder = _at(document, path[:-1])
            if owner.model_fields[step].is_required():
                holder[step] = STAND_INS[step]
            else:
                holder.pop(step, None)
            break
        path = path[:-1]
    checked.refused.add(path)


def _stand_in(part: type[BaseModel]) -> dict[str, Any]:
    return {name: STAND_INS[name] for name, declared in part.model_fields.items() if declared.is_required()}


def _at(document: Any, path: KeyPath) -> Any:
    for step in path:
        document = document[step]
    return document


def _config(file: StackFile) -> tuple[dict[str, Any], list[Problem]]:
    """The stack file's config, and what is wrong around the platform."""
    problems = [
        Problem(
            f"{file.locate((key,))} {key}",
            "Pulumi knows no such key in a stack file",
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
    strange = [
        key
        for key in map(str, config)
        if key != PLATFORM_KEY and (key.startswith("trainfleet:") or ":" not in key)
    ]
    problems += [
        Problem(f"{file.locate(('config', key))} {key}", "unknown key", did_you_mean(key, [PLATFORM_KEY]))
        for key in strange
    ]
    if PLATFORM_KEY not in config and not any(nearest(key, [PLATFORM_KEY]) for key in strange):
        problems.append(
            Problem(
                file.locate(("config",)),
                f"has no `{PLATFORM_KEY}`",
                f"put the platform under config: {PLATFORM_KEY}:",
            )
        )
    return config, problems


def _encrypted(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Where Pulumi wrote ciphertext instead of a value."""
    if isinstance(value, Mapping):
        if set(value) == {"secure"}:
            return [path]
        return [found for key, member in value.items() for found in _encrypted(member, (*path, str(key)))]
    return (
        [found for index, member in enumerate(value) for found in _encrypted(member, (*path, index))]
        if isinstance(value, list)
        else []
    )


def _provider_settings(file: StackFile, config: Mapping[str, Any], checked: _Checked) -> list[Problem]:
    """What the provider is told must be what the spec says, or the environment of whoever applies would
    decide where the platform stands.
    """
    spec = checked.spec
    if spec is None or checked.rests_on_refused(("cloud",)):
        return []
    problems = []
    for key, name in PROVIDER_SETTINGS[spec.cloud]:
        meant, written = getattr(spec, name), config.get(key)
        if not meant or str(written) == meant or checked.rests_on_refused((name,)):
            continue
        if _encrypted(written):
            what = "is encrypted, and cannot be held against the platform's"
        else:
            what = (
                "is missing"
                if written is None
                else f"is {shown(written)}, but the platform's {name} is `{meant}`"
            )
        problems.append(
            Problem(f"{file.locate(('config', key))} {key}", what, f"write {key}: {_quoted(meant)}")
        )
    if spec.cloud is Cloud.AWS and spec.account and not checked.rests_on_refused(("account",)):
        problems += _aws_account(file, config, spec.account)
    own = {key.partition(":")[0] for key, _ in PROVIDER_SETTINGS[spec.cloud]}
    for key in map(str, config):
        package = key.partition(":")[0]
        if package in PACKAGES and package not in own:
            what = f"is a setting of {PACKAGES[package]}, but this platform is on {spec.cloud}"
            problems.append(
                Problem(
                    f"{file.locate(('config', key))} {key}",
                    what,
                    f"leave it out, or cloud: {PACKAGES[package]}",
                )
            )
    return problems


def _aws_account(file: StackFile, config: Mapping[str, Any], account: str) -> list[Problem]:
    """Pulumi's AWS provider refuses every other account when it is told which are allowed."""
    key = "aws:allowedAccountIds"
    written = config.get(key)
    allowed = written if isinstance(written, list) else re.findall(r"\d{12}", str(written or ""))
    if account in map(str, allowed):
        return []
    what = "is missing" if written is None else f"does not hold the platform's account `{account}`"
    return [Problem(f"{file.locate(('config', key))} {key}", what, f'write {key}: ["{account}"]')]


def _quoted(text: str) -> str:
    """As YAML wants it: a number that is meant as text stands in quotes."""
    return f'"{text}"' if text.isdigit() else text


def _same_place(file: StackFile, checked: _Checked, locate: Locate) -> list[Problem]:
    """Another stack that would be given the same physical names: the same name in the same account and
    region, or on the same cluster.
    """
    spec = checked.spec
    if spec is None or any(
        checked.rests_on_refused((name,)) for name in ("name", "cloud", "region", "account", "kubernetes")
    ):
        return []
    own = _place(spec.model_dump(mode="json"))
    problems = []
    for other in sorted(file.path.parent.glob("Pulumi.?*.yaml")):
        if other.resolve() == file.path.resolve():
            continue
        try:
            config = read_stack_file(other).document.get("config")
        except InputError:
            continue  # says so itself when it is checked
        platform = config.get(PLATFORM_KEY) if isinstance(config, dict) else None
        if isinstance(platform, Mapping) and _place(platform) == own:
            where = f"{locate(('name',))} name"
            what = f"`{spec.name}` is already the platform of {shown_path(other)} in the same place: both would have the same cluster, keys and names"
            problems.append(Problem(where, what, "another name, or another region or account"))
    return problems


def _place(platform: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes physical names one's own."""
    kubernetes = platform.get("kubernetes")
    cluster = kubernetes if isinstance(kubernetes, Mapping) else {}
    parts = [platform.get(key) for key in ("cloud", "account", "region", "name")] + [
        cluster.get(key) for key in ("context", "kubeconfig")
    ]
    return tuple(str(part or "") for part in parts)


def _error(mistakes: Sequence[tuple[KeyPath, Problem]], locate: Locate) -> InputError:
    problems = [
        Problem(f"{locate(path)} {problem.where}".strip(), printable(problem.what), printable(problem.fix))
        for path, problem in mistakes
    ]
    return InputError(f"the platform spec has {_count(problems)}", problems)


def _count(problems: Sequence[Problem]) -> str:
    return "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
