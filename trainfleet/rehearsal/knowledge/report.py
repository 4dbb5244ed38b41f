"""What is known about types, for `trainfleet knowledge show` and `trainfleet doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.simulation.knowledge_table import is_behind, project_folder, tables
from trainfleet.rehearsal.simulation.property_paths import join_path
from trainfleet.rehearsal.simulation.replacement import table
from trainfleet.suggestions import did_you_mean


def of_packages(versions: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for each table: its source, version, date and age against the installed SDK.

    Args:
        versions: the installed SDKs' versions by package.
    """
    own = project_folder()
    return [
        {
            "package": name,
            "types": len(each.types),
            "source": each.source,
            "version": each.version,
            "date": each.date,
            "sdk": each.sdk,
            "installed": versions.get(name, ""),
            "from_project": bool(own and (own / f"{name}.json").is_file()),
            "behind": is_behind(each, versions.get(name, "")),
        }
        for name, each in sorted(tables().items())
    ]


def of_type(token: str) -> dict[str, Any]:
    """Return what is known about a type.

    Raises:
        InputError: there is no row for the type.
    """
    rules = table()
    rule = rules.get(token)
    if rule is None:
        hint = did_you_mean(token, rules)
        raise InputError("nothing is known about this type", [Problem(token, "has no row", hint)])
    known = tables().get(token.split(":", 1)[0])
    row = known.types.get(token) if known else None
    return {
        "type": token,
        "source": rule.source,
        "version": known.version if known and row else "",
        "date": known.date if known and row else "",
        "replace": sorted(map(join_path, rule.replace)),
        "when": {
            join_path(path): " or ".join(each.text for each in rule.conditions if each.path == path)
            for path in dict.fromkeys(each.path for each in rule.conditions)
        },
        "unclear": {join_path(path) or "*": _why(row.unclear if row else {}, path) for path in rule.unclear},
        "delete_first": sorted(map(join_path, rule.delete_first)),
        "sets": sorted(map(join_path, rule.same.sets)),
        "caseless": sorted(map(join_path, rule.same.caseless)),
    }


def _why(reasons: Mapping[str, str], path: tuple[str, ...]) -> str:
    return reasons.get(join_path(path) or "*", "see the source")
