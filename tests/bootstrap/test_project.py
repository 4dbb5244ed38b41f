"""The bootstrap is a Pulumi project below stacks/, and uses the code and the policies of the project around it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.bootstrap.specs import ROOT, STACKS
from trainfleet.rehearsal.diff.two_sided_run import Side
from trainfleet.rehearsal.diff.worktrees import Revision
from trainfleet.rehearsal.engine.sandbox import read_project


def test_a_diff_builds_each_side_with_the_code_and_policies_of_its_own_checkout(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "policies").mkdir(parents=True)
    shutil.copy(ROOT / "Pulumi.yaml", base)
    shutil.copy(ROOT / "policies" / "PulumiPolicy.yaml", base / "policies")
    shutil.copytree(STACKS, base / "stacks" / "bootstrap")
    for checkout in (base, ROOT):
        project = read_project(checkout / "stacks" / "bootstrap", "bootstrap-aws")
        side = Side("base", Revision("HEAD", "0" * 40, ""), project, {})
        assert project.checkout == checkout
        assert side.pack == checkout / "policies"


def test_another_program_has_no_project_around_it(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Pulumi.yaml", tmp_path)
    other = tmp_path / "examples" / "bootstrap"
    shutil.copytree(STACKS, other)
    assert read_project(other, "bootstrap-aws").checkout == other
