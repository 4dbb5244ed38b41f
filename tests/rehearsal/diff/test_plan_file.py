"""`diff --events --plan`: the plan has to be of the recorded preview, and its digest is that of `sha256sum`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.rehearsal.diff import event_log
from trainfleet.rehearsal.diff.plan_file import digest_of, read_plan
from trainfleet.rehearsal.diff.real_preview import diff_of
from trainfleet.rehearsal.diff.render import as_markdown

RECORDING = Path(__file__).with_name("exports") / "log-webserver-userdata.jsonl"


def plan(folder: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    """The plan that the engine saves with RECORDING, changed."""
    steps: dict[str, list[str]] = {}
    for step in event_log.read(RECORDING).steps:
        steps.setdefault(step["urn"], []).append(step["op"])
    resources = {urn: {"goal": {}, "steps": ops} for urn, ops in steps.items()}
    change(resources)
    file = folder / "plan.json"
    file.write_text(json.dumps({"manifest": {}, "resourcePlans": resources}))
    return file


def test_the_page_shows_the_digest_of_the_plan(tmp_path: Path) -> None:
    file = plan(tmp_path)
    shown = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout.split()[0]
    found = diff_of(RECORDING, plan=file)
    assert found.as_json()["plan_sha256"] == shown
    assert f"SHA-256 {shown}" in as_markdown(found)
    assert diff_of(RECORDING).as_json()["plan_sha256"] is None


def _changed(resources: dict[str, Any]) -> str:
    return next(urn for urn, each in resources.items() if "replace" in each["steps"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda found: found.pop(_changed(found)), "web-server-www: unchanged in plan.json"),
        (lambda found: found[_changed(found)].update(steps=["update"]), "update in plan.json"),
        (lambda found: found.update({"urn::x": {"steps": ["delete"]}}), "x: delete in plan.json, unchanged"),
    ],
)
def test_a_plan_of_another_preview_is_refused(change: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the plan is of another preview") as error:
        diff_of(RECORDING, plan=plan(tmp_path, change))
    assert expected in str(error.value)


def test_what_the_plan_only_reads_is_ignored(tmp_path: Path) -> None:
    file = plan(tmp_path, lambda found: found.update({"urn::y": {"steps": ["same"]}, "urn::z": {}}))
    assert diff_of(RECORDING, plan=file).plan_sha256 == digest_of(file)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"resourcePlans": {"urn": 1}}'])
def test_another_kind_of_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(InputError, match="cannot read the plan") as error:
        read_plan(file)
    assert "pulumi preview --save-plan" in str(error.value)


def test_a_plan_without_a_recording_is_refused(
    trainfleet: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = trainfleet("diff", "aws-dev", "--plan", "plan.json")
    assert done.returncode == 1
    assert "--plan" in done.stderr
    assert "--events" in done.stderr
