"""What docs/training.md says about the pinned memory of a snapshot, for the recipes of language models."""

from __future__ import annotations

import re

import pytest
import torch

from tests.conftest import ROOT
from trainfleet.training.checkpoint.host_buffers import packed
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.workloads.lm.gpt import Gpt
from trainfleet.training.workloads.lm.settings import LmSettings

PAGE = (ROOT / "docs" / "training.md").read_text()
(TEXT,) = re.findall("^- On GPUs, a snapshot is in pinned memory.*", PAGE, re.MULTILINE)
VOCABULARY = 50_304
PER_PARAMETER = 3
"""A weight and AdamW's two moments, each of 4 bytes."""


@pytest.mark.parametrize("name", ["lm-124m", "lm-1b"])
def test_the_documented_sizes_are_those_of_the_allocations(name: str) -> None:
    settings = load_recipe(name).workload
    assert isinstance(settings, LmSettings)
    with torch.device("meta"):
        model = Gpt(settings.model, VOCABULARY)
    sizes = [4 * each.numel() for each in model.parameters() for _ in range(PER_PARAMETER)]
    allocated, _ = packed(sizes)
    assert f"{sum(allocated) / 1e9:.1f} GB for `{name}`" in TEXT
    assert sum(allocated) < 1.02 * sum(sizes)
