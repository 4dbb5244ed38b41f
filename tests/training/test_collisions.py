"""The installed wheel in a repository with packages of the same names as Trainfleet's folders.

The user's workload imports its own `training`, `infra`, `policies`, `stacks`, `tools` and `recipes`. Every
command and every process that it starts must find both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

NAMES = ("training", "infra", "policies", "stacks", "tools", "recipes")
WORKLOAD = """
import torch
import torch.nn.functional as F
from typing import Literal

import infra, policies, recipes, stacks, tools, training
from training.model import WIDTH
from trainfleet.training.workloads import StepOutput, Workload
from trainfleet.training.workloads.settings import WorkloadSettings

assert all(each.OWNER == "user" for each in (infra, policies, recipes, stacks, tools, training))


class Line(Workload):
    class Settings(WorkloadSettings):
        name: Literal["line:Line"]

    loss_unit = "nats"
    sample_tokens = 0
    flops_per_token = 0.0

    def __init__(self, settings, cache):
        points = torch.arange(-32, 32, dtype=torch.float32)[:, None] / 32
        self.data = {"points": points, "side": (points[:, 0] > 0).long()}

    def fingerprint(self):
        return "line"

    def build_model(self):
        return torch.nn.Sequential(torch.nn.Linear(1, WIDTH), torch.nn.SiLU(), torch.nn.Linear(WIDTH, 2))

    def size(self, split):
        return 64

    def batch(self, split, indices):
        return {name: values[list(indices)] for name, values in self.data.items()}

    def num_targets(self, split, indices):
        return float(len(indices))

    def forward_loss(self, model, batch):
        return StepOutput(F.cross_entropy(model(batch["points"]), batch["side"], reduction="sum"), len(batch["side"]))

    def baseline(self, indices):
        return {}

    def read(self, rows):
        return {"points": torch.tensor([[float(row["text"])] for row in rows])}

    def predict(self, model, batch, **settings):
        return [{"side": int(side)} for side in model(batch["points"]).argmax(1)]
"""
RECIPE = """
name: line
workload: {name: "line:Line"}
optimizer: {lr: 1.0e-2, warmup: 1}
batch: {global_batch: 16, micro_batch: 16}
steps: 4
validation: {every: 4}
checkpoint: {every: 4}
log: {every: 1, tensorboard: false}
scaling: {workers: 1}
"""
STACK = """
config:
  aws:region: us-east-2
  trainfleet:platform: {name: mine, cloud: aws, region: us-east-2, owner: me@example.com,
    kubernetes: {access: {public_ranges: [203.0.113.0/24]}}}
"""


@pytest.fixture(scope="module")
def python(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; its dependencies are those of this one, without the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, root]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(folder / "venv", with_pip=False)
    site = folder / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's git repository with a platform, a workload and a package for each name of Trainfleet's folders."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('OWNER = "user"\n')
    (tmp_path / "training" / "model.py").write_text("WIDTH = 8\n")
    (tmp_path / "line.py").write_text(WORKLOAD)
    (tmp_path / "line.yaml").write_text(RECIPE)
    (tmp_path / "Pulumi.yaml").write_text(
        "name: mine\nmain: stacks\nstackConfigDir: stacks\nruntime: python\n"
    )
    (tmp_path / "stacks" / "__main__.py").write_text("from trainfleet.infra.program import run\n\nrun()\n")
    (tmp_path / "stacks" / "Pulumi.mine.yaml").write_text(STACK)
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["-c", "user.name=u", "-c", "user.email=u@e", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def call(python: Path, repository: Path) -> Callable[..., str]:
    """Run a command of the installed wheel in the repository; it must end with one of `codes`."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"NO_COLOR": "1"}
    environment["TRAINFLEET_CACHE"] = str(repository / ".cache")

    def run(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        command = [python, "-m", "trainfleet", *arguments]
        done = subprocess.run(
            command, cwd=repository, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode in codes, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def test_the_wheel_is_what_runs(python: Path, repository: Path) -> None:
    show = "import trainfleet.training.run as run; print(run.__file__)"
    done = subprocess.run([python, "-c", show], cwd=repository, capture_output=True, text=True, check=True)
    assert str(python.parents[1]) in done.stdout


@pytest.mark.deep
def test_a_stack_of_the_repository_is_rehearsed_and_compared(
    call: Callable[..., str], repository: Path
) -> None:
    call("rehearse", "mine", "--until", "preview")
    stack = repository / "stacks" / "Pulumi.mine.yaml"
    stack.write_text(stack.read_text().replace("me@example.com", "you@example.com"))
    found = json.loads(call("diff", "mine", "--worktree", "--json", codes=(2, 3)))
    assert found["changes"], found["counts"]


@pytest.mark.launch
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command", [("launch", "line.yaml", "--on", "torchrun"), ("train", "line.yaml")], ids=" ".join
)
@pytest.mark.deep
def test_a_workload_that_imports_its_own_packages_trains(
    call: Callable[..., str], repository: Path, command: tuple[str, ...]
) -> None:
    call(*command)
    assert json.loads((repository / "runs" / "line" / "run.json").read_text())["status"] == "finished"
    (repository / "rows.txt").write_text("-0.5\n0.5\n")
    call("predict", "runs/line", "rows.txt", "--output", "answers")
    lines = (repository / "answers" / "part-000000.jsonl").read_text().splitlines()
    assert [set(json.loads(line)["prediction"]) for line in lines] == [{"side"}, {"side"}]
