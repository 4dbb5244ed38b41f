"""What the head of `--on ray-up` does when no run needs its machines.

The decisions have no clock. EC2 is simulated by a server on loopback, to which Ray's own provider talks; GCP and
Azure by objects in place of the clouds' clients.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from ray.autoscaler._private import providers

from tests.training.launch.test_ray_up_cluster_yaml import HOSTS, document, run_spec
from trainfleet.training.launch.ray_up import idle_watch, machines
from trainfleet.training.launch.ray_up.cluster_yaml import IDLE_WATCH, paid_for
from trainfleet.training.launch.ray_up.idle_watch import DRIVERS, RETRY_S, Watch, drivers
from trainfleet.training.launch.remote.ray_job import ENTRYPOINT


class Actions:
    """Records what a watch does; `failing` is raised once by the next action."""

    def __init__(self, *, keep_workers: bool = False) -> None:
        self.done: list[str] = []
        self.failing: Exception | None = None
        release = None if keep_workers else lambda: self._act("release")
        self.watch = Watch(100.0, release, lambda: self._act("delete"), needed_at=0.0)

    def _act(self, name: str) -> None:
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error
        self.done.append(name)


@pytest.mark.parametrize(
    ("looks", "keep_workers", "expected"),
    [
        ([(0, False), (99, False)], False, []),
        ([(0, False), (100, False)], False, ["delete"]),
        ([(10, True), (5000, True)], False, []),
        ([(10, True), (20, False), (60, False)], False, ["release"]),
        ([(10, True), (20, False), (110, False)], False, ["release", "delete"]),
        ([(10, True), (20, False), (109, True), (200, False)], False, ["release", "release"]),
        ([(10, True), (20, False), (60, False)], True, []),
        ([(10, True), (20, False), (110, False)], True, ["delete"]),
    ],
    ids=["starting", "no run", "long run", "ended", "ended long ago", "next run", "stays", "stays, unused"],
)
def test_workers_go_after_a_run_and_all_machines_after_the_idle_time(
    looks: list[tuple[float, bool]], keep_workers: bool, expected: list[str]
) -> None:
    actions = Actions(keep_workers=keep_workers)
    for now, needed in looks:
        assert actions.watch.look(now, needed=needed) is (actions.done[-1:] == ["delete"])
    assert actions.done == expected


@pytest.mark.parametrize("now", [20.0, 120.0], ids=["release", "delete"])
def test_a_refused_request_is_made_again(now: float) -> None:
    actions = Actions()
    actions.watch.look(10.0, needed=True)
    actions.failing = PermissionError("denied")
    actions.watch.look(now, needed=False)
    actions.watch.look(now + RETRY_S - 1, needed=False)
    assert actions.done == []
    actions.watch.look(now + RETRY_S, needed=False)
    assert actions.done == ["release" if now + RETRY_S < 110 else "delete"]


def test_a_driver_without_a_job_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may continue while the head's job server does not answer."""
    address = "http://127.0.0.1:9"
    for found in ([], [1]):
        monkeypatch.setattr(idle_watch, "drivers", lambda found=found: found)
        assert idle_watch.needs_machines(address) is bool(found)
    assert ENTRYPOINT.removeprefix("python -m ") in DRIVERS
    command = [sys.executable, "-c", "input()", DRIVERS[0]]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as driver:
        assert driver.pid in drivers()
        driver.communicate(b"\n")
    assert driver.pid not in drivers()


