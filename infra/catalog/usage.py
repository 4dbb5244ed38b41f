"""What a stack is assumed to use: traffic, logs and stored data, which no plan contains: usage.toml.

    internet_gb = 500                     # a month, out to the internet
    nat_gb = 2000                         # a month, through NAT gateways
    endpoint_gb = 0                       # a month, through interface or private endpoints
    logs_gb = 40                          # a month, ingested
    objects_gib = 20000                   # stored in buckets now
    objects_growth_gib_per_month = 1500   # added each month
    images_gib = 120                      # stored in registries
    files_gib = 0                         # stored in file systems that are billed by what they hold
    after_months = 6                      # the month that is priced, counted from now

A figure that is left out is 0. The same figures apply to both sides of a diff.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainfleet.errors import InputError, Problem
from trainfleet.pydantic_messages import explain


class Usage(BaseModel):
    """Assumptions on what a stack uses. Traffic and logs are GB a month, stored data is GiB."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    internet_gb: float = Field(0, ge=0)
    nat_gb: float = Field(0, ge=0)
    endpoint_gb: float = Field(0, ge=0)
    logs_gb: float = Field(0, ge=0)
    objects_gib: float = Field(0, ge=0)
    objects_growth_gib_per_month: float = Field(0, ge=0)
    images_gib: float = Field(0, ge=0)
    files_gib: float = Field(0, ge=0)
    after_months: float = Field(0, ge=0)

    def quantities(self) -> dict[str, tuple[str, float]]:
        """Return by row of prices.toml the field that states the quantity, and the quantity."""
        objects = self.objects_gib + self.objects_growth_gib_per_month * self.after_months
        return {
            "traffic-internet": ("internet_gb", self.internet_gb),
            "traffic-nat": ("nat_gb", self.nat_gb),
            "traffic-endpoint": ("endpoint_gb", self.endpoint_gb),
            "logs": ("logs_gb", self.logs_gb),
            "objects": ("objects_gib", objects),
            "images": ("images_gib", self.images_gib),
            "files": ("files_gib", self.files_gib),
        }


def read_usage(file: Path) -> Usage:
    """Read a usage.toml.

    Raises:
        InputError: the file cannot be read, is not TOML, or has an unknown or negative figure.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("cannot read the usage file", [Problem(str(file), str(error))]) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError("the usage file is not TOML", [Problem(str(file), str(error))]) from error
    try:
        usage = Usage.model_validate(document)
    except ValidationError as error:
        mistakes = [explain(each, Usage) for each in error.errors()]
        raise InputError(f"the usage file {file} has mistakes", mistakes) from error
    if usage.objects_growth_gib_per_month and not usage.after_months:
        raise InputError(
            f"the usage file {file} has mistakes",
            [
                Problem(
                    "objects_growth_gib_per_month",
                    "has no effect without `after_months`, the month that is priced",
                    "after_months = 6",
                )
            ],
        )
    return usage
