"""The command line with an object store as storage: a run finished on one machine is finished on another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.stores.running import Running
from trainfleet.errors import InputError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.stores import open_store


@pytest.mark.launch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
def test_a_run_in_a_bucket_is_complete_on_every_machine(
    store_server: Running,
    prefix: str,
    tmp_path: Path,
    text_folder: Path,
    cache: Path,
    trainfleet: Callable[..., CompletedProcess[str]],
) -> None:
    url = store_server.url(prefix)
    call = [
        "launch",
        "lm-tiny",
        f"workload.data.source={text_folder}",
        "workload.data.glob='**/*.txt'",
        "workload.data.validation_share=0.15",
    ]
    call += [
        "workload.data.test_share=0.15",
        "steps=6",
        "optimizer.warmup=1",
        "checkpoint.every=3",
        "scaling.workers=1",
    ]
    call += ["--on", "torchrun", "--storage", url, "--json"]
    for machine in ("here", "there"):
        (tmp_path / machine).mkdir()
        done = trainfleet(*call, cwd=tmp_path / machine, timeout=500, TRAINFLEET_CACHE=str(cache))
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert (document["status"], document["step"]) == ("finished", 6)
        assert document["checkpoint"] == f"{url}/lm-tiny/checkpoints/step-00000006"
    assert not (tmp_path / "there" / "runs" / "lm-tiny" / "launch.log").exists(), "the second machine trained"
    files = open_store(f"{url}/lm-tiny").sizes()
    assert {"run.json", "recipe.yaml", "metrics.jsonl", "report.html", "home.json"} <= files.keys()
    fresh = trainfleet(*call, "--fresh", cwd=tmp_path / "there", TRAINFLEET_CACHE=str(cache))
    assert fresh.returncode == 2
    assert "would overwrite a run" in fresh.stderr


@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
def test_a_folder_of_another_storage_is_refused(
    store_server: Running, prefix: str, tmp_path: Path, tiny: Callable[..., Recipe]
) -> None:
    first, second = (
        RunStorage(tiny(f"storage={store_server.url(prefix)}/{name}"), tmp_path, lambda *_: None)
        for name in ("a", "b")
    )
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    first.send()
    assert not first.fetch()
    with pytest.raises(InputError, match="belongs to a run with another storage"):
        second.fetch()
