"""Drift of a stack that the real engine applied: injected into the simulated cloud, reported, and repaired."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError, TrainfleetError
from trainfleet.rehearsal.drift.all_stacks import drift_of_all, drift_of_stack
from trainfleet.rehearsal.drift.model import DriftReport, NextUp, Severity
from trainfleet.rehearsal.drift.refresh import NotDeployedError
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.simulation.pulumi_values import SECRET, SIGNATURE
from trainfleet.rehearsal.steps.selection import dependents
from trainfleet.rehearsal.steps.session import APPLY, Rehearsal, RehearsalOptions, rehearsal_session

PROJECT = Path(__file__).with_name("project")


@pytest.fixture(scope="module")
def applied(engine: Engine) -> Iterator[Rehearsal]:
    """The project, applied to a simulated cloud."""
    with rehearsal_session(read_project(PROJECT, "one"), engine, RehearsalOptions()) as r:
        outcome = r.runner.run(*APPLY)
        assert outcome.ok, outcome.output
        yield r


@pytest.fixture
def stack(applied: Rehearsal, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    """The same, with the environment in which its owner calls Pulumi."""
    for name, value in applied.runner.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINFLEET_PULUMI", str(engine.path))
    return applied


def urn(r: Rehearsal, name: str) -> str:
    return next(each.urn for each in r.cloud.everything() if each.urn.endswith(f"::{name}"))


def edit(r: Rehearsal, name: str, **values: Any) -> None:
    r.cloud.drift(urn(r, name), lambda side: side.update(values))


def delete(r: Rehearsal, name: str) -> None:
    record = r.cloud.of_urn(urn(r, name))
    assert record is not None
    del r.cloud.records[record.key]


def check(r: Rehearsal, engine: Engine, *, program: bool = True) -> DriftReport:
    return drift_of_stack(r.runner.sandbox.project, "one", engine, program=program)


def test_drift_is_reported_repaired_and_gone(stack: Rehearsal, engine: Engine, tmp_path: Path) -> None:
    assert check(stack, engine).exit_code == 0
    state = stack.runner.sandbox.state.read_text()
    edit(stack, "runs", tags={"team": "ml", "by": "hand"})
    edit(stack, "subnet", cidrBlock="10.40.9.0/24")
    ports = [{"protocol": "tcp", "fromPort": 22, "toPort": 22, "cidrBlocks": ["0.0.0.0/0"]}]
    edit(stack, "web", ingress=ports)
    edit(stack, "workers", healthCheckGracePeriod=10)
    edit(stack, "secret", value={SIGNATURE: SECRET, "value": "another-word"})
    delete(stack, "key")
    urns = {name: urn(stack, name) for name in ("runs", "subnet", "web", "secret")}

    command = [
        sys.executable,
        "-m",
        "trainfleet",
        "drift",
        str(stack.runner.sandbox.project),
        "--stack",
        "one",
    ]
    issue = tmp_path / "issue.md"
    done = subprocess.run(
        [*command, "--json", "--markdown", str(issue)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)["resources"]}
    assert {name: (each["severity"], each["next_up"]) for name, each in found.items()} == {
        "key": (Severity.HIGH, NextUp.CREATE),
        "subnet": (Severity.HIGH, NextUp.REPLACE),
        "web": (Severity.HIGH, NextUp.UPDATE),
        "secret": (Severity.MEDIUM, NextUp.UPDATE),
        "runs": (Severity.LOW, NextUp.UPDATE),
    }
    assert found["runs"]["properties"] == [
        {"path": "tags.by", "state": None, "cloud": "hand", "expected": ""}
    ]
    text = issue.read_text() + done.stdout
    assert "0.0.0.0/0" in text
    assert "port 22" in text
    assert "ignore_changes" in text
    assert "word" not in text
    assert found["secret"]["properties"][0]["path"] == "value"
    assert stack.runner.sandbox.state.read_text() == state, "a check of drift saves nothing"

    ruled = {each.name: each.next_up for each in check(stack, engine, program=False).resources}
    assert ruled == {name: each["next_up"] for name, each in found.items()}

    repaired = stack.runner.run("up", "--yes", "--skip-preview", "--refresh")
    assert repaired.ok, repaired.output
    assert set(urns.values()) <= set(repaired.ops())
    assert check(stack, engine).exit_code == 0


def test_all_stacks_are_checked_and_those_that_are_not_deployed_are_named(
    stack: Rehearsal, engine: Engine
) -> None:
    project = stack.runner.sandbox.project
    (project / "Pulumi.two.yaml").write_text((PROJECT / "Pulumi.two.yaml").read_text())
    found = drift_of_all(project, engine, program=False)
    assert [each.stack for each in found.reports] == ["one"]
    assert [(each.stack, each.why) for each in found.skipped] == [("two", "the stack is not deployed")]
    with pytest.raises(NotDeployedError, match="not deployed"):
        drift_of_stack(project, "two", engine)


CAUSES: list[Any] = [
    ({"PULUMI_BACKEND_URL": ""}, "no login to the state backend", "pulumi login URL"),
    pytest.param(
        {"PULUMI_BACKEND_URL": "https://127.0.0.1:9", "PULUMI_ACCESS_TOKEN": "pul-0123456789abcdef"},
        "the network does not reach",
        "HTTPS_PROXY",
        marks=pytest.mark.deep,  # the engine tries for some seconds
    ),
    (
        {"PULUMI_BACKEND_URL": "s3://no-such-bucket?region=us-east-1"},
        "no valid login to the cloud",
        "aws sso",
    ),
    ({"PULUMI_BACKEND_URL": "file:///no/such/folder"}, "backend cannot be opened", "PULUMI_BACKEND_URL"),
    ({"PULUMI_CONFIG_PASSPHRASE": "wrong"}, "secrets of the stack cannot be decrypted", "PASSPHRASE_FILE"),
]


@pytest.mark.parametrize(("given", "summary", "fix"), CAUSES)
def test_what_the_engine_lacks_is_one_message(
    given: dict[str, str],
    summary: str,
    fix: str,
    stack: Rehearsal,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainfleetError, match=summary) as caught:
        check(stack, engine)
    (problem,) = caught.value.problems
    assert fix in problem.fix
    assert "pul-0123456789abcdef" not in str(caught.value)


def test_a_program_that_fails_is_one_message_and_refresh_only_does_without_it(
    stack: Rehearsal, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "__main__.py").write_text("raise ValueError('no such region')\n")
    file = stack.runner.sandbox.project / "Pulumi.yaml"
    text = file.read_text()
    file.write_text(text.replace(str(PROJECT), str(tmp_path)))
    try:
        with pytest.raises(TrainfleetError, match="Pulumi failed") as caught:
            check(stack, engine)
        (problem,) = caught.value.problems
        assert problem.what == "the program failed: ValueError: no such region"
        assert "--refresh-only" in problem.fix
        assert check(stack, engine, program=False).exit_code == 0
    finally:
        file.write_text(text)


def test_an_unknown_stack_is_named_with_the_closest(stack: Rehearsal, engine: Engine) -> None:
    with pytest.raises(InputError, match="did you mean `one`"):
        drift_of_stack(stack.runner.sandbox.project, "onee", engine)


@pytest.mark.deep
def test_the_rules_agree_with_the_plan_for_every_resource_of_a_stack(
    engine: Engine, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the program, what the next up does is the same as with it."""
    with rehearsal_session(read_project(root, "aws-prod"), engine, RehearsalOptions()) as r:
        assert r.runner.run(*APPLY).ok
        for name, value in r.runner.environment.items():
            monkeypatch.setenv(name, value)
        state = r.resources()
        for record in r.cloud.everything():
            if dependents(state, record.urn):
                continue  # what is replaced replaces its dependents, which no rule of their type says
            names = [name for name, value in record.inputs.items() if isinstance(value, str)]
            for name in names[: len(record.urn) % 3 + 1]:
                r.cloud.drift(record.urn, lambda side, name=name: side.update({name: "by-hand"}))
        project = r.runner.sandbox.project
        # The program would replace a protected resource: the preview fails, and the rules are used.
        refused = drift_of_stack(project, "aws-prod", engine)
        assert not any(each.certain for each in refused.resources)
        assert any("protected resource" in note for note in refused.notes)
        assert any("an up refuses to replace it" in each.repair for each in refused.resources)
        _remove_protection(r)
        planned = {each.urn: each for each in drift_of_stack(project, "aws-prod", engine).resources}
        ruled = {
            each.urn: each for each in drift_of_stack(project, "aws-prod", engine, program=False).resources
        }
    assert len(planned) > 50
    differ = {
        urn: (planned[urn].next_up, ruled[urn].next_up, [one.path for one in ruled[urn].properties])
        for urn in planned.keys() & ruled.keys()
        if planned[urn].next_up != ruled[urn].next_up
    }
    assert differ == {}
    assert planned.keys() == ruled.keys()


def _remove_protection(r: Rehearsal) -> None:
    state = r.runner.sandbox.state
    document = json.loads(state.read_text())
    for each in document["checkpoint"]["latest"]["resources"]:
        each.pop("protect", None)
    state.write_text(json.dumps(document))
