"""The client of the registry API on what the registries of the clouds do and docker-registry does not: a token
instead of the password, pages of tags, an index of images, blobs on another host.

The server is a stand-in with TLS.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.training.launch.saved_platforms import saved
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.images.destinations import destinations
from trainfleet.images.listing import list_images
from trainfleet.images.login import Access, own_credentials
from trainfleet.images.registry import Credentials, Repository, split_repository
from trainfleet.infra.outputs.contract import read_outputs
from trainfleet.local_cluster.store import issue_certificate
from trainfleet.training.launch.platform_outputs import NamedPlatform

USER = Credentials("user", "password")
TAGS = [f"cpu-{number:012x}" for number in range(5)]


class Handler(BaseHTTPRequestHandler):
    """A registry whose requests need a token, for a repository `a/b` with TAGS, two in a page."""

    server: Server

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        url = urlsplit(self.path)
        given = self.headers.get("Authorization", "")
        self.server.requests.append((self.path, given))
        if url.path == "/token":
            right = given == USER.basic and parse_qs(url.query)["scope"] == ["repository:a/b:pull"]
            self.reply(200 if right else 401, {"token": self.server.token}, body=body)
        elif url.path.startswith("/v2/site/"):
            self.reply(200, "a page, not an object", body=body)
        elif url.path.startswith("/v2/cut/"):
            self.reply(200, {}, body=body, headers={"Content-Length": "999"})
        elif url.path.startswith("/elsewhere/"):
            self.reply(200, {"created": f"2026-11-0{1 + int(url.path[-1])}T00:00:00Z"}, body=body)
        elif given != f"Bearer {self.server.token}":
            realm = (
                f'Bearer realm="https://{self.server.address}/token",service="s",scope="repository:a/b:pull"'
            )
            self.reply(401, {}, body=body, headers={"WWW-Authenticate": realm})
        else:
            self.content(url.path.removeprefix("/v2/a/b/"), parse_qs(url.query), body=body)

    def content(self, path: str, query: dict[str, list[str]], *, body: bool) -> None:
        kind, _, name = path.partition("/")
        if kind == "tags":
            first = TAGS.index(query["last"][0]) + 1 if "last" in query else 0
            more = first + 2 < len(TAGS)
            link = {"Link": f'</v2/a/b/tags/list?last={TAGS[first + 1]}&n=2>; rel="next"'} if more else {}
            self.reply(200, {"tags": TAGS[first : first + 2]}, body=body, headers=link)
        elif kind == "blobs":
            self.reply(307, {}, body=body, headers={"Location": f"/elsewhere/{name[-1]}"})
        elif name in TAGS:
            digest = {"Docker-Content-Digest": f"sha256:{TAGS.index(name):064x}"}
            self.reply(200, {"manifests": [{"digest": f"sha256:inner{name[-1]}"}]}, body=body, headers=digest)
        elif name.startswith("sha256:inner"):
            manifest = {"config": {"digest": f"sha256:{name[-1]}"}, "layers": [{"size": 30}, {"size": 12}]}
            self.reply(200, manifest, body=body)
        else:
            self.reply(404, {}, body=body)

    def reply(self, code: int, document: Any, *, body: bool, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(document).encode()
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(text))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """The stand-in."""

    requests: list[tuple[str, str]]
    token: str
    address: str
    authority: Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    issue_certificate("127.0.0.1", tmp_path)
    with Server(("127.0.0.1", 0), Handler) as found:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        found.socket = context.wrap_socket(found.socket, server_side=True)
        found.requests, found.token, found.authority = [], "first", tmp_path / "ca.crt"
        found.address = f"127.0.0.1:{found.server_port}"
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def repository(server: Server, credentials: Credentials | None = USER) -> Repository:
    return Repository(f"{server.address}/a/b", credentials, server.authority)


def test_all_pages_of_tags_are_read_with_a_token(server: Server) -> None:
    found = repository(server).images()
    assert [each.tag for each in found] == TAGS[::-1]  # the newest first
    assert {each.size for each in found} == {42}
    assert [each.digest for each in found][-1] == f"sha256:{0:064x}"
    sent = [
        given for path, given in server.requests if path != "/token?service=s&scope=repository%3Aa%2Fb%3Apull"
    ]
    assert USER.basic not in sent  # the password goes to the token server only


def test_the_token_is_not_sent_to_where_blobs_are_stored(server: Server) -> None:
    repository(server).images()
    elsewhere = [given for path, given in server.requests if path.startswith("/elsewhere/")]
    assert elsewhere == [""] * len(TAGS)


def test_a_token_that_expired_is_replaced(server: Server) -> None:
    client = repository(server)
    assert client.digest(TAGS[1]) == f"sha256:{1:064x}"
    server.token = "second"
    assert client.digest(TAGS[2]) == f"sha256:{2:064x}"
    assert client.digest("cpu-absent") == ""


@pytest.mark.parametrize("credentials", [None, Credentials("user", "wrong")])
def test_a_login_that_is_refused_is_an_error(server: Server, credentials: Credentials | None) -> None:
    with pytest.raises(TrainfleetError, match="401"):
        repository(server, credentials).digest(TAGS[0])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("site/page", "not the answer of a registry.*answers without a JSON object"),
        ("cut/off", "does not answer.*IncompleteRead"),
    ],
)
def test_another_server_at_the_host_is_an_error(server: Server, path: str, message: str) -> None:
    with pytest.raises(TrainfleetError, match=f"(?s){message}"):
        Repository(f"{server.address}/{path}", None, server.authority).images()


@pytest.mark.parametrize(
    "name",
    [
        "registry.example/training",
        "localhost:5000/a",
        "10.0.0.5:443/a.b/c__d/e---f_g",
        "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a",
        "EXAMPLE.com/a",
    ],
)
def test_a_repository_is_split_into_host_and_path(name: str) -> None:
    assert "/".join(split_repository(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "registry..example/a",
        ".example/a",
        "registry.example./a",
        "registr\u00fd.example/a",
        f"{'a' * 64}.example/a",
        "host:/a",
        "host:123456/a",
        "host/A",
        "host/a//b",
        "host/a..b",
        "host/a:tag",
        "https://host/a",
        "host/a/",
        "host",
    ],
)
def test_what_no_registry_accepts_is_not_a_repository(name: str) -> None:
    with pytest.raises(InputError, match="is not HOST/REPOSITORY"):
        split_repository(name)


@pytest.mark.parametrize("named", [f":{TAGS[3]}", f"@sha256:{3:064x}"], ids=["tag", "digest"])
def test_the_image_that_a_platform_names_is_marked(
    named: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = {"auths": {server.address: {"auth": base64.b64encode(b"user:password").decode()}}}
    (tmp_path / "logins.json").write_text(json.dumps(logins))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "logins.json"))
    name = f"{server.address}/a/b"
    outputs = read_outputs(saved("aws-dev")["platform"] | {"registry": name, "image": name + named})
    places = destinations([NamedPlatform(outputs, Path("aws-dev"))], [])
    (listed,) = list_images(places, Access(server.authority))
    assert {row["tag"]: row["used"] for row in listed.as_json()} == {tag: tag == TAGS[3] for tag in TAGS}
    assert {tuple(row["platforms"]) for row in listed.as_json()} == {(outputs.name,)}


def test_a_credential_helper_of_docker_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker-credential-stand-in"
    program.write_text('#!/bin/sh\nread host\nprintf \'{"Username": "me", "Secret": "of %s"}\' "$host"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "absent"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"registry.example": "stand-in"}}))
    assert own_credentials("registry.example") == Credentials("me", "of registry.example")
    assert own_credentials("other.example") is None


@pytest.mark.parametrize("name", ["docker.io", "https://index.docker.io/v1/"])
def test_docker_hub_is_asked_at_its_api_with_the_login_of_each_tool(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"auths": {name: {"auth": USER.basic.removeprefix("Basic ")}}}
    (tmp_path / "login.json").write_text(json.dumps(login))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "login.json"))
    assert own_credentials("docker.io") == USER
    asked: list[str] = []

    def opened(request: urllib.request.Request, **_: Any) -> Any:
        asked.append(request.full_url)
        raise urllib.error.HTTPError(request.full_url, 404, "Not Found", Message(), None)

    repository = Repository("docker.io/team/training", USER)
    monkeypatch.setattr(repository, "_opener", SimpleNamespace(open=opened))
    assert repository.digest("cpu-1") == ""
    assert asked == ["https://registry-1.docker.io/v2/team/training/manifests/cpu-1"]
