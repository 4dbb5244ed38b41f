"""What docs/training.md says about the pinned memory of a snapshot: its size for the recipes of language models,
and a setting of torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from tests.conftest import ROOT
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.workloads.lm.gpt import Gpt
from trainfleet.training.workloads.lm.settings import LmSettings

PAGE = (ROOT / "docs" / "training.md").read_text()
(TEXT,) = re.findall("^- On GPUs, a snapshot is in pinned memory.*", PAGE, re.MULTILINE)
VOCABULARY = 50_304
PER_PARAMETER = 3
"""A weight and AdamW's two moments, each of 4 bytes."""


@pytest.mark.parametrize("name", ["lm-124m", "lm-1b"])
def test_the_documented_sizes_are_those_of_a_buffer_per_tensor(name: str) -> None:
    settings = load_recipe(name).workload
    assert isinstance(settings, LmSettings)
    with torch.device("meta"):
        model = Gpt(settings.model, VOCABULARY)
    sizes = [4 * each.numel() for each in model.parameters() for _ in range(PER_PARAMETER)]
    rounded = [1 << (each - 1).bit_length() for each in sizes]  # c10::llvm::PowerOf2Ceil
    assert f"{sum(rounded) / 1e9:.1f} GB for {sum(sizes) / 1e9:.1f} GB of `{name}`" in TEXT


def test_torch_knows_the_documented_setting() -> None:
    (setting,) = re.findall(r"`PYTORCH_ALLOC_CONF=(\S+)`", TEXT)
    shown = "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": setting}
    found = subprocess.run(
        [sys.executable, "-c", shown],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.stdout.strip() == setting, found.stderr  # torch refuses a key that it does not know
