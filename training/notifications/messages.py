"""What a message says, as the JSON of a webhook (Standard Webhooks) or as text and blocks for Slack. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

SIGNING_KEY_PREFIX = "whsec_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64
"""Of a signing key (standard-webhooks/spec, "Signature scheme")."""
MAX_TEXT = 2900
"""Characters. Slack rejects a section of more than 3000 (docs.slack.dev, section block)."""
ICONS = {
    "start": ":arrow_forward:",
    "failure": ":red_circle:",
    "preemption": ":warning:",
    "end": ":white_check_mark:",
    "budget": ":moneybag:",
    "test": ":wave:",
}


@dataclass(frozen=True)
class Message:
    """One message of a run.

    Attributes:
        id: equal for every attempt to send it, so that a receiver can discard a second one.
        event: `start`, `failure`, `preemption`, `end`, `budget`, or `test`.
        run: the run's name.
        launch: identifies the launch.
        text: one sentence for people.
        details: plain values for programs, such as `step` and `storage`.
        at: when it happened, in UTC.
    """

    id: str
    event: str
    run: str
    launch: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def webhook_body(message: Message) -> bytes:
    """The JSON that a webhook gets."""
    data = {
        "id": message.id,
        "run": message.run,
        "launch": message.launch,
        "text": message.text[:MAX_TEXT],
        **message.details,
    }
    document = {"type": f"run.{message.event}", "timestamp": message.at, "data": data}
    return json.dumps(document, default=str).encode()


def slack_body(message: Message) -> bytes:
    """The JSON that an incoming webhook of Slack gets: text for the notification, blocks for the channel."""
    title = f"{message.run}: {message.event}"
    facts = " · ".join(f"{name} {_escaped(value)}" for name, value in message.details.items() if value != "")
    section = f"{ICONS[message.event]} *{_escaped(title)}*\n{_escaped(message.text)}"[:MAX_TEXT]
    blocks: list[dict[str, Any]] = [{"type": "section", "text": {"type": "mrkdwn", "text": section}}]
    if facts:
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": facts[:MAX_TEXT]}]})
    document = {"text": f"{_escaped(title)}: {_escaped(message.text)}"[:MAX_TEXT], "blocks": blocks}
    return json.dumps(document).encode()


def decoded_key(text: str) -> bytes:
    """A signing key: base64, with or without the prefix `whsec_`.

    Raises:
        ValueError: it is not, or has less than 24 or more than 64 bytes. The message does not show it.
    """
    try:
        key = base64.b64decode(text.strip().removeprefix(SIGNING_KEY_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"has {len(key)} bytes, not {MIN_KEY_BYTES} to {MAX_KEY_BYTES}")
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature` (standard-webhooks/spec): HMAC-SHA256 of id, time and body."""
    signed = b".".join([message_id.encode(), str(timestamp).encode(), body])
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _escaped(value: Any) -> str:
    """The three characters that Slack's mrkdwn reserves (docs.slack.dev, formatting message text)."""
    return str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
