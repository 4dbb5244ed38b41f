"""What a rank and the driver import before the first step: nothing that the recipe does not use.

The tests name modules, not times: a start of a rank is nearly all imports.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainfleet.training import worker
from trainfleet.training.launch.sky import follow
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer import loop
from trainfleet.training.trainer.context import RunResult

UNUSED = (
    *(
        "transformers",
        "datasets",
        "peft",
        "tokenizers",
        "safetensors",
        "sklearn",
        "scipy.signal",
        "scipy.stats",
    ),
    *(
        "optuna",
        "mlflow",
        "wandb",
        "lightning",
        "tensorboard",
        "plotly",
        "matplotlib",
        "jinja2",
        "typer",
        "rich",
    ),
    *("botocore", "boto3", "azure", "google.auth", "google.cloud", "kubernetes", "sky", "pulumi", "IPython"),
    *("ray.tune", "ray.serve", "torch._dynamo", "torch._inductor", "torch.onnx", "torchvision", "torchaudio"),
)
RANK = "from trainfleet.training import worker\nfrom trainfleet.training.trainer import loop"
DRIVER = """
import ray.train.torch
from trainfleet.training import run
from trainfleet.training.runtime import ray_cluster, ray_events, ray_storage
"""
SCIPY = """
import scipy, torchmetrics
assert scipy.signal.windows.hamming(3)[1] == 1.0
from scipy.signal import convolve
from torchmetrics.functional.audio import permutation_invariant_training
"""


def loaded(code: str, names: tuple[str, ...], after: str = "") -> set[str]:
    """Those of the modules that Python has loaded after `code`, in a process that runs `after` then."""
    what = f"import json, sys\n{code}\nprint(json.dumps([n for n in {names!r} if n in sys.modules]))\n{after}"
    done = subprocess.run([sys.executable, "-c", what], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_a_rank_imports_what_it_needs_and_scipy_stays_usable() -> None:
    """torchmetrics imports transformers and scipy.signal, which no metric here needs; later, each is real."""
    assert loaded(RANK, (*UNUSED, "torch", "torchmetrics"), SCIPY) == {"torch", "torchmetrics"}


def test_the_driver_imports_neither_the_loop_nor_what_a_recipe_does_not_use() -> None:
    own = ("trainfleet.training.trainer.loop", "trainfleet.training.checkpoint", "torchmetrics", "sympy")
    assert loaded(DRIVER, (*UNUSED, *own, "torch")) == {"torch"}


COLLECTIONS = """
import gc
from trainfleet.training.runtime.imports import without_collections
collected = []
gc.callbacks.append(lambda phase, info: collected.append(info["generation"]) if phase == "start" else None)
with without_collections():
    with without_collections():  # another one inside
        kept = [[] for _ in range(200_000)]
    assert not gc.isenabled()
assert gc.isenabled() and not collected, collected
assert gc.get_freeze_count() > 200_000  # and later collections do not visit them
"""


def test_imports_are_free_of_collections_and_left_out_of_later_ones() -> None:
    assert loaded(COLLECTIONS, ("gc",)) == {"gc"}


def test_a_rank_collects_while_it_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: Callable[..., Recipe]
) -> None:
    """A collector that stayed off would fill the memory of a long run."""
    enabled: list[bool] = []

    def train(*_: object) -> Any:
        enabled.append(gc.isenabled())
        return RunResult("finished", 1, {}, {}, "", 0, tmp_path)

    monkeypatch.setattr(loop, "train", train)
    worker.work(tiny(), tmp_path, {})
    assert enabled == [True]


def test_skypilot_is_imported_without_garbage_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sky.py").write_text("import gc\nraise RuntimeError(f'collector: {gc.isenabled()}')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "sky"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(follow.SkySpec, "read", lambda _: SimpleNamespace(kept=False))
    monkeypatch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    with pytest.raises(RuntimeError, match="collector: False"):
        follow.main(["spec"])
    assert gc.isenabled()
