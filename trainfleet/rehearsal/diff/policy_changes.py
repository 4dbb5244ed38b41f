"""What a change weakens in the policies: policies removed, levels lowered, settings changed, and exceptions.

The head is checked by its own pack, so a change that removes the policy that it violates would pass without a
word.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet.infra.spec.stack_file import PLATFORM_KEY
from trainfleet.rehearsal.diff.pack_reader import CHECK

READER = Path(__file__).with_name("pack_reader.py")
TIMEOUT_S = 120
_STRENGTH = ("disabled", "advisory", "mandatory", "remediate")
EVERY = "every policy"


@dataclass(frozen=True)
class PolicyRule:
    """A policy of a pack, at its level for one stack."""

    name: str
    level: str
    settings: Mapping[str, Any]
    """What can be configured, as JSON schemas by name, and configured values."""


@dataclass(frozen=True)
class Weakened:
    """A policy that checks less than before; `before` and `after` say what differs."""

    policy: str
    what: str
    before: str
    after: str


class UnreadablePackError(Exception):
    """Raised when a pack's program fails; the message is the last line of its output."""


def digest(pack: Path | None) -> str:
    """Return a digest of a pack's files, empty without a pack."""
    if pack is None:
        return ""
    found = hashlib.sha256()
    for file in sorted(pack.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            found.update(f"{file.relative_to(pack)}\0".encode() + file.read_bytes() + b"\0")
    return found.hexdigest()


def read_pack(pack: Path | None, root: Path, settings: Mapping[str, Any]) -> list[PolicyRule]:
    """Return the policies of a checkout's pack at the level for a stack's settings; empty without a pack.

    Args:
        pack: the folder with PulumiPolicy.yaml.
        root: the checkout, from which the pack imports its modules.
        settings: the stack's settings, with their `config`.

    Raises:
        UnreadablePackError: the pack's program fails or does not end.
    """
    if pack is None:
        return []
    rows = run_pack(pack, root, settings)
    return [
        PolicyRule(row["name"], row["level"], {**row["settings"], **_values(row["values"])}) for row in rows
    ]


def run_pack(
    pack: Path, root: Path, settings: Mapping[str, Any], resources: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return what pack_reader.py prints of a pack: its policies, or what they report of resources.

    Raises:
        UnreadablePackError: the pack's program fails or does not end.
    """
    config = {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in (settings.get("config") or {}).items()
    }
    try:
        main = (yaml.safe_load((pack / "PulumiPolicy.yaml").read_text()) or {}).get("main")
        program = str(pack / str(main) if main else pack)
        done = subprocess.run(
            [sys.executable, str(READER), program, *([] if resources is None else [CHECK])],
            cwd=pack,
            env={
                **{key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "LANG") if key in os.environ},
                "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", "")))),
                "PULUMI_CONFIG": json.dumps(config),
            },
            input=json.dumps(resources or []),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        rows = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise UnreadablePackError(f"it did not end within {TIMEOUT_S} s") from error
    except (OSError, ValueError, AttributeError) as error:
        raise UnreadablePackError(_last_line(done.stderr) if "done" in locals() else str(error)) from error
    return list(rows)


def _values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name} (value)": value for name, value in values.items()}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


def weakened(before: Iterable[PolicyRule], after: Iterable[PolicyRule]) -> list[Weakened]:
    """Return what the policies of `after` check less than those of `before`.

    A changed setting is listed whether it is stricter or not: only its policy knows.
    """
    old, new = {rule.name: rule for rule in before}, {rule.name: rule for rule in after}
    if old and not new:
        return [Weakened(EVERY, "removed", f"{len(old)} policies", "no policy pack")]
    found = []
    for name, rule in old.items():
        now = new.get(name)
        if now is None:
            if rule.level != "disabled":
                found.append(Weakened(name, "removed", rule.level, "no such policy"))
            continue
        if _strength(now.level) < _strength(rule.level):
            found.append(Weakened(name, "lowered", rule.level, now.level))
        found += [
            Weakened(
                name,
                f"setting `{key}` changed",
                _text(rule.settings.get(key)),
                _text(now.settings.get(key)),
            )
            for key in dict.fromkeys([*rule.settings, *now.settings])
            if rule.settings.get(key) != now.settings.get(key)
        ]
    return found


def _strength(level: str) -> int:
    return _STRENGTH.index(level) if level in _STRENGTH else _STRENGTH.index("mandatory")


def _text(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, sort_keys=True, default=str)


def weaker_exceptions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Weakened]:
    """Return the exceptions of a stack's settings that are new, last longer or have lost their end.

    Args:
        before: the settings of the base, with their `config`.
        after: the settings of the head.
    """
    old, new = _exceptions(before), _exceptions(after)
    found = []
    for (policy, resource), until in new.items():
        where = "every resource" if resource == "*" else resource
        if (policy, resource) not in old:
            found.append(Weakened(policy, "exception added", "checked", f"{where}, {_until(until)}"))
        elif until != (was := old[policy, resource]) and (not until or (was and until > was)):
            what = "exception lasts longer" if until else "exception has no end any more"
            found.append(Weakened(policy, what, f"{where}, {_until(was)}", f"{where}, {_until(until)}"))
    return found


def _exceptions(settings: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    platform = (settings.get("config") or {}).get(PLATFORM_KEY)
    entries = platform.get("exceptions") if isinstance(platform, dict) else None
    found: dict[tuple[str, str], str] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            key, until = (
                (str(entry.get("policy")), str(entry.get("resource"))),
                str(entry.get("until") or "")[:10],
            )
            # Of two exceptions for the same, the one that lasts longer counts.
            found[key] = until if key not in found else max(found[key], until) if until and found[key] else ""
    return found


def _until(text: str) -> str:
    return f"until {text}" if text else "without end"
