"""The files of docs/lightning.md train as written, and the page's message and table are those of the code."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.training.workloads.lightning_stub import lightning
from trainfleet.errors import InputError
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads import make_workload
from trainfleet.training.workloads.lightning.unsupported import HOOKS, MEMBERS

TEXT = (Path(__file__).parents[3] / "docs" / "lightning.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the files of the page."""
    (tmp_path / "digits.py").write_text(block("python"))
    (tmp_path / "digits.yaml").write_text(block("yaml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(sys.modules, "lightning", lightning())
    yield tmp_path
    sys.modules.pop("digits", None)


def test_the_documented_module_trains(folder: Path, run: Callable[..., RunResult]) -> None:
    recipe = load_recipe("digits.yaml", ["scaling.workers=1", "log.tensorboard=false"])
    result = run(recipe, folder / "run")
    assert result.metrics["validation/val_acc"] > 0.9
    assert result.metrics["test/val_acc"] > 0.9
    found = load_run(str(folder / "run"), cache=folder / "cache")
    module = found.model.lightning_module.eval()  # type: ignore[union-attr]  # of the page
    images, labels = (torch.stack(each) for each in zip(*found.workload.make_dataset("test"), strict=True))  # type: ignore[attr-defined]  # of the page
    accuracy = (module(images).argmax(dim=-1) == labels).float().mean()
    assert float(accuracy) == pytest.approx(
        result.metrics["test/val_acc"], abs=0.02
    )  # of the best checkpoint


def test_the_documented_message_is_printed(folder: Path) -> None:
    text = (folder / "digits.py").read_text()
    hook = "    def on_train_epoch_end(self): ...\n\n    def configure_optimizers(self):"
    text = text.replace("    def configure_optimizers(self):", hook).replace(
        'optimizer = "recipe"', "rate = 1"
    )
    (folder / "digits.py").write_text(text)
    workload = make_workload(load_recipe("digits.yaml"), folder / "cache")
    with pytest.raises(InputError) as error:
        workload.build_model()
    summary, *problems = block("text").splitlines()
    assert (error.value.summary, [str(each) for each in error.value.problems]) == (summary, problems)


def test_the_names_in_the_table_are_those_that_are_rejected() -> None:
    table = TEXT.partition("## What is rejected")[2]
    named = set(re.findall(r"`(?:self\.)?(\w+)(?:\(\))?`", table.partition("| iterable datasets")[0]))
    known = {*HOOKS, *MEMBERS, "make_module", "make_dataset", "collate", "training_step"}
    assert named <= known
    assert {"trainer", "logger", "global_step", "current_epoch"} <= set(MEMBERS)
