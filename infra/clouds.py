"""The clouds a platform can stand on: one line each. A new cloud is a folder `infra/<cloud>/` and a line
here.

A cloud's SDK is imported only when a stack on it is built, so an adopter installs the one they use.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.infra.platform import Platform
from trainfleet.infra.spec.schema import Cloud, PlatformSpec

Builder = Callable[[PlatformSpec], Platform]

CLOUDS: dict[Cloud, str] = {
    Cloud.AWS: "trainfleet.infra.aws.build",
    Cloud.GCP: "trainfleet.infra.gcp.build",
    Cloud.AZURE: "trainfleet.infra.azure.build",
    Cloud.LOCAL: "trainfleet.infra.local.build",
}
"""Where each cloud's `build(spec) -> Platform` is."""


def builder(cloud: Cloud) -> Builder:
    """The function that builds a platform on this cloud.

    Raises:
        InputError: a cloud that comes with a later release.
        MissingToolError: the cloud's SDK is not installed.
    """
    if cloud not in CLOUDS:
        raise InputError(
            "the platform cannot be built",
            [Problem("cloud", f"{cloud} comes with a later release", f"now: {', '.join(CLOUDS)}")],
        )
    try:
        return cast(Builder, import_module(CLOUDS[cloud]).build)
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("pulumi_"):
            raise
        raise MissingToolError(
            f"{missing.name} is not installed", [Problem("", "", f'pip install "trainfleet[{cloud}]"')]
        ) from missing
