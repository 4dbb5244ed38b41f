"""A user's own workload: the files of docs/add-a-workload.md run as written; invalid names; entry points."""

from __future__ import annotations

import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from trainfleet.errors import InputError
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.recipe.load import dump, load_recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads import make_workload, settings

TEXT = (Path(__file__).parents[3] / "docs" / "add-a-workload.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


INFERENCE = next(each for each in blocks("python") if "def for_inference" in each)
"""The methods with which the documented workload predicts without its data."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the files of the page."""
    (tmp_path / "spirals.py").write_text(blocks("python")[0])
    (tmp_path / "spirals.yaml").write_text(blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings._entry_points.cache_clear()
    yield tmp_path
    settings._entry_points.cache_clear()
    for name in ("spirals", "other"):
        sys.modules.pop(name, None)


def test_the_documented_workload_trains_and_beats_its_baseline(
    folder: Path, run: Callable[..., RunResult]
) -> None:
    recipe = load_recipe("spirals.yaml", ["scaling.workers=1", "log.tensorboard=false"])
    result = run(recipe, folder / "run")
    assert result.metrics["test/accuracy"] > 0.95
    assert result.baseline["line_accuracy"] < 0.75


def test_the_documented_workload_predicts_without_its_data(
    folder: Path, run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (folder / "spirals.py").read_text() + textwrap.indent(INFERENCE, "    ")
    (folder / "spirals.py").write_text(text)
    run(
        load_recipe("spirals.yaml", ["scaling.workers=1", "steps=100", "log.tensorboard=false"]),
        folder / "run",
    )
    found = load_run(str(folder / "run"))
    points = [[0.1, 0.3], [-0.4, 0.2], [0.7, -0.1]]
    with torch.no_grad():
        expected = found.model(torch.tensor(points)).argmax(dim=-1).tolist()

    def without_data(*_: object) -> None:
        raise AssertionError("the constructor prepares the data")

    monkeypatch.setattr(sys.modules["spirals"].Spirals, "__init__", without_data)
    answers = open_predictor(str(folder / "run"))([{"point": each} for each in points])
    assert answers == [{"spiral": ["left", "right"][each]} for each in expected]


def test_a_workload_without_the_hook_predicts_with_its_data(
    folder: Path, run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = INFERENCE.replace("def for_inference", "def _unused").replace("self.names[each]", "each")
    (folder / "spirals.py").write_text((folder / "spirals.py").read_text() + textwrap.indent(methods, "    "))
    run(
        load_recipe("spirals.yaml", ["scaling.workers=1", "steps=10", "log.tensorboard=false"]),
        folder / "run",
    )
    assert open_predictor(str(folder / "run"))([{"point": [0.1, 0.3]}])[0]["spiral"] in (0, 1)


def test_a_dumped_recipe_of_a_user_workload_loads_unchanged(folder: Path) -> None:
    recipe = load_recipe("spirals.yaml", ["workload.turns=2"])
    (folder / "again.yaml").write_text(dump(recipe))
    assert load_recipe("again.yaml") == recipe
    assert recipe.model_dump(mode="json")["workload"] == {
        "name": "spirals:Spirals",
        "width": 48,
        "points": 3000,
        "turns": 2.0,
    }


def test_the_documented_error_messages_are_printed(folder: Path) -> None:
    command, *expected = next(each for each in blocks("console") if each.startswith("$")).splitlines()
    with pytest.raises(InputError) as caught:
        load_recipe("spirals.yaml", command.split()[4:])
    assert {str(problem).partition(": ")[2] for problem in caught.value.problems} == set(expected)


def test_the_rules_and_metrics_of_a_user_workload_are_used(folder: Path) -> None:
    with pytest.raises(
        InputError, match=r"workload\.points: 100 points do not show 5\.0 turns \(at least 500\)"
    ):
        load_recipe("spirals.yaml", ["workload.points=100", "workload.turns=5"])
    with pytest.raises(InputError, match=r"validation/acuracy(.|\n)*validation/accuracy"):
        load_recipe("spirals.yaml", ["checkpoint.metric=validation/acuracy"])


def test_an_undeclared_batch_ends_the_run_with_the_documented_message(
    folder: Path, run: Callable[..., RunResult]
) -> None:
    text = (folder / "spirals.py").read_text()
    (folder / "spirals.py").write_text(
        text.replace('"points": ("float32", (2,))', '"points": ("float64", (2,))')
    )
    summary, problem = blocks("text")[0].splitlines()
    with pytest.raises(InputError) as caught:
        run(
            load_recipe("spirals.yaml", ["batch.global_batch=1", "batch.micro_batch=1", "scaling.workers=1"]),
            folder / "run",
        )
    assert caught.value.summary == summary
    assert [str(each) for each in caught.value.problems] == [problem]


def test_a_package_provides_a_workload_by_an_entry_point(folder: Path) -> None:
    text = (folder / "spirals.py").read_text()
    (folder / "spirals.py").write_text(text.replace('Literal["spirals:Spirals"]', 'Literal["spirals"]'))
    package = folder / "spirals-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: spirals\nVersion: 1.0\n")
    section = (
        blocks("toml")[0]
        .replace('[project.entry-points."trainfleet.workloads"]', "[trainfleet.workloads]")
        .replace('"', "")
    )
    (package / "entry_points.txt").write_text(section)
    sys.path.append(str(folder))
    (folder / "named.yaml").write_text(
        (folder / "spirals.yaml").read_text().replace('"spirals:Spirals"', "spirals")
    )
    assert "spirals" in settings.names()
    recipe = load_recipe("named.yaml")
    assert recipe.workload.name == "spirals"
    assert settings.workload_of("spirals").__name__ == "Spirals"


NO_WORKLOADS = [
    ("nowhere:Spirals", "`nowhere:Spirals` cannot be imported: No module named 'nowhere'"),
    ("spirals:Spiral", "`spirals` has no class `Spiral` (did you mean `Spirals`?)"),
    ("spirals:", "`spirals` has no class ``"),
    ("spi rals:Spirals", "`spi rals` is not a valid module name"),
    ("other:Plain", "`other:Plain` has no class `Settings`"),
    ("other:Broken", "`other:Broken` has no class `Settings`"),
    (
        "visoin",
        "`visoin` is not a built-in workload, a workload of an installed package, or a module:Class (did you mean `vision`?)",
    ),
]


@pytest.mark.parametrize(("name", "message"), NO_WORKLOADS)
def test_an_invalid_workload_name_is_one_clear_error(folder: Path, name: str, message: str) -> None:
    (folder / "other.py").write_text("class Plain: ...\nclass Broken:\n    Settings = 3\n")
    with pytest.raises(InputError) as caught:
        load_recipe("spirals.yaml", [f"workload={{name: '{name}'}}"])
    assert len(caught.value.problems) == 1
    assert message in str(caught.value)
    assert "workload.name" in caught.value.problems[0].where


FAILING = [
    (
        "import nowhere.inner\n",
        "other.py:1: importing `other` failed: No module named 'nowhere' (install it here",
    ),
    ("from math import nothing\n", "other.py:1: importing `other` failed: cannot import name 'nothing'"),
    ("x = 1\n1 / 0\n", "other.py:2: importing `other` failed: ZeroDivisionError: division by zero"),
    ("class Spirals:\n    def\n", "other.py:2: importing `other` failed: SyntaxError: invalid syntax"),
    ("def f():\n    raise KeyError('a')\n\nf()\n", "other.py:2: importing `other` failed: KeyError: 'a'"),
]


@pytest.mark.parametrize(("text", "message"), FAILING)
def test_a_module_that_fails_is_reported_at_its_line(folder: Path, text: str, message: str) -> None:
    (folder / "other.py").write_text(text)
    with pytest.raises(InputError) as caught:
        load_recipe("spirals.yaml", ["workload={name: 'other:Spirals'}"])
    assert len(caught.value.problems) == 1
    assert message in str(caught.value)


MISSPELLED = [
    ("def collections(self", "def colections(self", "`Spirals.colections` is not a hook.*`collections`"),
    ("def size(self", "def sizes(self", "`Spirals.sizes` is not a hook.*`size`"),
    ("def baseline(self", "def straight_line(self", "`Spirals` has no method `baseline`"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), MISSPELLED)
def test_a_misspelled_or_missing_hook_is_reported_by_name(
    folder: Path, right: str, wrong: str, message: str
) -> None:
    text = (folder / "spirals.py").read_text()
    (folder / "spirals.py").write_text(text.replace(right, wrong))
    with pytest.raises(InputError, match=message):
        load_recipe("spirals.yaml")


def test_other_public_methods_are_allowed(folder: Path) -> None:
    text = (folder / "spirals.py").read_text()
    (folder / "spirals.py").write_text(f"{text}\n    def prediction(self): ...\n    def batches(self): ...\n")
    assert load_recipe("spirals.yaml").workload.name == "spirals:Spirals"


OLD_NAMES = """
from trainfleet.training.workloads import Outcome
from trainfleet.training.workloads.settings import WorkloadSettings

class Old:
    class Settings(WorkloadSettings):
        figures = ("accuracy",)
    def __init__(self, settings, cache):
        self.describe = "nats/sample"
    def fingerprint(self): ...
    def build_model(self): ...
    def size(self, split): ...
    def batch(self, split, indices): ...
    def weight(self, split, indices): return 2.0
    def outcome(self, model, batch): return Outcome(1.5, 3, seen={"accuracy": (1, 2)})
    def baseline(self, indices): ...
    def expect(self, split, indices): self.expected = indices
    def facts(self): return {"data": {}}
"""


def test_the_names_of_the_previous_release_work_with_a_warning(folder: Path) -> None:
    text = OLD_NAMES.replace("figures =", "figures: __import__('typing').ClassVar =")
    (folder / "other.py").write_text(text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recipe = load_recipe("spirals.yaml", ["workload={name: 'other:Old'}"])
        workload = make_workload(recipe, folder)
        output = workload.forward_loss(lambda: None, {})
    assert {new for new in NEW_NAMES if any(f"`{new}`" in str(each.message) for each in caught)} == NEW_NAMES
    assert recipe.workload.metric_names == ("accuracy",)
    assert (output.loss, output.num_targets, output.metric_inputs) == (1.5, 3, {"accuracy": (1, 2)})
    assert (workload.num_targets("train", [1]), workload.data_info()) == (2.0, {"data": {}})
    assert workload.loss_unit == "nats/sample"
    workload.prefetch("train", [7])
    assert workload.expected == [7]


NEW_NAMES = {"forward_loss", "num_targets", "loss_unit", "prefetch", "data_info", "metric_names"}
