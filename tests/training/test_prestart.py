"""A restart under Ray uses a process that has already finished its imports. One test uses a real Ray; the
others test the parts.
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

NO_GPU_QUERY = """
import torch
def gpu_queried(*_):
    raise SystemExit("a GPU was queried: " + __import__("traceback").format_exc())
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    if hasattr(torch._C, name):
        setattr(torch._C, name, gpu_queried)
from trainfleet.training.runtime.prestart import import_ahead
import_ahead()
import sys
assert "trainfleet.training.trainer.loop" in sys.modules and not torch.cuda.is_initialized()
print("no query", end="")
"""


@pytest.fixture
def launcher(tmp_path: Path, text_folder: Path, cache: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path, text_folder, cache)
    yield made
    made.end()


def titled(launched: Launched, title: str) -> dict[int, psutil.Process]:
    """Processes below the launch whose title, set by Ray, starts with `title`, and that have loaded torch."""
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


@pytest.mark.deep
@pytest.mark.launch
@pytest.mark.timeout(600)
def test_the_waiting_processes_become_the_next_ranks(launcher: Launcher) -> None:
    """Two ranks with half a CPU each: Ray's default starts one process at a time then."""
    launched = launcher(
        "waits",
        "scaling.workers=2",
        "scaling.cpus_per_worker=0.5",
        "steps=1000000",
        "validation.every=1000000",
        "checkpoint.every=200",
        on="local",
    )
    launched.until_step(1)

    def spares() -> set[int]:
        found = set(titled(launched, "ray::IDLE"))
        return found if len(found) == 2 else set()

    waiting = wait_for(spares, "not one prestarted process per rank")
    ranks = set(titled(launched, "ray::RayTrainW"))
    assert len(ranks) == 2
    assert not ranks & waiting
    launched.until_step(201)
    psutil.Process(max(ranks)).kill()
    wait_for(
        lambda: set(titled(launched, "ray::RayTrainW")) == waiting,
        "the prestarted processes did not become the ranks",
    )
    assert wait_for(
        lambda: set(titled(launched, "ray::IDLE")) - ranks - waiting,
        "no prestarted process for a second restart",
    )
    launched.look()
    launched.process.send_signal(signal.SIGINT)
    code, _, errors = launched.finish()
    assert code == 130, errors
    launched.gone()


@pytest.mark.deep
def test_no_gpu_is_queried_before_ray_assigns_them() -> None:
    ended = subprocess.run([sys.executable, "-c", NO_GPU_QUERY], capture_output=True, text=True, check=False)
    assert ended.stdout == "no query", ended.stderr


def test_the_hook_of_ray_is_import_ahead() -> None:
    from ray._common.utils import load_class
    from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR

    ((name, path),) = prestart.environment()["env_vars"].items()
    assert name == WORKER_PROCESS_SETUP_HOOK_ENV_VAR
    assert load_class(path) is prestart.import_ahead


def test_a_missing_module_is_reported_and_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prestart, "MODULES", ("no.such.module",))
    prestart.import_ahead()
    assert capsys.readouterr().err.startswith("no.such.module was not imported ahead")


def test_without_ray_no_process_is_prestarted_and_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    prestart._start_spares(1)
    assert capsys.readouterr().err.startswith("no spare processes for restarts: ")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_step_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    called: list[str] = []
    context = context_for(
        tmp_path,
        {},
        EventSink(None),
        rank=rank,
        world_size=2,
        local_rank=0,
        device="cpu",
        on_first_step=lambda: called.append("first step"),
    )
    for step in range(1, 4):
        context.on_step(step, 3)
    assert called == ["first step"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("config", "worker_environment"),
    [({"standby": True}, prestart.environment()), ({"standby": False}, {}), ({}, {})],
)
def test_ranks_have_the_prestart_environment_only_if_prestart_is_enabled(
    asked_of_ray: dict[str, Any],
    tmp_path: Path,
    config: dict[str, Any],
    worker_environment: dict[str, Any],
) -> None:
    RayCluster(own=True, storage=str(tmp_path)).train(lambda config: None, config, ScalingConfig())
    assert asked_of_ray["run_config"].worker_runtime_env == worker_environment


def test_ray_starts_no_actors_that_a_run_has_no_use_for(tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig

    made = ray_cluster._trainer_class()(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    names = {type(each).__name__ for each in made._create_default_callbacks()}
    assert "BackendSetupCallback" in names
    assert "DatasetsCallback" not in names
    assert "PlacementGroupCleanerCallback" not in names


@pytest.mark.parametrize(("variable", "reserved"), [({"TRAINFLEET_RANK_CPUS": "0.5"}, 0.5), ({}, 0.25)])
def test_a_rank_reserves_what_its_launcher_says(
    variable: dict[str, str],
    reserved: float,
    asked_of_ray: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("init", "shutdown"):
        monkeypatch.setattr(f"ray.{name}", lambda *_, **__: None)
    monkeypatch.setattr(ray_cluster, "_start_coordinator", lambda: None)
    scaling = ScalingConfig(cpus_per_worker=0.25)
    with ray_cluster.connect(scaling, {"RAY_ADDRESS": "10.0.0.1:6379", **variable}) as cluster:
        cluster.train(lambda config: None, {}, scaling)
    assert asked_of_ray["scaling_config"].resources_per_worker == {"CPU": reserved}
