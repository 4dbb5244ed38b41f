"""The project of a rehearsal is the project of the spec: one lookup for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainfleet.errors import InputError
from trainfleet.infra.spec import stack_file
from trainfleet.rehearsal import project_lookup
from trainfleet.rehearsal.diff import two_sided_run
from trainfleet.rehearsal.steps import session


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "inside" / "deep").mkdir(parents=True)
    (tmp_path / "Pulumi.yaml").write_text("name: p\nruntime: python\n")
    for name in ("Pulumi.b.yaml", "Pulumi.a.yaml", "Pulumi..yaml", "Pulumi.yaml"):
        (tmp_path / "stacks" / name).write_text("config: {}\n")
    return tmp_path


def test_both_find_the_same_project_and_stacks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "inside" / "deep")
    assert project_lookup.project_root() == stack_file.project_root() == project
    assert project_lookup.stack_names() == stack_file.stack_names(project)
    assert {"a", "b"} <= set(project_lookup.stack_names())
    assert "" not in project_lookup.stack_names()


def test_a_place_without_a_project_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stack_file, "project_root", lambda: tmp_path)
    with pytest.raises(InputError, match="not in a Trainfleet project") as raised:
        project_lookup.project_root()
    assert raised.value.problems[0].where == str(tmp_path)


def test_a_project_without_stacks_is_not_replaced_by_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "Pulumi.yaml").write_text("name: shop\nruntime: python\n")
    monkeypatch.chdir(tmp_path / "src")
    assert project_lookup.any_project_root() == stack_file.project_root() == tmp_path
    with pytest.raises(InputError, match="not in a Trainfleet project"):
        project_lookup.project_root()


def test_a_project_below_another_is_the_current_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "inside" / "Pulumi.yaml").write_text("name: bootstrap\nruntime: python\n")
    monkeypatch.chdir(project / "inside" / "deep")
    assert project_lookup.any_project_root() == project / "inside"
    assert project_lookup.project_root() == project  # the nearest one with stacks


def test_a_diff_applies_the_base_as_a_rehearsal_applies() -> None:
    assert two_sided_run.APPLY is session.APPLY
