"""The stack settings of both sides: what to build, what it costs, and which settings differ where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.infra.catalog.cost import Bill, bill
from trainfleet.infra.spec.schema import Kubernetes, PlatformSpec
from trainfleet.infra.spec.stack_file import PLATFORM_KEY, StackFile, read_stack_file
from trainfleet.kubernetes_support import last_day
from trainfleet.rehearsal.diff.change import SECRET
from trainfleet.rehearsal.diff.model import SpecChange

KeyPath = tuple[str | int, ...]
STAND_IN = "rehearsal-secret"


def stack_file(root: Path, stack: str, shown_as: str) -> StackFile | None:
    """Read a stack's file in a checkout, or return None if the stack does not exist there.

    Messages show the file under `shown_as`, its name in the user's checkout.

    Raises:
        InputError: the file is not YAML or not a mapping.
    """
    folder = root / _settings_folder(root)
    file = next(
        (path for suffix in ("yaml", "yml") if (path := folder / f"Pulumi.{stack}.{suffix}").is_file()), None
    )
    if file is None:
        return None
    try:
        found = read_stack_file(file)
    except InputError as error:
        problems = [
            Problem(problem.where.replace(_shown(file), file.name), problem.what, problem.fix)
            for problem in error.problems
        ]
        raise InputError(f"{shown_as}: {error.summary}", problems) from error
    return StackFile(str(file.relative_to(root)), file, found.document, found.lines)


def _settings_folder(root: Path) -> str:
    try:
        document = yaml_limits.load((root / "Pulumi.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return "."
    folder = document.get("stackConfigDir") if isinstance(document, dict) else None
    return folder if isinstance(folder, str) else "."


def _shown(file: Path) -> str:
    from trainfleet.infra.spec.stack_file import shown_path

    return shown_path(file)


def for_build(document: Mapping[str, Any], today: date) -> tuple[dict[str, Any], list[str]]:
    """Return settings that build without the secrets key and on a later day, and notes on what was left out.

    The sandbox replaces secrets that are a whole value; this function replaces nested ones. Expired policy
    exceptions are dropped: they create no resource, but the program would reject the spec because of them.
    """
    config = {
        key: _without_ciphertext(value, top=True) for key, value in (document.get("config") or {}).items()
    }
    platform, notes = config.get(PLATFORM_KEY), []
    if isinstance(platform, dict) and isinstance(exceptions := platform.get("exceptions"), list):
        kept = [each for each in exceptions if not _past(each, today)]
        if len(kept) < len(exceptions):
            notes.append(
                f"{len(exceptions) - len(kept)} policy exceptions of the base have expired and are ignored"
            )
            config[PLATFORM_KEY] = {**platform, "exceptions": kept}
    return {"config": config}, notes


def built_on(settings: Mapping[str, Any], day: date) -> date | None:
    """Return the last day on which the base's Kubernetes version was supported, if that day has passed."""
    platform = (settings.get("config") or {}).get(PLATFORM_KEY)
    if not isinstance(platform, dict):
        return None
    kubernetes = platform.get("kubernetes")
    version = kubernetes.get("version") if isinstance(kubernetes, dict) else None
    return last_day(str(platform.get("cloud")), str(version or Kubernetes().version), day)


def _without_ciphertext(value: Any, *, top: bool) -> Any:
    if isinstance(value, dict):
        if set(value) == {"secure"}:
            return value if top else STAND_IN
        return {key: _without_ciphertext(item, top=False) for key, item in value.items()}
    return [_without_ciphertext(item, top=False) for item in value] if isinstance(value, list) else value


def _past(exception: Any, today: date) -> bool:
    until = exception.get("until") if isinstance(exception, dict) else None
    return isinstance(until, date) and until < today


def bill_of(file: StackFile | None) -> tuple[Bill | None, str]:
    """Return the cost of a stack; or None and the reason if the current version cannot parse its spec."""
    if file is None:
        return None, ""
    if PLATFORM_KEY not in (file.document.get("config") or {}):
        return None, "it has no platform spec, so its cost is not known"
    try:
        return bill(PlatformSpec.model_validate((file.document.get("config") or {}).get(PLATFORM_KEY))), ""
    except (ValueError, TypeError, LookupError, TrainfleetError) as error:
        return None, f"its cost is not known: {str(error).splitlines()[0]}"


def spec_changes(base: StackFile | None, head: StackFile | None) -> list[SpecChange]:
    """Return the settings that differ.

    Platform settings have short paths. Pools and exceptions are matched by name, not by position.
    """
    if base is None and head is None:
        return []
    old, new = (
        dict(_leaves((each.document.get("config") or {}) if each else {}, ())) for each in (base, head)
    )
    found = []
    for path in dict.fromkeys([*old, *new]):
        before, after = old.get(path, (None, ()))[0], new.get(path, (None, ()))[0]
        if before == after:
            continue
        side = head if path in new else base
        where = side.locate(("config", *(new.get(path) or old[path])[1])) if side else ""
        found.append(
            SpecChange(
                _text(path), _hidden(before), _hidden(after), where if path in new else f"{where} in the base"
            )
        )
    return found


def _leaves(value: Any, path: KeyPath, real: KeyPath = ()) -> Iterator[tuple[KeyPath, tuple[Any, KeyPath]]]:
    """Yield each leaf by a path that is stable under reordering, with its real path in the document."""
    if isinstance(value, dict) and set(value) != {"secure"} and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)), (*real, key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            name = item.get("name") or item.get("policy") if isinstance(item, dict) else None
            yield from _leaves(item, (*path, f"[{name if name is not None else index}]"), (*real, index))
    else:
        yield path, (value, real)


def _text(path: KeyPath) -> str:
    parts = [str(part) for part in path]
    if parts[:1] == [PLATFORM_KEY]:
        parts = parts[1:] or ["the platform"]
    text = ""
    for part in parts:
        text += part if part.startswith("[") or not text else f".{part}"
    return text


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return SECRET if set(value) == {"secure"} else {key: _hidden(item) for key, item in value.items()}
    return str(value) if isinstance(value, date) else value
