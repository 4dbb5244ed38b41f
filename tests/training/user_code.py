"""A user's workload in one file, for the tests of `--code`, and this process without it afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainfleet.training.runtime import code_archive

TEXT = (Path(__file__).parents[2] / "docs" / "add-a-workload.md").read_text(encoding="utf-8")
WITHOUT_TORCH = """
from typing import Literal
from trainfleet.training.workloads.base import Workload
from trainfleet.training.workloads.settings import WorkloadSettings

class Spirals(Workload):
    class Settings(WorkloadSettings):
        name: Literal["spirals:Spirals"]
        width: int = 32

    loss_unit = "nats/point"
    fingerprint = build_model = size = batch = num_targets = forward_loss = baseline = lambda self, *_: None
"""
"""A workload that can be imported in no time and cannot train."""

FEW_STEPS = (
    *("steps=6", "optimizer.warmup=1", "log.every=2", "validation.every=6", "checkpoint.every=6"),
    *("log.tensorboard=false", "checkpoint.metric=validation/loss", "checkpoint.mode=min"),
)
"""For the recipe of docs/add-a-workload.md."""


def tree(folder: Path, *names: str) -> Path:
    """A folder with these files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    return folder


def write_workload(
    folder: Path, unit: str = "nats/point", module: str = "spirals", source: str = WITHOUT_TORCH
) -> Path:
    """A workload and its recipe, which is returned; `unit` is an edit that shows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(source.replace("nats/point", unit).replace("spirals:", f"{module}:"))
    file = folder / f"{module}.yaml"
    recipe = (
        _block("yaml")
        .replace("spirals:", f"{module}:")
        .replace("validation/accuracy, mode: max", "validation/loss")
    )
    file.write_text(recipe.replace("name: spirals", f"name: {module}"))
    return file


def write_page(folder: Path, unit: str = "nats/point") -> Path:
    """The workload of docs/add-a-workload.md, which trains; `unit` is what run.json shows of an edit."""
    return write_workload(folder, unit, source=_block("python"))


def _block(language: str) -> str:
    return TEXT.split(f"```{language}\n")[1].partition("```")[0]


@pytest.fixture
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Restore the import path, and forget what was imported from the test's folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(code_archive, "_used", {})
    locks = list(code_archive._locks)
    monkeypatch.setattr(code_archive, "_locks", [])
    yield
    for lock in code_archive._locks:
        if lock not in locks:
            lock.close()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
