"""The generated parts of docs/security.md, between `<!-- generated: NAME -->` and `<!-- end: NAME -->`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "security.md"
FIGURES = ROOT / "tests" / "fuzz" / "figures.json"
"""Written by `python -m tests.fuzz`."""
_PART = re.compile(
    r"(<!-- generated: (?P<name>[\w-]+) -->\n)(?P<text>.*?)(<!-- end: (?P=name) -->)", re.DOTALL
)
MET = {
    "policy": "yes, by policy",
    "setting": "yes, by configuration",
    "code": "yes, by Kubernetes roles",
    "partly": "in part",
    "no": "no",
    "cloud": "by the cloud",
}


def controls() -> list[dict[str, Any]]:
    """The rows of cis.toml."""
    found: list[dict[str, Any]] = _data("cis.toml")["control"]
    return found


def benchmarks() -> dict[str, str]:
    """The titles of the benchmarks with their versions, by the name that rows use."""
    found: dict[str, str] = _data("cis.toml")["benchmarks"]
    return found


def actors() -> list[dict[str, Any]]:
    """The rows of actors.toml."""
    found: list[dict[str, Any]] = _data("actors.toml")["actor"]
    return found


def current() -> dict[str, str]:
    """The generated parts by name."""
    parts = {"actors": _actors(), "kubernetes-roles": _roles(), "fuzzing": _fuzzing()}
    return parts | {f"cis-{name}": _cis(name) for name in benchmarks()}


def written(text: str, parts: Mapping[str, str]) -> str:
    """The page with each part replaced.

    Raises:
        ValueError: the page lacks a part, or has one that nothing generates.
    """
    names = [match["name"] for match in _PART.finditer(text)]
    if sorted(names) != sorted(parts):
        raise ValueError(f"docs/security.md has the parts {sorted(names)}, not {sorted(parts)}")
    return _PART.sub(lambda match: f"{match[1]}{parts[match['name']]}{match[4]}", text)


def _actors() -> str:
    lines = []
    for row in actors():
        lines += [f"### {row['name']}", "", "| | |", "|---|---|"]
        for key, title in (
            ("holds", "holds"),
            ("allows", "a stolen token allows"),
            ("limits", "limited by"),
            ("noticed", "noticed by"),
            ("revoked", "revoked by"),
            ("not_enforced", "not enforced"),
        ):
            if row.get(key):
                lines.append(f"| {title} | {row[key]} |")
        lines += [f"| shown by | {', '.join(f'`{each}`' for each in row['shown'])} |", ""]
    return "\n".join(["", *lines])


def _roles() -> str:
    """The rules of Kubernetes roles, as the cluster layer declares them."""
    from trainfleet.infra.kubernetes import access

    roles = (
        ("Role `trainfleet-launcher`", access.LAUNCHER_RULES),
        ("Role `trainfleet-launcher-login`, people only", access.LOGIN_RULES),
        ("Role `trainfleet-training-pod`", access.POD_RULES),
        ("ClusterRole `trainfleet-launcher`", access.CLUSTER_RULES),
    )
    rows = []
    for title, rules in roles:
        for group, resources, verbs in rules:
            names = access.RULE_NAMES.get(resources[0], [])
            only = f" (only {', '.join(f'`{name}`' for name in names)})" if names else ""
            rows.append((title, f"{', '.join(resources)}{only}", group or "core", ", ".join(verbs)))
    return _table(("role", "resources", "API group", "verbs"), rows)


def _cis(benchmark: str) -> str:
    rows = []
    for row in controls():
        if row["benchmark"] != benchmark:
            continue
        by = [f"[`{name}`](reference/policies.md#{name})" for name in row.get("policies", ())]
        if "resource" in row:
            value = "absent" if row.get("absent") else json.dumps(row["value"])
            value = "set by the apply" if row.get("value") == "[unknown]" else value
            by.append(f"`{row['resource'].split(':')[-1].split('#')[0]}.{row['property']}`: `{value}`")
        rows.append((row["id"], row["title"], MET[row["met"]], "<br>".join(by), row.get("note", "")))
    return _table(("control", "about", "met", "policy and setting of a production stack", "note"), rows)


def _fuzzing() -> str:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    rows = [
        (
            each["title"],
            f"{each['inputs']:,}",
            f"{each['accepted']:,}",
            f"{each['rejected']:,}",
            str(each["open_findings"]),
            f"{each['cpu_s']:.1f} s",
        )
        for each in figures["targets"]
    ]
    head = ("input", "tried", "accepted", "rejected with a message", "open findings", "CPU time")
    command = f"`python -m tests.fuzz --inputs {figures['inputs']} --seed {figures['seed']}`"
    run = f"{command} on {figures['date']}:\n"
    return f"\n{run}{_table(head, rows)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines) + "\n\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _data(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
