"""Preparation with ray.data writes the bytes that one process writes, also if a worker of Ray is killed, and is
not used where Ray has no free CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainfleet.training.data.worker_pool import choose_via

UNDER_RAY = """
import json, os, sys
from pathlib import Path
from tests.training.data.test_preparation import contents, prepared
from tests.training.data.transforms import Bytes, Killed, Measured
from trainfleet.training.data.worker_pool import choose_via
from trainfleet.training.runtime.ray_cluster import connect
from trainfleet.training.recipe.schema import ScalingConfig

texts, folder, found = Path(sys.argv[1]), Path(sys.argv[2]), {}
with connect(ScalingConfig(workers=2), {}):
    import ray
    kinds = {
        "rows": {"transform": Measured()},
        "packed": {"transform": Bytes(), "pack": 8},
        "scattered": {"transform": Measured(), "scatter": 1},
    }
    for name, more in kinds.items():
        here, there = (prepared(texts, folder / f"{name}-{via}", via=via, **more) for via in ("here", "ray"))
        found[name] = contents(Path(here.where)) == contents(Path(there.where))
        stored = prepared(texts, folder / "none", via="ray", store=str(folder / "store"), **more)
        assert Path(stored.where).parent == folder / "store"
        found[f"{name} in a store"] = contents(Path(here.where)) == contents(Path(stored.where))
    here = contents(Path(prepared(texts, folder / "undisturbed", via="here").where))
    name = sorted(texts.rglob("*.txt"))[-1].name
    for where in ("cache", "store"):
        marks = folder / f"killed-{where}"
        marks.mkdir()
        killed = Killed(folder=str(marks), at=name, times=2, spared=os.getpid())
        store = {"store": str(folder / "store of killed")} if where == "store" else {}
        data = prepared(texts, folder / f"of-{where}", killed, via="ray", **store)
        found[f"killed, {where}"] = (contents(Path(data.where)) == here, len(list(marks.iterdir())))
    found["free"] = choose_via("auto", 10, 5, parallel_from=1)

    @ray.remote(num_cpus=2)
    class Worker:
        def here(self):
            return True

    worker = Worker.remote()
    ray.get(worker.here.remote())
    found["taken"] = choose_via("auto", 10, 5, parallel_from=1)
print(json.dumps(found))
"""


@pytest.mark.deep
@pytest.mark.launch
def test_ray_writes_the_same_bytes_and_is_used_only_with_a_free_cpu(texts: Path, tmp_path: Path) -> None:
    patient = {
        **os.environ,
        "RAY_raylet_start_wait_time_s": "120",
    }  # on a busy machine, Ray's default of 30 s is too short
    done = subprocess.run(
        [sys.executable, "-c", UNDER_RAY, str(texts), str(tmp_path)],
        env=patient,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "rows": True,
        "packed": True,
        "rows in a store": True,
        "packed in a store": True,
        "scattered": True,
        "scattered in a store": True,
        "killed, cache": [True, 2],
        "killed, store": [True, 2],
        "free": "ray",
        "taken": "processes",
    }


def test_a_small_data_set_is_prepared_in_this_process() -> None:
    assert choose_via("auto", 10, 5, parallel_from=11) == "here"
    assert choose_via("auto", 100, 1, parallel_from=11) == "here"
    assert choose_via("ray", 10, 5, parallel_from=11) == "ray"
