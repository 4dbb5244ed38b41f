"""The connection to an API server through `kubectl proxy`, with a proxy that starts slowly."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from trainfleet.errors import TrainfleetError
from trainfleet.rehearsal.on_cluster import api
from trainfleet.rehearsal.on_cluster.cluster_target import Target

SLOW_PROXY = """
import http.server, socketserver, sys, time
from pathlib import Path

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def address_string(self):
        return ""

path = sys.argv[-1].removeprefix("--unix-socket=")
server = socketserver.ThreadingUnixStreamServer(path, Answer, bind_and_activate=False)
server.server_bind()
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
server.server_activate()
server.serve_forever()
"""


def target(folder: Path, program: str) -> Target:
    (folder / "proxy.py").write_text(program)
    return Target("a-context", (sys.executable, str(folder / "proxy.py"), str(folder / "go")))


def test_a_proxy_that_has_bound_its_socket_and_does_not_listen_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = time.sleep

    def looked_once_more(seconds: float) -> None:
        if list(Path(folder).glob("trainfleet-api-*/api")):
            (tmp_path / "go").touch()
        sleep(seconds)

    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(api.time, "sleep", looked_once_more)
    with api.connected(target(tmp_path, SLOW_PROXY)) as found:
        assert found.get("/version") == {}
    assert (tmp_path / "go").exists(), "the proxy was found before it listened"


def test_a_proxy_that_ends_is_reported_with_its_output(tmp_path: Path) -> None:
    ends = "import sys; sys.exit('error: no such context')"
    with pytest.raises(TrainfleetError) as caught, api.connected(target(tmp_path, ends)):
        pass
    assert "error: no such context" in str(caught.value)
