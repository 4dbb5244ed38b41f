"""The entry point that launchers start, the events between ranks and launcher, and which processes end
together.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.training.launches import running, wait_for
from trainfleet import process
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.recipe.schema import ScalingConfig
from trainfleet.training.runtime import ray_cluster
from trainfleet.training.runtime.events import EventSink, Listener
from trainfleet.training.runtime.progress import Lines, dense_line, duration
from trainfleet.training.runtime.ray_cluster import RayCluster
from trainfleet.training.worker import context_for

ROW = {
    "kind": "train",
    "step": 12,
    "steps": 600,
    "loss": 2.4142,
    "nats_per_byte": 2.4142,
    "lr": 3e-4,
    "tokens_per_second": 12345.0,
    "mfu": None,
    "data_wait": 0.004,
    "eta_seconds": 131.2,
}


def test_an_interval_is_one_short_line() -> None:
    assert dense_line(ROW) == "step  12/600  loss 2.4142  lr 3.00e-04  12.3k tok/s  wait 0.4%  left 2m11s"
    on_gpu = ROW | {"mfu": 0.415, "nats_per_byte": 1.2}
    assert (
        dense_line(on_gpu)
        == "step  12/600  loss 2.4142 (1.2000 nats/byte)  lr 3.00e-04  12.3k tok/s  mfu 41.5%  wait 0.4%  left 2m11s"
    )


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (200, "3m20s"), (7500, "2h05m")])
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_events_of_a_rank_arrive_in_order(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "events")
    sink = EventSink(str(tmp_path / "events"))
    for step in range(50):
        sink.send("step", step=step, total=50)
    sink.close()
    received: list[int] = []

    def all_received() -> bool:
        received.extend(event["step"] for event in listener.drain())
        return len(received) == 50

    wait_for(all_received, "events", 10)
    listener.close()
    assert received == list(range(50))


def test_a_run_continues_without_a_listener(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "events")
    sink = EventSink(str(tmp_path / "events"))
    listener.close()
    for _ in range(10_000):
        sink.send("step", step=1, total=2)
    EventSink(str(tmp_path / "gone")).send("step", step=1, total=2)


def test_an_incomplete_event_is_skipped(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "events")
    sink = EventSink(str(tmp_path / "events"))
    sink.send("step", step=1, total=2)
    assert sink._socket is not None
    sink._socket.sendall(b'{"kind": "st')
    sink.close()
    received = wait_for(lambda: list(listener.drain()), "events", 10)
    listener.close()
    assert [event["step"] for event in received] == [1]


def test_without_a_launcher_the_lines_go_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = context_for(tmp_path, {}, EventSink(None), rank=0, world_size=1, local_rank=0, device="cpu")
    context.on_interval(ROW)
    context.on_event("checkpoint", "saved step-00000012")
    context.on_event("resumed", "from step 12")
    assert capsys.readouterr().out.splitlines() == [dense_line(ROW), "resumed: from step 12"]


def test_one_file_asks_every_rank_to_stop(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    context = context_for(
        tmp_path,
        {"TRAINFLEET_STOP_FILE": str(stop)},
        EventSink(None),
        rank=1,
        world_size=2,
        local_rank=1,
        device="cpu",
    )
    assert not context.should_stop()
    stop.touch()
    assert context.should_stop()


def test_plain_lines_have_no_color(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().handle({"kind": "warning", "text": "stopping"})
    assert capsys.readouterr().out == "stopping\n"


@pytest.mark.parametrize(
    ("have", "scaling", "message"),
    [
        ({"CPU": 2.0}, {"workers": 3}, "need 3 CPUs, here are 2"),
        ({"CPU": 8.0, "GPU": 1.0}, {"workers": 2, "use_gpu": True}, "need 2 GPUs, here are 1"),
    ],
)
def test_a_cluster_that_is_too_small_is_rejected(
    monkeypatch: pytest.MonkeyPatch, have: dict[str, float], scaling: dict[str, int], message: str
) -> None:
    import ray

    monkeypatch.setattr(ray, "cluster_resources", lambda: have)
    with pytest.raises(InputError, match=message):
        RayCluster(own=False, storage="unused").require(ScalingConfig.model_validate(scaling))
    RayCluster(own=False, storage="unused").require(ScalingConfig(workers=1))


def test_nodes_that_join_after_the_driver_has_connected_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pod of SkyPilot starts its own node, and the driver may be faster than the slowest of them."""
    import ray

    nodes = [{"Alive": True}, {"Alive": False}]
    monkeypatch.setattr(ray_cluster, "JOIN_POLL_S", 0.0)

    def joined() -> list[dict[str, bool]]:
        nodes.append({"Alive": True})
        return nodes

    monkeypatch.setattr(ray, "nodes", joined)
    monkeypatch.setattr(
        ray, "cluster_resources", lambda: {"CPU": float(sum(each["Alive"] for each in nodes))}
    )
    RayCluster(own=False, storage="unused", nodes=3).require(ScalingConfig(workers=3))
    with pytest.raises(InputError, match="need 9 CPUs"):
        RayCluster(own=False, storage="unused").require(ScalingConfig(workers=9))