def test_the_autoscaler_may_delete_every_worker_after_a_run(tmp_path: Path) -> None:
    from ray.autoscaler.v2.instance_manager.config import FileConfigReader

    file = tmp_path / "ray_bootstrap_config.yaml"
    cluster = document(run_spec("aws", "scaling.workers=2", image="my/trainfleet:1"))
    file.write_text(json.dumps(cluster))
    file.chmod(0o600)
    reader = FileConfigReader(str(file))
    before = reader.get_cached_autoscaling_config()
    machines.release_workers(file)
    reader.refresh_cached_autoscaling_config()
    after = reader.get_cached_autoscaling_config()
    workers = [name for name in before.get_node_type_configs() if name != "head"]
    assert [before.get_node_type_configs()[name].min_worker_nodes for name in workers] == [2]
    assert [after.get_node_type_configs()[name].min_worker_nodes for name in workers] == [0]
    assert (before.get_idle_timeout_s(), after.get_idle_timeout_s()) == (600, 60)
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("cloud", "options", "words"),
    [
        ("aws", {}, "--idle-minutes 20 --token"),
        ("gcp", {"idle_s": 300.0}, "--idle-minutes 5 --token"),
        ("azure", {"cluster": "shared"}, "--idle-minutes 240 --keep-workers --token"),
        ("local", {}, "--idle-minutes 20 --keep-workers --token"),
    ],
)
def test_the_head_watches_for_as_long_as_stated(cloud: str, options: dict[str, Any], words: str) -> None:
    commands = document(run_spec(cloud, image="my/trainfleet:1", **options))["head_start_ray_commands"]
    (watching,) = [each for each in commands if IDLE_WATCH in each]
    assert words in watching


def test_the_launch_says_what_is_paid_for_and_until_when() -> None:
    gpus = ("scaling.use_gpu=true", "scaling.workers=16", "batch.global_batch=64")
    (text,) = paid_for(run_spec("aws", *gpus, pool="h100"))
    price = run_spec("aws", *gpus, pool="h100").usd_per_hour
    assert f"paid for: 2 x p5.48xlarge at ${price:,.2f}/h, and the head, 1 x m7i.xlarge; until" in text
    assert "until the run ends, and at the latest until 20 minutes after the last run needed them" in text
    (text,) = paid_for(run_spec("gcp", cluster="shared"))
    assert text.endswith(
        "; until `ray down`, and at the latest until 240 minutes after the last run needed them"
    )
    assert "at a price that the contract does not have" in text
    assert paid_for(run_spec("local")) == []


