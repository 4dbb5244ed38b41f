"""The settings of the clouds' Pulumi providers in a stack file, which must agree with the spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainfleet.errors import Problem
from trainfleet.infra.cloud_support import CloudSupport, all_supports, support
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.stack_file import StackFile
from trainfleet.pydantic_messages import Path as KeyPath
from trainfleet.pydantic_messages import shown


def encrypted_in(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Paths of encrypted values."""
    if isinstance(value, Mapping):
        if set(value) == {"secure"}:
            return [path]
        return [found for key, member in value.items() for found in encrypted_in(member, (*path, str(key)))]
    return (
        [found for index, member in enumerate(value) for found in encrypted_in(member, (*path, index))]
        if isinstance(value, list)
        else []
    )


def provider_settings(
    file: StackFile, config: Mapping[str, Any], spec: PlatformSpec | None, rejected: Callable[[KeyPath], bool]
) -> list[Problem]:
    """Provider settings must equal the spec's fields. Otherwise the environment of the applier would decide
    where the platform is created. `rejected` returns whether a value of the spec was rejected.
    """
    if spec is None or rejected(("cloud",)):
        return []
    cloud = support(spec.cloud)
    problems = []
    for key, name in cloud.provider_settings:
        expected, written = getattr(spec, name), config.get(key)
        if not expected or str(written) == expected or rejected((name,)):
            continue
        if encrypted_in(written):
            what = "is encrypted, so it cannot be compared with the platform's"
        elif written is None:
            what = "is missing"
        else:
            what = f"is {shown(written)}, but the platform's {name} is `{expected}`"
        problems.append(_setting_problem(file, key, what, f"write {key}: {_quoted(expected)}"))
    if not rejected(("account",)):
        found = cloud.check_settings(spec, config)
        problems += [_setting_problem(file, each.key, each.what, each.fix) for each in found]
    return [*problems, *_foreign_settings(file, config, cloud)]


def _foreign_settings(file: StackFile, config: Mapping[str, Any], cloud: CloudSupport) -> list[Problem]:
    """Settings of another cloud's provider."""
    own = {key.partition(":")[0] for key, _ in cloud.provider_settings}
    owners = {package: each.cloud for each in all_supports() for package in each.packages}
    problems = []
    for key in map(str, config):
        package = key.partition(":")[0]
        if package in owners and package not in own:
            what = f"is a setting of {owners[package]}, but this platform is on {cloud.cloud}"
            fix = f"leave it out, or cloud: {owners[package]}"
            problems.append(_setting_problem(file, key, what, fix))
    return problems


def _setting_problem(file: StackFile, key: str, what: str, fix: str) -> Problem:
    return Problem(f"{file.locate(('config', key))} {key}", what, fix)


def _quoted(text: str) -> str:
    """The text as YAML: a number is quoted to stay text."""
    return f'"{text}"' if text.isdigit() else text
