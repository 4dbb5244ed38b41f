"""What `--on ray-up` finds before it starts Ray on machines on which a run may train."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.training.launch.test_ray_up_cluster_yaml import run_spec
from trainfleet.errors import InputError
from trainfleet.training.launch.ray_up import kept_cluster, processes
from trainfleet.training.launch.ray_up.checks import require_free
from trainfleet.training.launch.ray_up.cluster_yaml import cluster_files, write
from trainfleet.training.launch.ray_up.kept_cluster import require_idle
from trainfleet.training.launch.ray_up.run_spec import state_folder
from trainfleet.training.stores import open_store
from trainfleet.training.stores.lease import Lease

TOKEN = "the head's"
WITHIN_S = 1800.0


def test_a_run_that_another_launch_trains_is_not_started_again(tmp_path: Path) -> None:
    """Starting Ray on its machines again would end it."""
    home = tmp_path / "night"
    require_free(str(home), WITHIN_S)
    home.mkdir()
    (home / "run.json").write_text(json.dumps({"name": "night", "status": "running", "step": 4}))
    lease = Lease(open_store(str(home)), "another launch", settle_s=0.0)
    lease.acquire()
    try:
        with pytest.raises(InputError, match=r"already in progress(.|\n)*runs attach night"):
            require_free(str(home), WITHIN_S)
    finally:
        lease.release()
    require_free(str(home), WITHIN_S)


class Head(BaseHTTPRequestHandler):
    """The part of a head's job server that is asked."""

    jobs: list[dict[str, str]]

    def do_GET(self) -> None:
        allowed = self.path == "/api/jobs/" and self.headers["Authorization"] == f"Bearer {TOKEN}"
        body = json.dumps(self.jobs if allowed else {}).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Head]]:
    """A head on this machine, instead of the tunnel to one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), Head) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        @contextlib.contextmanager
        def tunnel(file: str, port: int) -> Iterator[str]:
            assert Path(file).is_file()
            yield f"http://127.0.0.1:{server.server_port}"

        monkeypatch.setattr(processes, "tunnel", tunnel)
        yield Head
        server.shutdown()


def owned() -> None:
    """This machine started the cluster, so it has its token."""
    run = run_spec("aws", cluster="shared")
    file = state_folder(run.name) / "cluster.yaml"
    write(run, file, {})
    cluster_files(file).token.write_text(TOKEN)


def test_machines_that_train_another_run_are_not_taken(head: type[Head]) -> None:
    owned()
    head.jobs = [
        {"submission_id": "tf-old-1", "status": "SUCCEEDED"},
        {"submission_id": "tf-new-2", "status": "RUNNING"},
    ]
    with pytest.raises(InputError, match="trains tf-new-2; it takes one run at a time"):
        require_idle(run_spec("aws", cluster="shared"), {})
    head.jobs = head.jobs[:1]
    require_idle(run_spec("aws", cluster="shared"), {})


def test_machines_that_another_machine_started_are_not_taken(head: type[Head], tmp_path: Path) -> None:
    head.jobs = []
    with pytest.raises(InputError, match="another machine started it"):
        require_idle(run_spec("aws", cluster="shared"), {})
    assert not state_folder("shared").exists(), "nothing is left of a launch that was rejected"


def test_machines_that_do_not_exist_are_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(kept_cluster, "LOOK_S", 0.2)
    monkeypatch.setattr(processes, "tunnel", lambda *_: contextlib.nullcontext("http://127.0.0.1:9"))
    require_idle(run_spec("aws", cluster="shared"), {})