class SimulatedEc2(BaseHTTPRequestHandler):
    """DescribeInstances and TerminateInstances of EC2's query API, for one cluster."""

    running: dict[str, str]
    terminated: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = {key: value[0] for key, value in parse_qs(body).items()}
        kind = type(self)
        if asked["Action"] == "TerminateInstances":
            ids = [value for key, value in asked.items() if key.startswith("InstanceId")]
            kind.terminated += ids
            for each in ids:
                kind.running.pop(each, None)
        kinds = {
            asked[key.replace("Name", "Value.1")]
            for key in asked
            if key.startswith("Filter.") and asked[key] == "tag:ray-node-type"
        }
        rows = "".join(
            f"<item><instanceId>{name}</instanceId><instanceState><name>running</name></instanceState>"
            f"<tagSet><item><key>ray-node-type</key><value>{node_kind}</value></item></tagSet></item>"
            for name, node_kind in kind.running.items()
            if not kinds or node_kind in kinds
        )
        text = (
            f'<{asked["Action"]}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet>'
            f"<item><instancesSet>{rows}</instancesSet></item></reservationSet></{asked['Action']}Response>"
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[SimulatedEc2]]:
    kind = type("Simulated", (SimulatedEc2,), {"running": {}, "terminated": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    yield kind
    server.shutdown()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs that were called; none is run."""
    called: list[str] = []
    monkeypatch.setattr(machines.subprocess, "run", lambda command, **_: called.append(" ".join(command)))
    monkeypatch.setattr(machines, "POLL_S", 0.0)
    return called


def file_of(folder: Path, cloud: str, **options: Any) -> Path:
    file = folder / "ray_bootstrap_config.yaml"
    file.write_text(json.dumps(document(run_spec(cloud, image="my/trainfleet:1", **options))))
    return file


def test_rays_provider_terminates_the_workers_and_then_the_head(
    ec2: type[SimulatedEc2], stopped: list[str], tmp_path: Path
) -> None:
    ec2.running |= {"i-head": "head", "i-one": "worker", "i-two": "worker"}
    machines.delete(file_of(tmp_path, "aws"))
    assert stopped == ["ray stop --force"]
    assert ec2.terminated == ["i-one", "i-two", "i-head"]
    assert ec2.running == {}


class SimulatedCloud:
    """A provider whose workers need two requests to go."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.workers = ["two", "one"]

    def nodes_for_teardown(self, tags: dict[str, str]) -> list[str]:
        return [*self.workers] if tags == {"ray-node-type": "worker"} else ["head"]

    def terminate_nodes(self, names: list[str]) -> None:
        self.calls.append(names)
        self.workers = self.workers[:-1]


def test_the_head_is_deleted_when_no_worker_is_left(
    stopped: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = SimulatedCloud()
    monkeypatch.setattr(providers, "_get_node_provider", lambda *_: cloud)
    machines.delete(file_of(tmp_path, "gcp"))
    assert cloud.calls == [["two", "one"], ["two"], ["head"]]


def test_the_head_is_kept_while_workers_cannot_be_deleted(
    stopped: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = SimulatedCloud()
    monkeypatch.setattr(cloud, "terminate_nodes", lambda _: None)
    monkeypatch.setattr(providers, "_get_node_provider", lambda *_: cloud)
    monkeypatch.setattr(machines, "WORKERS_S", 0.01)
    with pytest.raises(TimeoutError, match="2 workers are not deleted"):
        machines.delete(file_of(tmp_path, "gcp"))


@pytest.mark.parametrize("group", [None, "shared"])
def test_azures_own_resource_group_is_deleted_as_a_whole(
    group: str | None, stopped: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that deletes itself would leave its disk and its address. A group that the user named stays."""
    file = file_of(tmp_path, "azure")
    config = json.loads(file.read_text())
    if group:
        config["provider"]["resource_group"] = group
        file.write_text(json.dumps(config))
    cloud = SimulatedCloud()
    deleted: list[str] = []
    cloud.workers = []
    groups = SimpleNamespace(begin_delete=deleted.append)
    monkeypatch.setattr(cloud, "resource_client", SimpleNamespace(resource_groups=groups), raising=False)
    monkeypatch.setattr(providers, "_get_node_provider", lambda *_: cloud)
    machines.delete(file)
    assert deleted == ([f"ray-{config['cluster_name']}"] if group is None else [])
    assert cloud.calls == ([] if group is None else [["head"]])


def test_hosts_are_cleaned_up_from_the_head(stopped: list[str], tmp_path: Path) -> None:
    machines.delete(file_of(tmp_path, "local"))
    (command,) = stopped
    assert command.startswith("bash -c")
    assert f"for host in {' '.join(HOSTS[1:])};" in command
    assert "/tmp/trainfleet-stop-*" in command


@pytest.mark.parametrize("removed", ["config", "token"])
def test_the_watch_ends_as_soon_as_a_launcher_has_cleaned_up(
    removed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a run is left on a host then, so it does not wait for its next look at the jobs."""
    monkeypatch.setattr(idle_watch, "POLL_S", 3600.0)
    monkeypatch.setattr(idle_watch, "END_POLL_S", 0.01)
    looked = threading.Event()

    def needs_machines(_: str) -> bool:
        looked.set()
        return True

    monkeypatch.setattr(idle_watch, "needs_machines", needs_machines)
    files = {name: tmp_path / name for name in ("config", "token")}
    for file in files.values():
        file.touch()
    arguments = [text for name, file in files.items() for text in (f"--{name}", str(file))]
    watch = threading.Thread(
        target=idle_watch.main, args=([*arguments, "--idle-minutes", "20"],), daemon=True
    )
    watch.start()
    assert looked.wait(60)
    files[removed].unlink()
    watch.join(60)
    assert not watch.is_alive()
