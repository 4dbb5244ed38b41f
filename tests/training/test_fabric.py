"""The Lightning Fabric example has the losses of the step loop."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from tests.training.golden import GOLDEN, TOLERANCE, read, write_text
from trainfleet.training.workloads import make_workload


def test_a_fabric_script_has_the_golden_losses_of_the_recipe(tmp_path: Path, cache: Path) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "fabric_lm.py"))
    recipe = GOLDEN["lm-tiny"].load(write_text(tmp_path / "text"))
    assert example["train"](recipe, tmp_path, cache) == pytest.approx(read("lm-tiny"), rel=TOLERANCE)
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert weights.keys() == make_workload(recipe, cache).build_model().state_dict().keys()
