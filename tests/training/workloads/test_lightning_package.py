"""The files of docs/lightning.md with the package `lightning`, which no extra installs: installed into a folder, it
trains, resumes and is checked for hooks like the stub of the other tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.training.training_runs import rows_of
from tests.training.workloads.test_lightning_page import block

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]
SCRIPT = """
import json
from pathlib import Path

import lightning
from digits import Digits, LitDigits
from lightning.pytorch.core import hooks

from tests.training.training_runs import StopAfter
from trainfleet.errors import InputError
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.loop import train
from trainfleet.training.workloads import make_workload
from trainfleet.training.workloads.lightning.unsupported import HOOKS, MEMBERS

short = ["steps=12", "validation.every=4", "checkpoint.every=4", "log.every=1", "log.tensorboard=false"]
recipe, cache = load_recipe("digits.yaml", ["scaling.workers=1", *short]), Path("cache")
train(recipe, RunContext(Path("whole"), cache=cache))
train(recipe, RunContext(Path("parts"), cache=cache, should_stop=StopAfter(5)))
resumed = train(recipe, RunContext(Path("parts"), cache=cache))


class Hooked(LitDigits):
    def on_train_epoch_end(self): ...


Digits.make_module = lambda self: Hooked(8)
try:
    make_workload(recipe, cache).build_model()
except InputError as error:
    rejected = str(error)
print(json.dumps({
    "from": lightning.__file__,
    "bases": [f"{each.__module__}.{each.__name__}" for each in LitDigits.__mro__],
    "unknown": [name for name in MEMBERS if not hasattr(lightning.LightningModule, name)],
    "not rejected": [
        name
        for each in (hooks.ModelHooks, hooks.DataHooks, hooks.CheckpointHooks)
        for name in vars(each)
        if not name.startswith("_") and name not in HOOKS and "predict" not in name
    ],
    "resumed_from": resumed.resumed_from,
    "accuracy": resumed.metrics["validation/val_acc"],
    "rejected": rejected,
}))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `lightning`, in the version of lightning-fabric; torch and the rest are installed."""
    folder = tmp_path_factory.mktemp("lightning")
    uv, release = Path(sys.executable).with_name("uv"), version("lightning-fabric")
    packages = [f"lightning=={release}", f"pytorch-lightning=={release}"]
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", folder, "--no-deps"]
    subprocess.run([*command, *packages], check=True, capture_output=True, timeout=300)
    return folder


def test_the_documented_example_trains_and_resumes_with_lightning(package: Path, tmp_path: Path) -> None:
    (tmp_path / "digits.py").write_text(block("python"))
    (tmp_path / "digits.yaml").write_text(block("yaml"))
    path = os.pathsep.join([str(tmp_path), str(package), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["from"]).is_relative_to(package)
    assert "lightning.pytorch.core.module.LightningModule" in found["bases"]
    assert found["unknown"] == found["not rejected"] == []
    assert found["resumed_from"] == 5
    assert found["accuracy"] > 0.5
    assert "Hooked.on_train_epoch_end: the step loop does not call this hook" in found["rejected"]
    whole, parts = (
        [row for row in rows_of(tmp_path / name) if row["kind"] != "event"] for name in ("whole", "parts")
    )
    for name in ("loss", "train_acc", "grad_norm", "validation/loss", "validation/val_acc", "test/loss"):
        values = [[row[name] for row in rows if name in row] for rows in (whole, parts)]
        assert values[0]
        assert values[0] == values[1], name
