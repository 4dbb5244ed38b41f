"""The newest engine that its pins build: stacks live their whole life, and the second engine agrees with the first.

`pulumi up` uses the user's engine, which is newer than the pinned one. A bug of an engine is reported with its
version. Set TRAINFLEET_PULUMI to try another engine with all the other tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainfleet.rehearsal.engine.build import write_shims
from trainfleet.rehearsal.engine.find import Engine, version_of
from trainfleet.toolchain import ENGINE, build_lock, cache_folder, find_go, run_go

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3600)]
PINS = Path(__file__).with_name("newest_engine")
VERSION = "3.274.1"
STACKS = ("local", "aws-dev", "gcp-dev", "azure-dev")


@pytest.fixture(scope="module")
def newest() -> Path:
    """The newest engine, built once into the user's cache."""
    pins = hashlib.sha256((PINS / "go.sum").read_bytes()).hexdigest()[:16]
    folder = cache_folder() / f"newest-engine-{pins}"
    target = folder / "pulumi"
    folder.mkdir(parents=True, exist_ok=True)
    with build_lock(folder.with_suffix(".lock"), lambda _: None):
        if not target.exists():
            flags = f"-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version={VERSION}"
            part = target.with_suffix(".part")
            go = str(find_go(lambda _: None))
            run_go(
                [go, "build", "-trimpath", "-ldflags", flags, "-o", str(part), f"{ENGINE}/cmd/pulumi"],
                PINS,
                print,
            )
            write_shims(folder)
            part.rename(target)
    assert version_of(target) == VERSION
    return target


def trainfleet(engine: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainfleet", *arguments],
        cwd=cwd,
        env=os.environ | {"TRAINFLEET_PULUMI": str(engine)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_lives_its_whole_life(stack: str, newest: Path, root: Path) -> None:
    done = trainfleet(newest, "rehearse", stack, "--policy-pack", "policies", "--json", cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["engine"] == VERSION


def test_both_engines_plan_the_same(newest: Path, engine: Engine, root: Path, tmp_path: Path) -> None:
    planned = []
    for each in (engine.path, newest):
        file = tmp_path / f"{len(planned)}.jsonl"
        done = trainfleet(
            each, "rehearse", "aws-prod", "--until", "preview", "--resources", str(file), cwd=root
        )
        assert done.returncode == 0, done.stderr
        planned.append(sorted(json.loads(line)["urn"] for line in file.read_text().splitlines()))
    assert planned[0] == planned[1]
