"""Decides which requests the console answers, before any page is computed, and adds the headers of responses.

A page of another site must neither read the console nor make it work: browsers send requests of any page to
loopback addresses, and a name of any site can resolve to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainfleet.ui.access import WINDOW_S, Access

LONGEST_TARGET = 4096
"""Bytes of a path with its query."""
LARGEST_HEAD = 16 * 1024
"""Bytes of the headers. uvicorn limits only a head that arrives in parts."""
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refusal(NamedTuple):
    """A response instead of a page: its status, and what would be right."""

    status: int
    title: str
    text: str
    headers: Mapping[str, str] = {}


class Guard:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, access: Access, port: int) -> None:
        self.app, self.access, self.port = app, access, port
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.cookie = f"trainfleet_ui_{port}"
        """Cookies are shared by all ports of a host."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        response = self._answer(scope)
        await (response or self.app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """A refusal or a redirect; None if a page may answer."""
        headers = Headers(scope=scope)
        if refusal := self._of_another_site(headers) or _malformed(scope, headers):
            return _refused(refusal)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if tokens:
            if not self.access.knows_token(tokens[-1]):
                return _refused(self._rejected())
            return self._logged_in(scope, [each for each in query if each[0] != "token"])
        if not self.access.knows_session(self._session(headers)):
            return _refused(self._rejected())
        return None

    def _of_another_site(self, headers: Headers) -> Refusal | None:
        if headers.getlist("host") not in [[host] for host in self.hosts]:
            return Refusal(421, "wrong host", f"Open http://127.0.0.1:{self.port} instead.")
        origin = headers.get("origin")
        foreign = origin is not None and origin.removeprefix("http://") not in self.hosts
        if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            text = "The request comes from another site. Copy the address into the address bar instead."
            return Refusal(403, "cross-site request", text)
        return None

    def _rejected(self) -> Refusal:
        if self.access.blocked:
            text = f"Too many wrong tokens. Try again after {WINDOW_S:.0f} seconds."
            return Refusal(429, "too many attempts", text, {"Retry-After": f"{WINDOW_S:.0f}"})
        text = "Open the address that `trainfleet ui` printed: it has the token."
        return Refusal(401, "no access", text)

    def _session(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _logged_in(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """Set the cookie, and remove the token from the address: it must not stay in the history."""
        # NOTE: one slash, because `//host/` is the address of another server.
        target = "/" + scope.get("raw_path", b"/").decode("latin-1").lstrip("/\\")
        response = RedirectResponse(f"{target}?{urlencode(query)}" if query else target, status_code=303)
        response.set_cookie(self.cookie, self.access.session, path="/", httponly=True, samesite="strict")
        return response


def _malformed(scope: Scope, headers: Headers) -> Refusal | None:
    if scope["method"] not in ("GET", "HEAD"):
        text = "The console only reads: use GET or HEAD."
        return Refusal(405, "method not allowed", text, {"Allow": "GET, HEAD"})
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return Refusal(413, "a body is not accepted", "Send the request without a body.")
    if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > LONGEST_TARGET:
        return Refusal(414, "address too long", f"At most {LONGEST_TARGET} bytes.")
    if not (scope.get("raw_path", b"") + scope["query_string"]).isascii():
        return Refusal(400, "malformed address", "Encode other characters than ASCII, as in %C3%A4.")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEAD:
        return Refusal(431, "headers too large", f"At most {LARGEST_HEAD} bytes.")
    return None


def _refused(refusal: Refusal) -> Response:
    status, title, text, headers = refusal
    body = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><h1>{status}: {escape(title)}</h1><p>{escape(text)}</p></html>"
    )
    return HTMLResponse(body, status, headers={**headers, "Connection": "close"})
