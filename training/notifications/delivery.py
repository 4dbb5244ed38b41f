"""Send a message to one address. The address is a secret: no error, event or log here contains it."""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from trainfleet import __version__
from trainfleet.errors import Problem
from trainfleet.training.notifications.messages import (
    Message,
    decoded_key,
    signature,
    slack_body,
    webhook_body,
)
from trainfleet.training.recipe.schema import Notifications

TIMEOUT_S = 5.0
"""Of a connection, and of each wait for an answer."""
WAITS_S = (1.0, 4.0, 16.0)
"""Before the second and each further attempt."""
LONGEST_WAIT_S = 60.0
"""How long a server may ask to wait (Retry-After)."""
RETRIED = (408, 425, 429)
"""Besides 5xx: what a server answers that does not want the message now."""
CA_BUNDLE = "AWS_CA_BUNDLE"
"""A private CA that the run trusts for its store is also trusted here, in addition to the system's."""


@dataclass(frozen=True)
class Endpoint:
    """An address that gets messages.

    Attributes:
        key: the recipe key that names its variable.
        variable: the variable with its URL.
        url: the URL, a secret.
        kind: the format of its messages.
        signing_key: signs the messages; None: they are not signed.
    """

    key: str
    variable: str
    url: str = field(repr=False)
    kind: Literal["webhook", "slack"]
    signing_key: bytes | None = field(default=None, repr=False)

    def request(self, message: Message) -> urllib.request.Request:
        """The request of a message. The signature contains the time, so each attempt has its own."""
        body = webhook_body(message) if self.kind == "webhook" else slack_body(message)
        headers = {"Content-Type": "application/json", "User-Agent": f"trainfleet/{__version__}"}
        if self.kind == "webhook":
            now = int(time.time())
            headers |= {"webhook-id": message.id, "webhook-timestamp": str(now)}
            if self.signing_key is not None:
                headers["webhook-signature"] = signature(self.signing_key, message.id, now, body)
        return urllib.request.Request(self.url, body, headers, method="POST")


def variables(config: Notifications) -> dict[str, str]:
    """The variables that a recipe names, by recipe key."""
    named = {
        "notifications.webhook": config.webhook,
        "notifications.slack": config.slack,
        "notifications.signing_key": config.signing_key,
    }
    return {key: name for key, name in named.items() if name is not None}


def endpoints(config: Notifications, env: Mapping[str, str]) -> tuple[list[Endpoint], list[Problem]]:
    """The addresses in the environment, and what is missing or not valid. No problem contains a value."""
    problems: dict[str, Problem] = {}
    for key, name in variables(config).items():
        if not env.get(name):
            fix = f"export {name}=…, or a secret of the platform or of the launch"
            problems[key] = Problem(key, f"the variable {name} is not set", fix)
        elif key != "notifications.signing_key" and (what := url_fault(env[name])):
            problems[key] = Problem(key, f"the value of {name} {what}", "an https:// URL")
    signing: bytes | None = None
    if config.signing_key and "notifications.signing_key" not in problems:
        try:
            signing = decoded_key(env[config.signing_key])
        except ValueError as error:
            what = f"the value of {config.signing_key} {error}"
            fix = "openssl rand -base64 32"
            problems["notifications.signing_key"] = Problem("notifications.signing_key", what, fix)
    found = []
    # NOTE: without its key, a webhook gets nothing: unsigned messages would look like someone else's.
    unsigned = "notifications.signing_key" in problems
    if config.webhook and "notifications.webhook" not in problems and not unsigned:
        url = env[config.webhook]
        found.append(Endpoint("notifications.webhook", config.webhook, url, "webhook", signing))
    if config.slack and "notifications.slack" not in problems:
        found.append(Endpoint("notifications.slack", config.slack, env[config.slack], "slack"))
    return found, list(problems.values())


def url_fault(url: str) -> str:
    """What is wrong with an address; empty for a valid one. Plain HTTP is for this machine only."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:
        return "has no valid host name" if isinstance(error, UnicodeError) else "is not a URL"
    if any(letter <= " " or letter == "\x7f" or not letter.isascii() for letter in url):
        return "contains spaces or characters that a URL does not have"
    if parts.scheme not in ("https", "http") or not host:
        return "is not an https:// URL"
    if parts.username is not None:
        return "contains a user name, which is not sent"
    if parts.scheme == "http" and not _is_loopback(host):
        return "is plain http, which anyone on the way could read"
    return ""


def deliver(
    endpoint: Endpoint,
    message: Message,
    wait: Callable[[float], Any] = time.sleep,
    waits_s: Sequence[float] = WAITS_S,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Send a message, with retries; returns why it was not delivered, empty if it was.

    Args:
        endpoint, message: where and what.
        wait: called with the seconds before each further attempt; True ends the attempts.
        waits_s: those seconds.
        timeout_s: of a connection, and of each wait for an answer.
    """
    for number, pause in enumerate([*waits_s, None], 1):
        why, retry_s = _attempt(endpoint, message, timeout_s)
        if not why:
            return ""
        if retry_s is None or pause is None or wait(min(max(pause, retry_s), LONGEST_WAIT_S)):
            attempts = f" after {number} attempts" if number > 1 else ""
            return why + attempts
    raise AssertionError("the last attempt returns")


def _attempt(endpoint: Endpoint, message: Message, timeout_s: float) -> tuple[str, float | None]:
    """One attempt: why it failed (empty: it did not), and the least seconds to the next; None: no retry."""
    try:
        with _opener(endpoint.url).open(endpoint.request(message), timeout=timeout_s) as response:
            status = response.status
        return ("", None) if 200 <= status < 300 else (f"the server answers {status}", None)
    except urllib.error.HTTPError as error:
        error.close()
        if 300 <= error.code < 400:
            return f"the server answers {error.code}, a redirect, which is not followed", None
        retried = error.code in RETRIED or error.code >= 500
        return f"the server answers {error.code}", _retry_after(error) if retried else None
    except (OSError, http.client.HTTPException) as error:
        return _reason(error), 0.0


def _reason(error: Exception) -> str:
    """A connection's error in words that cannot contain the address."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "the server does not answer in time"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({cause.verify_message})"
    if isinstance(cause, OSError) and cause.strerror:
        return f"no connection ({cause.strerror})"
    return f"no connection ({type(cause).__name__})"


def _retry_after(error: urllib.error.HTTPError) -> float:
    """The seconds of Retry-After; a date, or nothing, is 0."""
    text = (error.headers.get("Retry-After") or "").strip()
    return float(text) if re.fullmatch(r"[0-9]+", text) else 0.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could send the message, and the token in its URL, to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""
        return


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Follows no redirect, and asks no proxy for this machine's own addresses."""
    if url.startswith("http:"):
        return urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
    context = ssl.create_default_context()
    if os.environ.get(CA_BUNDLE):
        context.load_verify_locations(os.environ[CA_BUNDLE])
    return urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
