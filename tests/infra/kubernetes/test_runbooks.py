"""Every alert has a runbook, every runbook an alert, and both say the same."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainfleet.infra.kubernetes.dashboards.alerts import CERTIFICATES, GPUS, NODES, QUEUE, RAY

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "runbooks"
RULES = {rule.alert: rule for rule in (*GPUS, *NODES, *RAY, *CERTIFICATES, *QUEUE)}
SECTIONS = ["Meaning", "Look", "Act", "Check that it is over"]
PAGES = sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "README")


def page(name: str) -> tuple[dict[str, Any], str]:
    """The front matter and the text of a runbook."""
    _, head, text = (FOLDER / f"{name}.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), text


def rows() -> dict[str, list[str]]:
    """Each alert of the index, with its severity and whether it was rehearsed."""
    found = re.findall(
        r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \| [^|]+ \| ([^|]+) \|$",
        (FOLDER / "README.md").read_text(),
        re.M,
    )
    assert all(name == target for name, target, *_ in found)
    return {name: [severity, rehearsed] for name, _, severity, rehearsed in found}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert len(RULES) > 5
    assert set(PAGES) == set(RULES)
    assert set(rows()) == set(RULES)


@pytest.mark.parametrize("name", PAGES)
def test_a_runbook_is_that_of_its_alert(name: str) -> None:
    head, text = page(name)
    rule = RULES[name]
    assert head["alert"] == name
    assert head["severity"] == rule.labels.severity
    assert rule.annotations.runbook == f"docs/runbooks/{name}.md"
    assert re.findall(r"^# (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M) == [name]
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert f"alertname%3D{name}'" in text, "how to see that it is over"
    assert [
        head["severity"],
        {False: "no", True: "yes"}.get(head["rehearsed"], str(head["rehearsed"])),
    ] == rows()[name]


@pytest.mark.parametrize("name", PAGES)
def test_a_runbook_names_namespaces_that_the_layer_creates(name: str) -> None:
    from trainfleet.infra.kubernetes import names
    from trainfleet.infra.platform import TRAINING_NAMESPACE

    created = {value for key, value in vars(names).items() if key.endswith("_NAMESPACE")}
    used = set(re.findall(r"(?:kubectl -n|--namespace) ([\w-]+)", page(name)[1]))
    assert used - created - {TRAINING_NAMESPACE, *names.BUILT_IN} == set()


@pytest.mark.parametrize("name", PAGES)
def test_a_runbook_is_rehearsed_by_the_test_that_runs_its_commands(name: str) -> None:
    head, text = page(name)
    rehearsed = isinstance(head["rehearsed"], date)
    runner = "tests/cluster/test_runbooks.py"
    assert (f'fires("{name}")' in (ROOT / runner).read_text(encoding="utf-8")) == rehearsed
    assert (f"<!-- run: {runner} -->" in text) == rehearsed
