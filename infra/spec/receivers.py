"""Who gets the platform's alerts: the receivers of Alertmanager."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainfleet.infra.spec.part import Email, Name, Part

SecretName = Annotated[
    str, Field(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", examples=["alert-receivers"])
]
NOBODY = "nobody"
"""The receiver of what no other gets."""
Severity = Literal["critical", "warning", "info"]


class Receiver(Part):
    """Sends alerts to one place. Its address or key is in a Secret that you create."""

    name: Name = Field(examples=["ml-team"])
    """Name of the receiver."""
    kind: Literal["slack", "webhook", "pagerduty", "email"]
    """What it sends to."""
    secret: SecretName = ""
    """Secret in the namespace `monitoring`, whose key `value` is the URL (slack, webhook), the integration
    key (pagerduty) or the password (email).
    """
    severities: tuple[Severity, ...] = Field(("critical", "warning"), min_length=1)
    """The alerts that it gets, by severity."""
    channel: str = Field("", examples=["#ml-alerts"])
    """slack: the channel, if it is another one than the URL's."""
    to: tuple[Email, ...] = Field((), examples=[["ml-platform@example.com"]])
    """email: the recipients."""
    sender: Email | None = None
    """email: the address that sends."""
    smarthost: str = Field("", pattern=r"^([A-Za-z0-9.-]+:[0-9]{1,5})?$", examples=["smtp.example.com:587"])
    """email: server and port, which network policies then open."""
    username: str = ""
    """email: the login, whose password is in `secret`. Empty: the server needs none."""
