"""What rehearsal tests share: the engine (found or built once), a way to write small programs, and one
rehearsal of one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainfleet.rehearsal.engine.find import Engine, find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse
from trainfleet.rehearsal.report import Report, Step

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The Pulumi engine that every command would use here."""
    return find_engine()


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Write a Pulumi program of a few lines; returns its folder."""

    def write(code: str) -> Path:
        folder = tmp_path / "program"
        folder.mkdir()
        (folder / "Pulumi.yaml").write_text("name: tiny\nruntime: python\n")
        (folder / "__main__.py").write_text(
            f"import pulumi\nimport pulumi_aws as aws\nimport pulumi_kubernetes as k8s\n{code}\n"
        )
        return folder

    return write


@dataclass(frozen=True)
class Rehearsed:
    """A finished rehearsal of programs/small, with the files it left."""

    report: Report
    folder: Path
    resources: Path
    outputs: Path

    def step(self, name: str) -> Step:
        return next(step for step in self.report.steps if step.name == name)


@pytest.fixture(scope="session")
def small(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """programs/small, rehearsed from the first preview to the last delete."""
    folder = tmp_path_factory.mktemp("small")
    options = RehearsalOptions(
        keep=folder / "kept", resources=folder / "resources.jsonl", outputs=folder / "outputs.json"
    )
    report = rehearse(read_project(PROGRAMS / "small"), engine, options)
    assert report.ok, report.problems
    return Rehearsed(report, Path(report.kept), folder / "resources.jsonl", folder / "outputs.json")
