"""`trainfleet ci`: what it verifies before it applies, what it says after a failure, and what counts as approved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainfleet.ci.apply import apply
from trainfleet.ci.approval import FIELDS, LABEL, check_approved, read_pull_request
from trainfleet.ci.publish import publish, storage_url
from trainfleet.errors import InputError, TrainfleetError

URN = "urn:pulumi:dev::acme::aws:s3/bucket:Bucket::runs"
Pulumi = Callable[..., Path]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan file of the engine."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"resourcePlans": {URN: {"steps": ["create"]}}}))
    return file


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pulumi:
    """A `pulumi` that records its arguments, and answers as told."""

    def create(output: str = "", code: int = 0, pending: list[dict[str, Any]] | None = None) -> Path:
        calls, script = tmp_path / "calls", tmp_path / "pulumi"
        (tmp_path / "output").write_text(output)
        (tmp_path / "state.json").write_text(json.dumps({"deployment": {"pending_operations": pending}}))
        script.write_text(
            f'#!/bin/sh\necho "$@" >> {calls}\n'
            f'if [ "$1" = stack ]; then cat {tmp_path}/state.json; else cat {tmp_path}/output; exit {code}; fi\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("TRAINFLEET_PULUMI", str(script))
        return calls

    return create


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_exactly_the_reviewed_plan_is_applied(plan: Path, pulumi: Pulumi) -> None:
    calls = pulumi()
    apply("dev", plan, digest(plan), [Path("policies")])
    last = calls.read_text().splitlines()[-1]
    assert last.startswith(f"up --stack dev --plan {plan} --yes --skip-preview")
    assert last.endswith("--policy-pack policies")


def test_another_plan_is_not_applied(plan: Path, pulumi: Pulumi) -> None:
    calls, reviewed = pulumi(), digest(plan)
    plan.write_text(plan.read_text().replace("create", "delete"))
    with pytest.raises(InputError, match="not the reviewed plan") as error:
        apply("dev", plan, reviewed)
    assert digest(plan) in str(error.value)
    assert not calls.exists()


def test_another_kind_of_file_is_not_applied(tmp_path: Path, pulumi: Pulumi) -> None:
    calls, file = pulumi(), tmp_path / "plan.json"
    file.write_text("[]")
    with pytest.raises(InputError, match="cannot read the plan"):
        apply("dev", file, digest(file))
    assert not calls.exists()


def test_nothing_is_applied_after_an_interrupted_apply(plan: Path, pulumi: Pulumi) -> None:
    calls = pulumi(pending=[{"type": "creating", "resource": {"urn": URN}}])
    with pytest.raises(TrainfleetError, match="was interrupted: nothing was applied now") as error:
        apply("dev", plan, digest(plan))
    assert "--clear-pending-creates" in str(error.value)
    assert f"--import-pending-creates '{URN}'" in str(error.value)
    assert "up" not in [line.split()[0] for line in calls.read_text().splitlines()]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "error: the stack is currently locked by 1 lock(s).\n  s3://b/x.json: created by me@runner (pid 7) at noon",
            ["created by me@runner (pid 7) at noon", "pulumi cancel --stack dev --yes"],
        ),
        (
            "error: resource urn:pulumi:x violates plan: inputs changed",
            ["changed since the plan was reviewed"],
        ),
        ("error: AccessDenied", ["is applied in part", "plan again"]),
    ],
)
def test_a_failed_apply_says_how_to_continue(
    output: str, expected: list[str], plan: Path, pulumi: Pulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi(output, code=255)
    with pytest.raises(TrainfleetError, match="the apply of dev failed") as error:
        apply("dev", plan, digest(plan))
    for text in expected:
        assert text in str(error.value)
    assert output in capfd.readouterr().err


def review(who: str, state: str = "APPROVED", commit: str = "b2", role: str = "MEMBER") -> dict[str, Any]:
    return {"author": {"login": who}, "state": state, "commit": {"oid": commit}, "authorAssociation": role}


def pull_request(*reviews: dict[str, Any], labels: tuple[str, ...] = (LABEL,)) -> dict[str, Any]:
    return {
        "number": 7,
        "author": {"login": "ada"},
        "labels": [{"name": name} for name in labels],
        "reviews": list(reviews),
        "headRefOid": "b2",
    }


@pytest.mark.parametrize(
    ("reviews", "labels", "refused"),
    [
        ([review("grace")], (LABEL,), ""),
        ([review("grace", "CHANGES_REQUESTED", "a1"), review("grace")], (LABEL,), ""),
        ([review("grace"), review("grace", "COMMENTED")], (LABEL,), ""),
        ([review("grace")], (), "has no label"),
        ([review("grace")], ("bug",), "has no label"),
        ([], (LABEL,), "nobody but its author"),
        ([review("ada")], (LABEL,), "nobody but its author"),  # the author of the change
        ([review("grace", commit="a1")], (LABEL,), "nobody but its author"),  # before the last push
        ([review("mallory", role="NONE")], (LABEL,), "nobody but its author"),  # a stranger
        ([review("grace"), review("grace", "CHANGES_REQUESTED")], (LABEL,), "nobody but its author"),
        ([review("grace"), review("grace", "DISMISSED")], (LABEL,), "nobody but its author"),
    ],
)
def test_a_destructive_change_needs_the_label_and_a_reviewer(
    reviews: list[dict[str, Any]], labels: tuple[str, ...], refused: str
) -> None:
    document = pull_request(*reviews, labels=labels)
    if not refused:
        assert check_approved(document) == ["grace"]
        return
    with pytest.raises(TrainfleetError) as error:
        check_approved(document)
    assert refused in str(error.value)
    assert error.value.exit_code == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"number": 1}'])
def test_another_kind_of_document_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "pull-request.json"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_pull_request(file)
    assert f"gh pr view NUMBER --json {FIELDS}" in str(error.value)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("s3://state?region=us-east-2&awssdk=v2", "s3://state"),
        ("gs://state", "gs://state"),
        ("azblob://state?storage_account=acme", "az://state@acme.blob.core.windows.net"),
        ("azblob://state/sub", "az://state/sub"),
    ],
)
def test_the_bucket_of_a_state_backend_is_known(backend: str, expected: str) -> None:
    assert storage_url(backend) == expected


def test_outputs_are_published_to_a_bucket_only() -> None:
    with pytest.raises(InputError, match="cannot publish there"):
        publish("dev", "somewhere")
