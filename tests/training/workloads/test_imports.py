"""Checking a recipe does not import torch, and training without a pretrained model does not import
transformers.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

CASES = [
    (
        "from trainfleet.training.recipe.load import known_recipes, load_recipe\nfor name in known_recipes(): load_recipe(name)",
        ("torch", "transformers", "sklearn"),
    ),
    (
        "import trainfleet.training.trainer.loop, trainfleet.training.workloads.lm.workload",
        ("transformers", "datasets", "peft", "sklearn"),
    ),
    (
        "import trainfleet.training.workloads.speech.workload as s, trainfleet.training.trainer.loop\nfrom trainfleet.training.workloads.speech.settings import SpeechSettings\n"
        "s.Speech.collections(None, 'validation')",
        ("transformers", "datasets", "peft", "sklearn"),
    ),
    (
        "import trainfleet.training.workloads.vision.workload as v\nfrom types import SimpleNamespace\nv.Vision.collections(SimpleNamespace(classes='ab'), 'test')",
        ("transformers", "datasets", "sklearn"),
    ),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("code", "absent"), CASES)
def test_heavy_packages_are_imported_only_where_they_are_used(code: str, absent: tuple[str, ...]) -> None:
    show = f"{code}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
