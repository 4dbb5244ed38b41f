"""The benchmark of input engines builds the same batches with each, and compares rounds with each other."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import input_engines
from trainfleet.training.workloads import make_workload

SMALL = 60


def test_a_sample_is_drawn_by_its_index_and_threads_build_what_the_loop_builds(tmp_path: Path) -> None:
    if importlib.util.find_spec("espeakng_loader") is None:
        pytest.skip("no espeak-ng")
    recipe = input_engines.recipe_for("loop", 2, SMALL)
    workload = make_workload(recipe, tmp_path)
    first, again = workload.batch("train", [3, 1, 4]), workload.batch("train", [4])
    count = int(again["count"][0])
    assert first["frames"].shape[2] == input_engines.MELS
    assert torch.equal(first["frames"][2, :count], again["frames"][0, :count])
    assert int((again["frames"][0, :count] == 0).any(dim=1).sum()) > 0, "masked"
    found = {
        engine: input_engines.steps(input_engines.recipe_for(engine, 2, SMALL), workload, tmp_path, 2, 0.0)
        for engine in ("loop", "threads")
    }
    assert found["loop"][2] == found["threads"][2]
    assert [len(each) for each in found["threads"][:2]] == [2, 2]


def test_a_speedup_is_to_the_loop_of_the_same_round() -> None:
    sides = {
        "loop": [(2.0, 0.5), (6.0, 0.5), (4.0, 0.5)],
        "threads": [(1.0, 0.1), (2.0, 0.1), (4.0, 0.1)],
        "ray": [(4.0, 0.0), (3.0, 0.0), (2.0, 0.0)],
    }
    assert input_engines.speedups(sides) == {
        "threads": {"median": 2.0, "least": 1.0, "most": 3.0},
        "ray": {"median": 2.0, "least": 0.5, "most": 2.0},
    }


@pytest.mark.deep
@pytest.mark.launch
def test_its_smoke_form_compares_all_engines() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.input_engines", "--smoke", "--json"],
        env={**os.environ, "RAY_raylet_start_wait_time_s": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["speedup"]["with a step"]) == {"threads", "ray"}
