"""Who may read the console, and which requests it refuses: each attack is tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.ui.conftest import HOST, PORT, MakeRun
from trainfleet.ui.access import WINDOW_S, WRONG_PER_WINDOW, Access
from trainfleet.ui.guard import Guard


def test_the_token_becomes_a_cookie_and_leaves_the_address(guard: Guard, stranger: TestClient) -> None:
    assert stranger.get("/").status_code == 401
    answer = stranger.get(f"/cost?by=month&token={guard.access.token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/cost?by=month")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert guard.access.token not in answer.headers["set-cookie"], "the cookie must not be the token"
    assert stranger.get("/cost?by=month").status_code == 200


@pytest.mark.parametrize("token", ["", "x", "é", "0" * 43, "%00"])
def test_a_wrong_token_is_rejected(stranger: TestClient, token: str) -> None:
    answer = stranger.get("/", params={"token": token})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_a_wrong_token_does_not_log_out_or_in(client: TestClient, guard: Guard) -> None:
    assert client.get("/?token=wrong").status_code == 401
    client.cookies.clear()
    assert client.get("/", headers={"Cookie": f"{guard.cookie}={guard.access.token}"}).status_code == 401


def test_nothing_is_compared_after_many_wrong_tokens(guard: Guard, client: TestClient) -> None:
    now = [0.0]
    guard.access.clock = lambda: now[0]
    stranger = TestClient(guard, base_url=HOST, follow_redirects=False)
    codes = [stranger.get("/?token=wrong").status_code for _ in range(WRONG_PER_WINDOW + 1)]
    assert set(codes[:-2]) == {401}
    assert codes[-1] == 429
    blocked = stranger.get(f"/?token={guard.access.token}")
    assert (blocked.status_code, blocked.headers["retry-after"]) == (429, "60")
    assert client.get("/").status_code == 200, "users who have logged in stay logged in"
    now[0] = WINDOW_S + 1
    assert stranger.get(f"/?token={guard.access.token}").status_code == 303


def test_wrong_cookies_count_as_attempts(guard: Guard, stranger: TestClient) -> None:
    for _ in range(WRONG_PER_WINDOW):
        stranger.get("/", headers={"Cookie": f"{guard.cookie}=wrong"})
    assert stranger.get("/", headers={"Cookie": f"{guard.cookie}=wrong"}).status_code == 429


def test_the_token_for_the_browser_works_once(guard: Guard, stranger: TestClient) -> None:
    opening = guard.access.opening
    assert stranger.get(f"/?token={opening}").status_code == 303
    assert (
        TestClient(guard, base_url=HOST, follow_redirects=False).get(f"/?token={opening}").status_code == 401
    )
    assert stranger.get("/?token=").status_code == 401, "the used one is empty, and an empty one is wrong"


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(
        "hmac.compare_digest", lambda one, other: compared.append((one, other)) or one == other
    )
    access = Access()
    assert access.knows_token(access.token)
    assert access.knows_session(access.session)
    assert {access.token.encode(), access.session.encode()} <= {other for _, other in compared}


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1.evil.example:{PORT}",
        "",
        f"[::1]:{PORT}",
    ],
)
def test_another_host_is_refused_even_with_the_cookie(client: TestClient, host: str) -> None:
    """DNS rebinding: a site's name resolves to 127.0.0.1."""
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 421
    assert "Runs" not in answer.text


def test_two_hosts_are_refused(guard: Guard, client: TestClient) -> None:
    answer = client.get("/", headers=[("Host", f"127.0.0.1:{PORT}"), ("Host", "evil.example")])
    assert answer.status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{PORT + 1}"},
        {"Origin": f"https://127.0.0.1:{PORT}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_request_of_another_site_is_refused_even_with_the_token(
    guard: Guard, client: TestClient, headers: dict[str, str]
) -> None:
    assert client.get("/", headers=headers).status_code == 403
    answer = client.get(f"/?token={guard.access.token}", headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_its_own_pages_and_typed_addresses_are_answered(client: TestClient) -> None:
    for headers in ({"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": HOST}):
        assert client.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_only_get_and_head_are_answered(client: TestClient, method: str) -> None:
    answer = client.request(method, "/")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_head_has_no_body(client: TestClient) -> None:
    answer = client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_body_is_refused(client: TestClient) -> None:
    assert client.request("GET", "/", content=b"x" * 10).status_code == 413
    assert client.request("GET", "/", content=iter([b"x" * 10])).status_code == 413


def test_a_long_address_is_refused(client: TestClient) -> None:
    assert client.get("/?text=" + "x" * 5000).status_code == 414
    assert client.get("/runs/0/" + "x" * 5000).status_code == 414


def test_every_response_has_the_headers(client: TestClient, stranger: TestClient, a_run: MakeRun) -> None:
    a_run("night")
    for answer in (client.get("/"), client.get("/runs/0/night"), client.get("/none"), stranger.get("/cost")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("target", ["//evil.example/", "/\\evil.example/", "/%2F%2Fevil.example"])
def test_a_login_redirects_to_no_other_server(guard: Guard, stranger: TestClient, target: str) -> None:
    answer = stranger.get(f"{HOST}{target}?token={guard.access.token}")
    location = answer.headers["location"]
    assert location.startswith("/")
    assert location[1:2] not in ("/", "\\")


def test_the_page_needs_no_other_server(client: TestClient, a_run: MakeRun) -> None:
    a_run("night")
    for address in ("/", "/runs/0/night", "/static/ui.css", "/static/ui.js"):
        text = client.get(address).text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text


def test_static_files_are_those_of_the_package(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/static/ui.css").headers["content-type"].startswith("text/css")
    for name in ("../app.py", "..%2Fapp.py", "%2e%2e%2fserver.py", "ui.css%00", "../../../etc/passwd"):
        assert client.get(f"/static/{name}").status_code == 404
