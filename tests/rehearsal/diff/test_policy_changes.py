"""What a change weakens in the policies, as a table, by reading real packs, and on the real engine."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import STACK, Repo
from trainfleet.infra.spec.stack_file import PLATFORM_KEY
from trainfleet.policies.catalogue import RULES
from trainfleet.rehearsal.diff.policy_changes import (
    PolicyRule,
    UnreadablePackError,
    Weakened,
    digest,
    read_pack,
    weakened,
    weaker_exceptions,
)

ROOT = Path(__file__).resolve().parents[3]

STRICT = PolicyRule("tags", "mandatory", {})
PACK = """\
from pulumi_policy import EnforcementLevel, PolicyConfigSchema, PolicyPack, ResourceValidationPolicy
def team(args, report):
    if args.resource_type == 'aws:s3/bucket:Bucket' and (args.props.get('tags') or {}).get('team') != 'ml':
        report('the bucket belongs to another team')
def size(args, report):
    pass
PolicyPack('tiny', [
    ResourceValidationPolicy('own-team', 'Buckets are ours.', team, EnforcementLevel.MANDATORY),
    ResourceValidationPolicy('size', 'Pools are small.', size, EnforcementLevel.MANDATORY,
        PolicyConfigSchema({'most': {'type': 'integer', 'default': 4}})),
], EnforcementLevel.ADVISORY)
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([STRICT], [STRICT], []),
        ([], [STRICT], []),
        ([PolicyRule("tags", "advisory", {})], [STRICT], []),
        (
            [STRICT],
            [PolicyRule("tags", "advisory", {})],
            [Weakened("tags", "lowered", "mandatory", "advisory")],
        ),
        (
            [STRICT],
            [PolicyRule("tags", "disabled", {})],
            [Weakened("tags", "lowered", "mandatory", "disabled")],
        ),
        (
            [PolicyRule("tags", "remediate", {})],
            [STRICT],
            [Weakened("tags", "lowered", "remediate", "mandatory")],
        ),
        (
            [STRICT, PolicyRule("x", "mandatory", {})],
            [STRICT],
            [Weakened("x", "removed", "mandatory", "no such policy")],
        ),
        ([STRICT, PolicyRule("x", "disabled", {})], [STRICT], []),
        ([STRICT], [], [Weakened("every policy", "removed", "1 policies", "no policy pack")]),
        (
            [PolicyRule("tags", "mandatory", {"most": {"default": 4}})],
            [PolicyRule("tags", "mandatory", {"most": {"default": 9}})],
            [Weakened("tags", "setting `most` changed", '{"default": 4}', '{"default": 9}')],
        ),
        (
            [STRICT],
            [PolicyRule("tags", "mandatory", {"most": {"default": 9}})],
            [Weakened("tags", "setting `most` changed", "(none)", '{"default": 9}')],
        ),
    ],
    ids=[
        "same",
        "new",
        "stricter",
        "advisory",
        "disabled",
        "not remediated",
        "removed",
        "removed but disabled",
        "no pack",
        "setting",
        "new setting",
    ],
)
def test_what_is_weaker(before: list[PolicyRule], after: list[PolicyRule], expected: list[Weakened]) -> None:
    assert weakened(before, after) == expected


def exceptions(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"config": {PLATFORM_KEY: {"exceptions": list(entries)}}}


ONE = {"policy": "tags", "resource": "runs", "reason": "because", "until": date(2027, 1, 1)}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (exceptions(ONE), exceptions(ONE), []),
        (exceptions(ONE), exceptions(ONE | {"until": "2027-01-01"}), []),
        (exceptions(ONE), exceptions(), []),
        (exceptions(ONE), exceptions(ONE | {"until": date(2026, 12, 1)}), []),
        (
            exceptions(),
            exceptions(ONE),
            [Weakened("tags", "exception added", "checked", "runs, until 2027-01-01")],
        ),
        (
            exceptions(ONE),
            exceptions(ONE, ONE | {"resource": "*"}),
            [Weakened("tags", "exception added", "checked", "every resource, until 2027-01-01")],
        ),
        (
            exceptions(ONE),
            exceptions(ONE | {"until": date(2028, 1, 1)}),
            [Weakened("tags", "exception lasts longer", "runs, until 2027-01-01", "runs, until 2028-01-01")],
        ),
        (
            exceptions(ONE),
            exceptions({key: value for key, value in ONE.items() if key != "until"}),
            [
                Weakened(
                    "tags", "exception has no end any more", "runs, until 2027-01-01", "runs, without end"
                )
            ],
        ),
        (exceptions(ONE | {"until": None}), exceptions(ONE), []),
        ({}, {"config": {PLATFORM_KEY: "not a mapping"}}, []),
    ],
    ids=[
        "same",
        "as text",
        "removed",
        "shorter",
        "added",
        "wider",
        "longer",
        "no end",
        "ends now",
        "no mapping",
    ],
)
def test_which_exceptions_are_weaker(
    before: dict[str, Any], after: dict[str, Any], expected: list[Weakened]
) -> None:
    assert weaker_exceptions(before, after) == expected


