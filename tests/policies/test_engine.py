"""The pack on the real engine: it starts, stops what breaks a rule, and judges at apply what a preview could not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.commands import Outcome
from rehearsal.engine import find_engine
from rehearsal.rehearse import Wishes, staged
from rehearsal.sandbox import read_project

PROGRAM = """
import json

import pulumi
import pulumi_aws as aws

pulumi.Config("trainfleet").require_object("platform")
tags = {"trainfleet:platform": "p", "trainfleet:environment": "dev", "trainfleet:owner": "a@b.c"}
role = aws.iam.Role("role", assume_role_policy="{}", tags=tags)
everything = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
# The role's ARN is known after the apply, and with it the document.
document = role.arn.apply(lambda arn: json.dumps({**everything, "Id": arn}))
aws.iam.RolePolicy("late", role=role.name, policy=document)
"""
BUCKET = 'aws.s3.Bucket("bare", tags=tags)\n'


@pytest.fixture
def engine(tmp_path: Path, root: Path) -> Iterator[Callable[..., Callable[[str], Outcome]]]:
    """Start a program with a platform's exceptions; gives a function that runs one command with the pack."""
    with ExitStack() as stack:

        def start(program: str, exceptions: list[dict[str, Any]] | None = None) -> Callable[[str], Outcome]:
            (tmp_path / "__main__.py").write_text(program)
            (tmp_path / "Pulumi.yaml").write_text("name: small\nruntime: python\n")
            settings = {"config": {"trainfleet:platform": {"exceptions": exceptions or []}, "aws:region": "us-east-2"}}
            (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump(settings))
            rehearsal = stack.enter_context(staged(read_project(tmp_path, "dev"), find_engine(), Wishes()))

            def run(command: str) -> Outcome:
                more = ["--yes", "--skip-preview"] if command == "up" else []
                return rehearsal.runner.run(command, *more, "--policy-pack", str(root / "policies"))

            return run

        yield start


def broken(outcome: Outcome) -> set[str]:
    return {violation.policy for violation in outcome.violations if violation.level == "mandatory"}


def test_what_a_preview_cannot_know_is_judged_when_it_is_applied(engine: Callable[..., Callable[[str], Outcome]]) -> None:
    run = engine(PROGRAM)
    preview = run("preview")
    assert (preview.code, broken(preview)) == (0, set()), preview.output
    applied = run("up")
    assert applied.code != 0
    assert broken(applied) == {"no-star-role"}, applied.output


def test_a_bucket_that_lacks_its_companions_stops_a_preview(engine: Callable[..., Callable[[str], Outcome]]) -> None:
    preview = engine(PROGRAM + BUCKET)("preview")
    assert preview.code != 0
    assert broken(preview) == {"no-public-bucket-everywhere", "tls-only-bucket-everywhere"}, preview.output
    assert "To mend:" in preview.violations[0].message


def test_an_exception_written_in_the_stack_reaches_the_pack(engine: Callable[..., Callable[[str], Outcome]]) -> None:
    entry = {"resource": "bare", "reason": "moved next week", "until": "2999-01-01"}
    preview = engine(PROGRAM + BUCKET, [{"policy": policy, **entry} for policy in ("no-public-bucket", "tls-only-bucket-everywhere")])("preview")
    assert (preview.code, broken(preview)) == (0, set()), preview.output
