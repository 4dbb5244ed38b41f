"""Prints the policies of a CrossGuard pack as JSON: name, level and settings. With `--check`, prints instead
what its policies report of the resources that are read from stdin.

Started as a file, in the pack's folder, with the pack's checkout first in PYTHONPATH and the stack's
settings in PULUMI_CONFIG. It imports nothing else of this project.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECK = "--check"


def recorded(program: Path) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """Yield the policies that a pack's program would serve, each with its level and its values.

    Raises:
        Exception: whatever the program raises.
    """
    import pulumi_policy

    found: list[tuple[Any, str, dict[str, Any]]] = []

    class Recorder:
        """Takes the place of PolicyPack, which would serve until the process is stopped."""

        def __init__(
            self,
            _name: str,
            policies: list[Any],
            enforcement_level: Any = None,
            initial_config: dict[str, Any] | None = None,
            **_: Any,
        ) -> None:
            for policy in policies:
                configured = (initial_config or {}).get(policy.name)
                settings = configured if isinstance(configured, dict) else {}
                own = settings.get("enforcementLevel") or (None if settings else configured)
                level = own or policy.enforcement_level or enforcement_level
                values = {name: value for name, value in settings.items() if name != "enforcementLevel"}
                found.append((policy, str(getattr(level, "value", level) or "advisory"), values))

    vars(pulumi_policy)["PolicyPack"] = Recorder
    sys.argv = [str(program)]
    sys.path[0] = str(program if program.is_dir() else program.parent)
    runpy.run_path(str(program), run_name="__main__")
    yield from found


def policies(program: Path) -> list[dict[str, Any]]:
    """Return the policies of a pack as JSON."""
    return [
        {"name": policy.name, "level": level, "settings": _settings(policy), "values": values}
        for policy, level, values in recorded(program)
    ]


def _settings(policy: Any) -> dict[str, Any]:
    return dict(policy.config_schema.properties or {}) if policy.config_schema is not None else {}


def violations(program: Path, resources: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return what policies report of single resources, each with `type`, `name`, `urn` and `props`."""
    from pulumi_policy import policy as sdk
    from pulumi_policy.deserialize import deserialize_properties
    from pulumi_policy.proxy import UnknownValueError, unknown_checking_proxy

    found: list[dict[str, str]] = []
    none = sdk.PolicyResourceOptions(False, [], None, [], sdk.PolicyCustomTimeouts(0, 0, 0), [])
    for policy, level, values in recorded(program):
        if (
            level == "disabled"
            or not isinstance(policy, sdk.ResourceValidationPolicy)
            or not policy.has_validation()
        ):
            continue
        defaults = {name: each["default"] for name, each in _settings(policy).items() if "default" in each}
        shown = "mandatory" if level == "remediate" else level
        for each in resources:

            def report(message: str, urn: str | None = None, each: Any = each) -> None:
                row = {"policy": policy.name, "level": shown, "urn": urn or each["urn"], "message": message}  # noqa: B023 - called in this round
                found.append(row)

            props = unknown_checking_proxy(deserialize_properties(each["props"]))
            args = sdk.ResourceValidationArgs(
                each["type"], props, each["urn"], each["name"], none, None, {**defaults, **values}
            )
            try:
                result = policy.validate(args, report)
                if inspect.isawaitable(result):
                    asyncio.run(_awaited(result))
            except UnknownValueError:
                continue
    return found


async def _awaited(result: Any) -> None:
    await result


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    read = json.load(sys.stdin) if CHECK in sys.argv else None
    main = Path(sys.argv[1])
    answers.write(json.dumps(policies(main) if read is None else violations(main, read), default=str))
