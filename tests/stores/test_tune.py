"""A search in an object store: killed on one machine, it resumes on another, which needs none of its files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stores.running import Running
from tests.training.launches import wait_for
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.stores import NotFoundError, Store, open_store
from trainfleet.training.stores.lease import LEASE

TUNE = {
    "trials": 2,
    "sampler": "random",
    "scheduler": "none",
    "space": {"optimizer.lr": {"choice": [1e-05, 3e-3]}},
}


def trials(home: Store) -> list[dict[str, Any]]:
    """The stored state of the search; nothing while it is replaced.

    pyarrow asks for the size of an object before its bytes, so it may cut one that is replaced in between.
    """
    try:
        return list(json.loads(home.read("trials.json"))["trials"])
    except (NotFoundError, json.JSONDecodeError):
        return []


@pytest.mark.launch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
@pytest.mark.deep
def test_a_search_in_a_bucket_resumes_on_another_machine(
    store_server: Running, prefix: str, tmp_path: Path, text_folder: Path, cache: Path
) -> None:
    url = store_server.url(prefix)
    home = open_store(f"{url}/night-tune")
    command = [
        *[sys.executable, "-m", "trainfleet", "tune", "lm-tiny", f"tune={json.dumps(TUNE)}"],
        *[f"workload.data.source={text_folder}", "workload.data.glob='**/*.txt'"],
        *["workload.data.validation_share=0.15", "workload.data.test_share=0.15", "scaling.workers=1"],
        *["steps=8", "optimizer.warmup=1", "validation.every=4", "checkpoint.every=4", "log.every=1"],
        *["--on", "torchrun", "--run", "night", "--storage", url, "--json"],
    ]

    def start(machine: str, *arguments: str) -> subprocess.Popen[str]:
        (tmp_path / machine).mkdir(exist_ok=True)
        environment = os.environ | {"TRAINFLEET_CACHE": str(cache), "NO_COLOR": "1"}
        return subprocess.Popen(
            [*command, *arguments],
            cwd=tmp_path / machine,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def second_trial() -> bool:
        assert first.poll() is None, first.communicate()
        return [each["status"] for each in trials(home)] == ["finished", "running"]

    first = start("here")
    try:
        wait_for(second_trial, "the second trial")
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert LEASE in home.entries()
    before = trials(home)
    second = start("there")
    out, err = second.communicate(timeout=280)
    assert second.returncode == 0, err
    document = json.loads(out)
    assert document["search"] == f"{url}/night-tune"
    after = sorted(document["trials"], key=lambda each: each["number"])
    assert [each["status"] for each in after] == ["finished", "finished"]
    assert after[0]["rows"] == before[0]["rows"]
    assert [each["values"] for each in after] == [each["values"] for each in before]
    assert not (tmp_path / "there" / "runs" / "night-trial-0000").exists(), "a finished trial starts nothing"
    files = home.sizes()
    for trial in ("night-trial-0000", "night-trial-0001"):
        assert f"trials/{trial}/checkpoints/step-00000008/COMMITTED" in files
    assert {"trials.json", "best.yaml", "report.html"} <= files.keys()
    assert LEASE not in home.entries()
    best = load_recipe(document["recipe"])
    assert best.optimizer.lr == document["best"]["values"]["optimizer.lr"]
    fresh = start("there", "--fresh")
    _, err = fresh.communicate(timeout=280)
    assert fresh.returncode == 2
    assert "--fresh would overwrite a search" in err
