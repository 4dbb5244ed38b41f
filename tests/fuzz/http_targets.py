"""Everything that listens: the console, `serve`, and the signer of Ray's certificates."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import hostile
from tests.fuzz.folders import kept_folder
from tests.fuzz.models import predictors
from tests.fuzz.requests import METHODS, RejectedRequest, Reply, Request, answered, requests
from tests.fuzz.target import Target

PORT = 8970
CONSOLE_PATHS = (
    "/",
    "/cost",
    "/compare",
    "/runs/0/lm-0",
    "/runs/0/lm-1",
    "/runs/0/",
    "/runs/99999999999999999999/lm-0",
    "/stacks",
    "/stacks/aws-prod",
    "/clusters",
    "/static/ui.css",
)
CONSOLE_QUERIES = (
    "",
    "state=failed&text=",
    "by=",
    "by=owner",
    "run=0/lm-0&run=0/lm-1",
    "run=0/lm-0&run=",
    "token=",
    "run=" * 9,
)
TEXT_ROWS: tuple[Any, ...] = (
    {"rows": [{"text": "the node"}, {"text": ""}], "max_tokens": 3, "seed": 1, "temperature": 0.5},
    {"rows": [{"text": "the node"}], "max_tokens": 2, "top_k": 3, "top_p": 0.5, "stream": True},
)
PICTURE_ROWS: tuple[Any, ...] = (
    {"rows": [{"image": [[0] * 8] * 8}, {"image": [[1.5] * 8] * 8}]},
    {"rows": [{"image_base64": "iVBORw0KGgo="}, {"audio_base64": "UklGRg=="}]},
)
FAILED_ONCE = (
    (0, Request("POST", "/predict", b"\x9f", (), (b"{}",))),
    (0, Request("POST", "/predict", b"", (), (b'{"rows": [{"text": "\\ud800"}]}',))),
    (0, Request("POST", "/predict", b"", ((b"content-length", b"\xb2"),), (b"{}",))),
    (0, Request("POST", "/predict", b"", ((b"content-length", b"9" * 5_000),), (b"{}",))),
)
REVIEW = {
    "status": {
        "authenticated": True,
        "audiences": ["ray-signer.trainfleet"],
        "user": {
            "username": "system:serviceaccount:training:trainer",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["pod"],
                "authentication.kubernetes.io/pod-uid": ["uid"],
            },
        },
    }
}
SIGNING = (
    b"POST /sign HTTP/1.1\r\nHost: signer\r\nAuthorization: Bearer abc\r\nContent-Length: 4\r\n\r\nabcd",
    b"GET /ready HTTP/1.1\r\nHost: signer\r\n\r\n",
    b"POST /sign HTTP/1.1\r\nAuthorization: Bearer abc\r\nContent-Length: 9000\r\n\r\n" + b"a" * 9000,
    b"POST /sign HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /sign HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n",
    b"POST /sign HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    b"POST " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"BREW / HTTP/9.9\r\n\r\n",
    b"POST /sign",
    b"\x16\x03\x01\x02\x00\x01\x00",
)


def _checked(reply: Reply) -> None:
    """Return for an answer; a refusal is raised, and an internal error is a finding."""
    assert reply.status < 500 or reply.status in (503, 504), (reply.status, reply.body)
    if reply.status >= 400:
        raise RejectedRequest(reply.body.decode("utf-8") or f"{reply.status} of a request without a body")


@functools.cache
def _runs() -> Path:
    """Two runs."""
    folder = kept_folder()
    for name in ("lm-0", "lm-1"):
        (folder / name).mkdir()
        launch = {"at": "2026-11-20T08:00:00+00:00", "on": "torchrun", "owner": "ada", "status": "finished"}
        record = {"name": name, "status": "finished", "steps": 3, "starts": [], "launches": [launch]}
        (folder / name / "run.json").write_text(json.dumps(record))
        lines = [json.dumps({"kind": "train", "step": step, "loss": 3 / step}) for step in (1, 2, 3)]
        (folder / name / "metrics.jsonl").write_text("\n".join(lines))
        (folder / name / "recipe.yaml").write_text(f"name: {name}\n")
    return folder


@functools.cache
def _console() -> Any:
    from trainfleet.ui.app import Console
    from trainfleet.ui.run_store import RunStore

    return Console(RunStore([str(_runs())])).app


def _ui(given: tuple[bool, Request], _folder: Path) -> None:
    from trainfleet.ui.access import Access
    from trainfleet.ui.guard import HEADERS, Guard

    known, request = given
    guard = Guard(_console(), Access(), PORT)
    own = [(b"host", f"127.0.0.1:{PORT}".encode())]
    if known:
        own.append((b"cookie", f"{guard.cookie}={guard.access.session}".encode()))
    reply = answered(guard, request, *own)
    assert set(HEADERS) <= {
        name.title() if name != "x-frame-options" else "X-Frame-Options" for name in reply.headers
    }
    assert known or reply.status >= 400, "a page was shown without the token"
    _checked(reply)


def _serve(given: tuple[int, Request], _folder: Path) -> None:
    from starlette.requests import Request as StarletteRequest

    from trainfleet.training.inference.serve.request_handler import Limits, RequestHandler

    number, request = given
    handler = RequestHandler(predictors()[number], Limits(body_kib=64, max_tokens=8, rows=8, wait_ms=0))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reply = await handler.answer(StarletteRequest(scope, receive))
        await reply(scope, receive, send)

    reply = answered(app, request)
    assert handler.waiting == 0
    _checked(reply)


class Connection:
    """A connection on which a request has arrived."""

    def __init__(self, received: bytes) -> None:
        self.received, self.sent = io.BytesIO(received), b""

    def settimeout(self, _: float) -> None:
        return

    def makefile(self, *_: Any) -> Any:
        return self.received

    def sendall(self, data: bytes) -> None:
        self.sent += bytes(data)


def _signer(given: tuple[bytes, Any], _folder: Path) -> None:
    from trainfleet.infra.kubernetes.scripts.ray_signer import api, signer
    from trainfleet.infra.kubernetes.scripts.ray_signer.server import Handler

    received, review = given

    class Api(api.Api):
        def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
            found = review if path.endswith("/tokenreviews") else {}
            return (201, found) if method == "POST" else (404, {})

    env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    own = signer.Settings("ray", "training", "ca", "signer", "ray-signer.trainfleet", 0, create=False)
    decides = signer.Signer(Api(env), own)
    decides._authority = SimpleNamespace()  # type: ignore[assignment]  # no request gets as far as a signature
    connection, server = Connection(received), SimpleNamespace(signer=decides)
    with contextlib.redirect_stdout(io.StringIO()):
        Handler(connection, ("127.0.0.1", 1), server)  # type: ignore[arg-type]  # stands in for a socket and a server
    if b" 200 " not in connection.sent.split(b"\r\n", 1)[0]:
        raise RejectedRequest(connection.sent.decode("latin-1") or "the connection is closed")


def _console_requests() -> st.SearchStrategy[Any]:
    bodies = st.sampled_from((b"",) * 9 + (b"a=b",))
    return st.tuples(st.booleans(), requests(CONSOLE_PATHS, bodies, CONSOLE_QUERIES))


def _serve_requests() -> st.SearchStrategy[Any]:
    predictors()  # trained here, outside of the limits of an input
    paths = ("/predict", "/predict", "/predict/", "/healthz", "/metrics", "/")
    methods = ("POST",) * 8 + METHODS
    return st.one_of(
        *(
            st.tuples(st.just(number), requests(paths, hostile.json_files(*rows), methods=methods))
            for number, rows in enumerate((TEXT_ROWS, PICTURE_ROWS))
        )
    )


def _signer_requests() -> st.SearchStrategy[Any]:
    heads = st.sampled_from([each.decode("latin-1") for each in SIGNING if len(each) < 20_000])
    received = st.one_of(st.sampled_from(SIGNING), heads.flatmap(hostile.flipped), st.binary(max_size=200))
    return st.tuples(received, st.sampled_from((REVIEW, {}, {"status": {"authenticated": False}})))


TARGETS: dict[str, Target] = {
    "ui": Target(
        "requests to `trainfleet ui`",
        _console_requests,
        _ui,
        (RejectedRequest,),
        examples=((True, Request("GET", "/cost/", b"\x80", (), ())),),
    ),
    "serve": Target(
        "requests to `trainfleet serve`",
        _serve_requests,
        _serve,
        (RejectedRequest,),
        examples=FAILED_ONCE,
        slow=True,
    ),
    "signer": Target(
        "requests to the signer of Ray's certificates", _signer_requests, _signer, (RejectedRequest,)
    ),
}
