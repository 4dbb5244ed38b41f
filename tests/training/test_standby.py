"""A restart under Ray is given a process that has imported already; one test with a real Ray, the rest of its
parts.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.training.launches import Launched, Launcher, wait_for
from trainfleet.training.recipe.schema import ScalingConfig
from trainfleet.training.runtime import prestart, ray_cluster
from trainfleet.training.runtime.events import EventSink
from trainfleet.training.runtime.ray_cluster import RayCluster
from trainfleet.training.worker import context_for

UNTOUCHED = """
import torch
def touched(*_):
    raise SystemExit("a GPU was looked for: " + __import__("traceback").format_exc())
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    if hasattr(torch._C, name):
        setattr(torch._C, name, touched)
from trainfleet.training.runtime.prestart import import_ahead
import_ahead()
import sys
assert "trainfleet.training.trainer.loop" in sys.modules and not torch.cuda.is_initialized()
print("untouched", end="")
"""


@pytest.fixture
def launcher(tmp_path: Path, text_folder: Path, cache: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path, text_folder, cache)
    yield made
    made.end()


def titled(launched: Launched, title: str) -> dict[int, psutil.Process]:
    """Processes below the launch that Ray has given a title that starts so, and that have loaded torch."""
    found = {}
    for process in psutil.Process(launched.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if (
                process.cmdline()[:1]
                and process.cmdline()[0].startswith(title)
                and "libtorch_cpu" in Path(f"/proc/{process.pid}/maps").read_text()
            ):
                found[process.pid] = process
    return found


@pytest.mark.launch
@pytest.mark.timeout(600)
def test_the_process_that_waited_is_the_next_rank(launcher: Launcher) -> None:
    launched = launcher(
        "waits",
        "scaling.workers=1",
        "steps=1000000",
        "validation.every=1000000",
        "checkpoint.every=200",
        on="local",
    )
    launched.until_step(1)
    (waiting,) = wait_for(lambda: titled(launched, "ray::IDLE"), "no process waits")
    (rank,) = set(titled(launched, "ray::RayTrainW")) - {waiting}
    assert waiting != rank
    launched.until_step(201)
    psutil.Process(rank).kill()
    wait_for(lambda: list(titled(launched, "ray::RayTrainW")) == [waiting], "another process became the rank")
    assert wait_for(
        lambda: set(titled(launched, "ray::IDLE")) - {rank, waiting}, "no process waits for the second loss"
    )
    launched.look()
    launched.process.send_signal(signal.SIGINT)
    code, _, errors = launched.finish()
    assert code == 130, errors
    launched.gone()


def test_no_gpu_is_looked_for_before_ray_says_which_are_ours() -> None:
    ended = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, check=False)
    assert ended.stdout == "untouched", ended.stderr


def test_the_hook_is_rays_and_leads_here() -> None:
    from ray._common.utils import load_class
    from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR

    ((name, path),) = prestart.environment()["env_vars"].items()
    assert name == WORKER_PROCESS_SETUP_HOOK_ENV_VAR
    assert load_class(path) is prestart.import_ahead


def test_a_module_that_is_not_there_is_told_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prestart, "MODULES", ("no.such.module",))
    prestart.import_ahead()
    assert capsys.readouterr().err.startswith("no.such.module was not imported ahead")


def test_without_ray_nothing_waits_and_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    prestart._start_spares(1)
    assert capsys.readouterr().err.startswith("no spare processes for restarts: ")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_is_on_its_way_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], rank: int) -> None:
    called: list[str] = []
    context = context_for(
        tmp_path,
        {},
        EventSink(None),
        rank=rank,
        world_size=2,
        local_rank=0,
        device="cpu",
        on_first_step=lambda: called.append("on its way"),
    )
    for step in range(1, 4):
        context.on_step(step, 3)
    assert called == ["on its way"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("asked", "kept"), [({"standby": True}, prestart.environment()), ({"standby": False}, {}), ({}, {})]
)
def test_ranks_start_in_the_environment_only_where_one_is_kept_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: dict[str, Any], kept: dict[str, Any]
) -> None:
    made: list[Any] = []

    class Trainer:
        def __init__(self, *_: Any, run_config: Any, **__: Any) -> None:
            made.append(run_config.worker_runtime_env)

        def fit(self) -> None: ...

    monkeypatch.setattr(ray_cluster, "_trainer_class", lambda for_run: Trainer)
    RayCluster(own=True, storage=str(tmp_path)).train(lambda config: None, asked, ScalingConfig())
    assert made == [kept]


@pytest.mark.parametrize("for_run", [True, False])
def test_ray_cleans_up_after_a_run_only_where_it_outlives_it_and_serves_no_datasets(
    tmp_path: Path, for_run: bool
) -> None:
    from ray.train import RunConfig, ScalingConfig

    made = ray_cluster._trainer_class(for_run)(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    names = {type(each).__name__ for each in made._create_default_callbacks()}
    assert "BackendSetupCallback" in names
    assert "DatasetsCallback" not in names
    assert ("PlacementGroupCleanerCallback" in names) is not for_run