def test_a_run_does_not_start_without_a_node_unless_it_is_elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers would share the existing nodes, and the other pods would be paid for nothing."""
    import ray

    monkeypatch.setattr(ray_cluster, "JOIN_S", 0.0)
    monkeypatch.setattr(ray_cluster, "JOIN_POLL_S", 0.0)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}, {"Alive": False}])
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    cluster = RayCluster(own=False, storage="unused", nodes=2)
    with pytest.raises(TrainfleetError, match="1 of 2 nodes have joined"):
        cluster.require(ScalingConfig(workers=2))
    cluster.require(ScalingConfig(workers=2, min_workers=1))


@pytest.mark.deep
def test_the_entry_point_is_one_rank_under_torchrun(tmp_path: Path, text_folder: Path, cache: Path) -> None:
    settings = [
        f"workload.data.source={text_folder}",
        "workload.data.glob='**/*.txt'",
        "scaling.workers=1",
        "steps=2",
        "optimizer.warmup=1",
    ]
    shares = [
        "validation.every=2",
        "workload.data.validation_share=0.15",
        "workload.data.test_share=0.15",
        f"storage={tmp_path}",
    ]
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "TRAINFLEET_CACHE": str(cache),
        "TRAINFLEET_OPTIMIZER__LR": "1e-4",
    }
    done = subprocess.run(
        [sys.executable, "-m", "trainfleet.training.run", "lm-tiny", *settings, *shares],
        env=os.environ | alone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "finished: at step 2/2" in done.stdout
    assert "lr: 0.0001" in (tmp_path / "lm-tiny" / "recipe.yaml").read_text()


def test_a_supervised_process_tree_ends_with_its_orphans(tmp_path: Path) -> None:
    """A child that ignores SIGTERM starts a grandchild in its own session, and dies. The launcher finds the
    grandchild and ends it.
    """
    grandchild = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    child = f"""
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", {grandchild!r}], start_new_session=True, stdout=subprocess.PIPE)
grandchild.stdout.readline()
open({str(tmp_path / "pid")!r}, "w").write(str(grandchild.pid))
"""
    supervisor = f"""
import sys
from trainfleet import process
with open({str(tmp_path / "log")!r}, "wb") as log:
    ended = process.supervise([sys.executable, "-c", {child!r}], {{}}, log, tick=lambda: None, on_signal=lambda _: process.Reaction.END_NOW)
print(ended.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", supervisor], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "0\n", done.stderr
    assert running({int((tmp_path / "pid").read_text())}) == set()


def test_a_process_dies_with_its_launcher(tmp_path: Path) -> None:
    child = f"""
import os, time
from trainfleet.process import die_with
die_with(os.getppid())
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
time.sleep(600)
"""
    launcher = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    )
    pid = int(
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the child", 60)
    )
    assert psutil.pid_exists(pid)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    wait_for(lambda: not running({pid}), "the child outlived its launcher", 30)


def test_a_process_without_its_launcher_does_not_start() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    code = f"from trainfleet.process import die_with; die_with({gone.pid}); import time; time.sleep(600)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 1
    assert not process.alive(gone.pid)
