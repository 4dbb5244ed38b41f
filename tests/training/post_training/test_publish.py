"""Publishing: a run must pass its gates, the output is atomic, and an export is loaded and compared before it
is published with its provenance.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.publish.export import publish
from trainfleet.training.publish.gates import GateError, GateResult
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.workloads.vision.workload import Vision


def with_gates(**gates: Any) -> Recipe:
    """A recipe with these gates; `__` in a name means `/`."""
    by_metric = {name.replace("__", "/"): gate for name, gate in gates.items()}
    return load_recipe(
        "vision-small", [f"publish.gates={json.dumps(by_metric)}", "publish.require_test=false"]
    )


def test_a_published_model_equals_the_trained_one_and_records_its_provenance(pictures_copy: Path) -> None:
    done = publish(str(pictures_copy))
    trained = load_run(str(pictures_copy))
    assert done.folder == pictures_copy / "published"
    assert (done.check["weights"], done.check["losses"][0]) == ("equal", done.check["losses"][1])
    back = open_predictor(str(done.folder))
    for name, value in trained.model.state_dict().items():
        assert torch.equal(back.model.state_dict()[name], value), name
    document = json.loads((done.folder / "provenance.json").read_text())
    assert document["recipe"] == trained.recipe.model_dump(mode="json")
    assert document["checkpoint"]["step"] == trained.step
    assert document["data"]["fingerprint"] == trained.workload.fingerprint()
    manifest = (done.folder / "data-manifest.json").read_bytes()
    assert document["data"]["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert document["environment"]["packages"]["torch"]
    assert {each["metric"]: each["passed"] for each in document["gates"]} == {
        "test/accuracy": True,
        "validation/loss": True,
    }
    marker = json.loads((Path(trained.path) / "COMMITTED").read_text())
    assert document["checkpoint"]["files"] == marker["files"]
    card = (done.folder / "README.md").read_text()
    for name, value in done.metrics.items():
        assert f"| {name} | {value:.6g} |" in card


def test_all_failed_gates_are_reported_and_nothing_is_published(pictures_copy: Path) -> None:
    before = {path.name for path in pictures_copy.iterdir()}
    gates = with_gates(test__accuracy={"min": 1.1}, validation__loss={"max": 100}, test__loss={"max": 0.0})
    with pytest.raises(GateError) as caught:
        publish(str(pictures_copy), recipe=gates)
    assert [problem.where for problem in caught.value.problems] == ["test/accuracy", "test/loss"]
    assert caught.value.exit_code == 1
    assert {path.name for path in pictures_copy.iterdir()} - before == {"evaluations"}


@pytest.mark.parametrize(
    ("gate", "value", "passed"),
    [
        ({"min": 0.5, "max": None}, 0.5, True),
        ({"min": 0.5, "max": None}, 0.4999, False),
        ({"min": None, "max": 2.0}, 2.0, True),
        ({"min": 0.0, "max": 1.0}, 1.5, False),
        ({"min": None, "max": 2.0}, float("nan"), False),
        ({"min": None, "max": 2.0}, None, False),
    ],
)
def test_a_gate_passes_at_its_limit_and_fails_without_a_number(
    gate: dict[str, Any], value: float | None, passed: bool
) -> None:
    assert GateResult("m", **gate, value=value).passed is passed


def test_a_run_without_gates_is_rejected(run_copy: Path) -> None:
    with pytest.raises(InputError, match="has no publication gates"):
        publish(str(run_copy))


def test_an_export_that_differs_after_loading_is_not_published(
    pictures_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Vision.import_

    def import_changed(self: Vision, folder: Path) -> torch.nn.Module:
        model = original(self, folder)
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1e-3
        return model

    monkeypatch.setattr(Vision, "import_", import_changed)
    with pytest.raises(TrainfleetError, match="differs from the trained one"):
        publish(str(pictures_copy))
    assert not (pictures_copy / "published").exists()
    assert not list(pictures_copy.glob(".published*"))


def test_replace_overwrites_an_earlier_publication_and_no_other_folder(
    pictures_copy: Path, tmp_path: Path
) -> None:
    target = tmp_path / "models" / "digits"
    publish(str(pictures_copy), target)
    with pytest.raises(InputError, match="earlier publication"):
        publish(str(pictures_copy), target)
    (target / "old").write_text("")
    publish(str(pictures_copy), target, replace=True)
    assert not (target / "old").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a publication"):
        publish(str(pictures_copy), mine, replace=True)
    assert (mine / "thesis.txt").read_text() == "mine"
    assert sorted(path.name for path in target.parent.iterdir()) == ["digits"]


def test_gates_that_cannot_be_evaluated_are_rejected() -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(
            "vision-small",
            ["publish={gates: {test/acuracy: {min: 1}, test/loss: {}, validation/loss: {min: 2, max: 1}}}"],
        )
    assert [problem.where.rpartition(": ")[2] for problem in caught.value.problems] == [
        "publish.gates.test/acuracy",
        "publish.gates.test/loss",
        "publish.gates.validation/loss",
    ]
    with pytest.raises(InputError, match="no gate uses the test split"):
        load_recipe("vision-small", ["publish={gates: {validation/loss: {max: 1}}}"])