def pack(root: Path, text: str = PACK) -> Path:
    folder = root / "policies"
    folder.mkdir(parents=True)
    (folder / "PulumiPolicy.yaml").write_text("runtime: python\n")
    (folder / "__main__.py").write_text(text)
    return folder


def test_a_pack_is_read_with_its_levels_and_settings(tmp_path: Path) -> None:
    assert read_pack(pack(tmp_path), tmp_path, {}) == [
        PolicyRule("own-team", "mandatory", {}),
        PolicyRule("size", "mandatory", {"most": {"type": "integer", "default": 4}}),
    ]
    assert read_pack(None, tmp_path, {}) == []


def test_a_level_of_the_initial_configuration_counts(tmp_path: Path) -> None:
    text = PACK.replace(
        "EnforcementLevel.ADVISORY)",
        "EnforcementLevel.ADVISORY, initial_config={'size': {'enforcementLevel': 'advisory', 'most': 8},"
        " 'own-team': EnforcementLevel.DISABLED})",
    )
    own, size = read_pack(pack(tmp_path, text), tmp_path, {})
    assert own.level == "disabled"
    assert size.level == "advisory"
    assert size.settings["most (value)"] == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('no rules today')\n", "no rules today"),
        ("import missing_module_x\n", "missing_module_x"),
    ],
)
def test_a_pack_that_fails_says_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UnreadablePackError, match=message):
        read_pack(pack(tmp_path, text), tmp_path, {})


def test_this_projects_pack_is_read_at_the_level_of_the_environment() -> None:
    found = {
        environment: {
            rule.name: rule.level
            for rule in read_pack(
                ROOT / "policies", ROOT, {"config": {PLATFORM_KEY: {"environment": environment}}}
            )
        }
        for environment in ("prod", "dev")
    }
    assert {rule.name for rule in RULES if rule.checks} <= set(found["prod"])
    lowered = [name for name, level in found["prod"].items() if level != found["dev"][name]]
    assert lowered
    rows = [PolicyRule(name, level, {}) for name, level in found["prod"].items()]
    now = [PolicyRule(name, level, {}) for name, level in found["dev"].items()]
    assert [each.policy for each in weakened(rows, now)] == lowered


def test_a_digest_is_of_the_files_and_not_of_what_an_import_leaves(tmp_path: Path) -> None:
    folder = pack(tmp_path)
    before = digest(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert digest(folder) == before != ""
    (folder / "__main__.py").write_text(PACK + "# more\n")
    assert digest(folder) != before
    assert digest(None) == ""


@pytest.mark.deep
def test_a_removed_policy_is_listed_and_still_checks_the_head(repo: Repo, diff: Diffs) -> None:
    pack(repo.root)
    repo.commit()
    repo.replace(STACK, "team: ml", "team: vision")
    text = PACK.replace("EnforcementLevel.MANDATORY,\n", "EnforcementLevel.ADVISORY,\n")
    repo.write(
        "policies/__main__.py",
        "\n".join(line for line in text.splitlines() if "'own-team'" not in line),
    )
    done = diff("one", "--worktree", "--json")
    found = json.loads(done.stdout)
    assert found["policies"]["weakened"] == [
        {"policy": "own-team", "what": "removed", "before": "mandatory", "after": "no such policy"},
        {"policy": "size", "what": "lowered", "before": "mandatory", "after": "advisory"},
    ]
    (failing,) = found["policies"]["newly_failing"]
    assert (failing["policy"], failing["resource"]) == ("own-team", "runs")
    assert "Only the base's policies report it." in failing["message"]
    assert "2 policies are weaker" in found["blast_radius"]


@pytest.mark.deep
def test_an_exception_alone_is_a_change(repo: Repo, diff: Diffs, tmp_path: Path) -> None:
    repo.replace(
        STACK,
        "    tags:",
        "    exceptions:\n      - {policy: own-key-for-buckets, resource: runs, reason: a trial run only, until:"
        " 2027-01-01}\n    tags:",
    )
    page = tmp_path / "page.html"
    done = diff("one", "--worktree", "--format", "html", "--output", str(page))
    assert done.returncode == 2, done.stderr
    assert "exception added" in page.read_text()
    for form in ("table", "markdown"):
        done = diff("one", "--worktree", "--format", form)
        assert "Weakened policies" in done.stdout
        assert "exception added" in done.stdout
