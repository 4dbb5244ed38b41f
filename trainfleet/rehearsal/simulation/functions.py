"""Answers the functions of a package (`get_*`): from rehearsal.toml, a cloud's model, or what exists.

A function without an answer gets a plausible result, so that one run finds all of them; the run then fails.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.function_arguments import ArgumentsError, argument_mistakes
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.schema import Package, outputs_of, sdk_module
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.simulation.values import Identity, digest, made

_SCALARS = ("string", "integer", "number", "boolean", "enum")
_SHOWN = 6


def result(  # noqa: PLR0917 - one per part of the question
    package: Package, model: CloudModel, cloud: Cloud, token: str, given: dict[str, Any], region: str
) -> dict[str, Any]:
    """Return the result of a function for plain arguments; note in `cloud.missing` that it has no answer.

    Args:
        package: the SDK of the function.
        model: what the cloud of the package answers.
        cloud: its resources, and the answers of the project.
        token: of the function.
        given: its plain arguments.
        region: where the provider is.

    Raises:
        LookupError: the arguments match no resource, or several.
        ArgumentsError: the arguments have other types than the SDK declares.
    """
    given = in_types(result_class(package, token), given)
    if (written := cloud.accepted.answer(token, given)) is not None:
        return {**_plausible(package, model, token, given, region), **written}
    try:
        finder = model.finders.get(token)
        if finder and (found := finder(given, region, cloud.everything())) is not None:
            return {**_plausible(package, model, token, given, region), **found}
        if answer := model.answers.get(token):
            return answer(given, region)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if not (mistakes := argument_mistakes(function_of(package, token), given)):
            raise
        raise ArgumentsError(f"{token}: {'; '.join(map(str, mistakes))}") from error
    plausible = _plausible(package, model, token, given, region)
    if (own := _existing(package, token, given, cloud.everything())) is not None:
        known = {name: value for name, value in own.outputs.items() if not plausible or name in plausible}
        return {**plausible, **known, "id": own.id}
    cloud.missing_answer(token, {"function": token, "args": given, "result": _shown(plausible, given)})
    return plausible


def in_types(cls: type | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments in the types of the result that repeats them, as a bridged provider converts them."""
    declared = outputs_of(cls) if cls is not None else {}
    return {
        name: _in_type(declared[name].kind.name if name in declared else "", value)
        for name, value in given.items()
    }


def _in_type(kind: str, value: Any) -> Any:
    if kind == "boolean" and value in ("true", "false"):
        return value == "true"
    if kind == "integer" and isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return str(value) if kind == "string" and type(value) in (int, float) else value


def resource_token(package: Package, token: str) -> str:
    """Return the type that a function reads (`aws:ec2/getVpc:getVpc`, `aws:ec2/vpc:Vpc`); empty if none."""
    name, module, function = token.split(":")
    kind = function.removeprefix("get")
    lowered = kind[:1].lower() + kind[1:]
    candidates = (f"{name}:{module.rsplit('/', 1)[0]}/{lowered}:{kind}", f"{name}:{module}:{kind}")
    return next((each for each in candidates if each in package.classes), "")


def listed_token(package: Package, token: str) -> str:
    """Return the type whose resources a function lists (`getSubnets`: `ec2/subnet:Subnet`); empty if none."""
    return resource_token(package, token.removesuffix("s")) if token.endswith("s") else ""


def _existing(
    package: Package, token: str, args: dict[str, Any], records: list[CloudObject]
) -> CloudObject | None:
    kind = resource_token(package, token)
    found = [record for record in records if kind and record.token == kind and _is_meant(record, args)]
    if len(found) > 1:
        names = ", ".join(sorted(record.urn.rsplit("::", 1)[-1] for record in found))
        raise LookupError(f"{token} matches {len(found)} resources: {names}")
    return found[0] if found else None


def _is_meant(record: CloudObject, args: dict[str, Any]) -> bool:
    outputs = plain(record.outputs)
    expected = {
        name: value for name, value in args.items() if value not in (None, [], {}) and name != "filters"
    }
    filters = args.get("filters") or []
    if not expected and not filters:
        return False
    return all(
        record.id == value if name == "id" else _same(outputs.get(name), value)
        for name, value in expected.items()
    ) and all(_passes(outputs, each) for each in filters)


def _same(own: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(own, dict) and all(own.get(key) == value for key, value in expected.items())
    return bool(own == expected)


def _passes(outputs: dict[str, Any], each: dict[str, Any]) -> bool:
    """Return whether a resource passes a filter of the EC2 API: `tag:KEY`, or a property such as `vpc-id`."""
    name = str(each.get("name", ""))
    if name.startswith("tag:"):
        own = (outputs.get("tags") or {}).get(name.removeprefix("tag:"))
    else:
        own = outputs.get(re.sub(r"-(\w)", lambda match: match.group(1).upper(), name))
    return own is not None and any(fnmatchcase(str(own), str(value)) for value in each.get("values") or ())


def _plausible(
    package: Package, model: CloudModel, token: str, args: dict[str, Any], region: str
) -> dict[str, Any]:
    cls = result_class(package, token)
    if cls is None:
        return {}
    kind = resource_token(package, token)
    seed = digest(token, json.dumps(args, sort_keys=True, default=str))
    name = str(args.get("name") or seed[:8])
    own_id = str(args.get("id") or (model.make_id(kind, args, name, seed) if kind else seed[:17]))
    identity = Identity(token, name, own_id, region, model.account, {})
    values = made(cls, identity)
    if isinstance(values.get("ids"), list) and (each := listed_token(package, token)):
        values["ids"] = [model.make_id(each, args, name, seed)]
    return {
        **values,
        **{key: value for key, value in args.items() if value is not None},
        "id": own_id,
    }


def _shown(plausible: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a result that a snippet shows: what a program most probably reads."""
    own = {key: value for key, value in plausible.items() if key not in args and not isinstance(value, dict)}
    order = sorted(own, key=lambda key: (key != "id", "arn" not in key.lower(), len(key)))
    return {key: own[key] for key in order[:_SHOWN] if own[key] not in ("", [], None)}


def function_of(package: Package, token: str) -> Callable[..., Any] | None:
    """Return the SDK's Python function of a token, or None."""
    _, path, function = token.split(":")
    folder = path.split("/")[0] if package.name != "azure-native" else path.replace("/", ".")
    try:
        module = sdk_module(package.module if folder == "index" else f"{package.module}.{folder}")
        own = next(
            name for name in dir(module) if name.replace("_", "").lower() == function.lower() and "_" in name
        )
        found: Callable[..., Any] = getattr(module, own)
    except (ImportError, StopIteration, AttributeError):
        return None
    return found


def result_class(package: Package, token: str) -> type | None:
    """Return the SDK's class of a function's result, or None."""
    target = function_of(package, token)
    try:
        annotation = inspect.signature(target).return_annotation if target else None
    except (TypeError, ValueError):
        return None
    result_name = getattr(annotation, "__name__", str(annotation)).removeprefix("Awaitable")
    found = getattr(sys.modules[target.__module__], result_name, None) if target else None
    return found if isinstance(found, type) and outputs_of(found) else None
