"""Part: the base class of the spec's parts, and the types of their values."""

from __future__ import annotations

from datetime import date
from ipaddress import IPv4Network
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _written_range(value: object) -> object:
    """Accept only text: IPv4Network would read numbers and bytes as packed addresses."""
    if not isinstance(value, str | IPv4Network):
        raise PydanticCustomError("ip_v4_network", "must be an IPv4 range")
    return value


def _written_day(value: object) -> object:
    """Accept a date as Pulumi's engine passes it, in Go's format: 2027-01-31 00:00:00 +0000 UTC."""
    return value.removesuffix(" 00:00:00 +0000 UTC") if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$")]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")]
Range = Annotated[IPv4Network, BeforeValidator(_written_range)]
Day = Annotated[date, BeforeValidator(_written_day)]
Share = Annotated[float, Field(gt=0, le=10)]
STORE_PORT = 443
"""The port of the clouds' object stores."""


class Part(BaseModel):
    """A part of the spec: immutable, without undeclared keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
