"""A cloud is added by one folder and one registry row: its specs are validated, priced and built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("toy_cloud")
ROW = '    LOCAL = "local"\n'
NOT_NEEDED = (
    "__pycache__",
    "training",
    "rehearsal",
    "local_cluster",
    "recipes",
    "stacks",
    "pins",
    "policies",
)
SCRIPT = """
import json, sys
import pulumi
from pulumi.runtime import mocks
from trainfleet.errors import InputError
from trainfleet.infra.catalog.cost import bill
from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.json_schema import stack_schema
from trainfleet.infra.spec.load import load_stack, parse_spec

def mistakes(call):
    try:
        call()
    except InputError as error:
        return [[each.where.split()[-1], each.what, each.fix] for each in error.problems]
    return []

given = json.loads(sys.stdin.read())
answer = {"mistakes": {name: mistakes(lambda: parse_spec(data)) for name, data in given["wrong"].items()}}
answer["settings"] = mistakes(lambda: load_stack(given["stack"]))
answer["pulumi_is_loaded"] = "pulumi_kubernetes" in sys.modules
spec = parse_spec(given["spec"])
answer["bill"] = {part.name: [part.what, part.max_usd_per_hour] for part in bill(spec).parts}
schema = stack_schema()
answer["schema"] = [schema["$defs"]["Cloud"]["enum"], "toy:region" in schema["properties"]["config"]["properties"]]

class Mocks(mocks.Mocks):
    made = {}
    def new_resource(self, args):
        self.made[args.name] = args.typ
        return args.name, args.inputs
    def call(self, args):
        return {}

mocks.set_mocks(Mocks(), project="trainfleet", stack="toy-dev")
from trainfleet.infra.kubernetes import install
from trainfleet.infra.program import outputs

@pulumi.runtime.test
def build():
    platform = support(spec.cloud).builder()(spec)
    install(platform, spec)
    answer["outputs"] = {"cloud": outputs(platform, spec)["cloud"], "pools": outputs(platform, spec)["pools"]}

build()
answer["made"] = Mocks.made
print(json.dumps(answer, default=str))
"""
SPEC: dict[str, Any] = {
    "name": "demo",
    "cloud": "toy",
    "region": "playroom",
    "account": "shelf-1",
    "owner": "ml@example.com",
    "kubernetes": {"access": {"public_ranges": ["203.0.113.0/24"]}},
    "gpu_pools": [{"name": "l4", "accelerator": "L4", "max_nodes": 2, "capacity": "spot"}],
}
WRONG = {
    "region": {**SPEC, "region": "kitchen"},
    "account": {**SPEC, "account": "drawer"},
    "accelerator": {**SPEC, "gpu_pools": [{"name": "h", "accelerator": "H100"}]},
    "capacity": {**SPEC, "gpu_pools": [{"name": "l4", "accelerator": "L4", "capacity": "queued"}]},
    "kind": {**SPEC, "gpu_pools": [{"name": "l4", "accelerator": "L4", "kind": "hyperpod"}]},
}


def run(package: Path, stack: Path) -> subprocess.CompletedProcess[str]:
    given = {"spec": SPEC, "wrong": WRONG, "stack": str(stack)}
    environment = {**os.environ, "PYTHONPATH": str(package)}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=package,
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with the toy cloud's folder."""
    shutil.copytree(ROOT / "trainfleet", tmp_path / "trainfleet", ignore=shutil.ignore_patterns(*NOT_NEEDED))
    shutil.copytree(FOLDER, tmp_path / "trainfleet" / "infra" / "toy")
    (tmp_path / "Pulumi.toy.yaml").write_text(
        json.dumps(
            {"config": {"toy:region": "kitchen", "aws:region": "us-east-1", "trainfleet:platform": SPEC}}
        )
    )
    return tmp_path


def test_without_its_row_the_cloud_is_unknown(package: Path) -> None:
    assert "one of aws, gcp, azure, local" in run(package, package / "Pulumi.toy.yaml").stderr


def test_a_folder_and_a_row_add_a_cloud(package: Path) -> None:
    registry = package / "trainfleet" / "infra" / "clouds.py"
    text = registry.read_text(encoding="utf-8")
    assert text.count(ROW) == 1
    registry.write_text(text.replace(ROW, f'{ROW}    TOY = "toy"\n'), encoding="utf-8")
    done = run(package, package / "Pulumi.toy.yaml")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: [where for where, _, _ in each] for name, each in found["mistakes"].items()} == {
        "region": ["region"],
        "account": ["account"],
        "accelerator": ["gpu_pools[0].accelerator"],
        "capacity": ["gpu_pools[0].capacity"],
        "kind": ["gpu_pools[0].kind", "gpu_pools[0].accelerator"],
    }
    assert [where for where, _, _ in found["settings"]] == ["toy:region", "aws:region"]
    assert found["pulumi_is_loaded"] is False
    assert found["bill"] == {
        "system": ["toy-medium", 0.8],
        "l4": ["toy-gpu (spot)", 1.0],
        "control-plane": ["toy control plane", 0.25],
        "nat": ["toy gateway", 0.05],
        "address": ["toy address", 0.01],
    }
    assert found["schema"] == [["aws", "gcp", "azure", "local", "toy"], True]
    assert found["made"]["demo-bucket"] == "toy:index:Bucket"
    assert "demo-kuberay-operator" in found["made"]
    assert found["outputs"]["cloud"] == "toy"
    assert [pool["instance_type"] for pool in found["outputs"]["pools"]] == ["toy-gpu"]
