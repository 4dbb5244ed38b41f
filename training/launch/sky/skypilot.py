"""SkyPilot itself: its version, parser and YAML. It takes seconds to import, so functions do it."""

from __future__ import annotations

import copy
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.training.launch.sky.event_stream import without_colors

PRIVATE_KEY = "_cluster_config_overrides"
"""The key of one alternative's own pod settings (`sky/utils/schemas.py`, 0.14.1)."""
DOWN_TIMEOUT_S = 120.0
"""How long to wait for the deletion of pods, so that the same command can run again at once."""
VERSION = "0.14.1"
"""The SkyPilot that configuration and tasks are written for and tested with."""


def require_skypilot() -> None:
    """Check that SkyPilot is installed, without importing it.

    Raises:
        MissingToolError: it is not, or in an unsupported version.
    """
    install = f"pip install 'skypilot[kubernetes]=={VERSION}'"
    try:
        found = metadata.version("skypilot")
    except metadata.PackageNotFoundError as error:
        problem = Problem("skypilot", "is missing", install)
        raise MissingToolError("SkyPilot is not installed", [problem]) from error
    if found.split(".")[:2] != VERSION.split(".")[:2]:
        what = f"is {found}; Trainfleet supports {VERSION}"
        raise MissingToolError("unsupported SkyPilot version", [Problem("skypilot", what, install)])


def set_client_options(*, kept: bool) -> None:
    """Set the variables of SkyPilot's client that the user has not set; it sends them with each request.

    Args:
        kept: whether the run uses a cluster that outlives it. SkyPilot then reaches its process in the head's
            pod through gRPC, and not by starting Python there for each call, which takes 9 s of a launch. It
            falls back to that where gRPC fails (`is_grpc_enabled_with_flag`, 0.14.1).
    """
    os.environ.setdefault("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    if kept:
        os.environ.setdefault("SKYPILOT_ENABLE_GRPC", "1")


class _PlainStderr(io.TextIOBase):
    """The stderr of the moment, for text without escape codes."""

    def write(self, text: str) -> int:
        sys.stderr.write(without_colors(text))
        return len(text)


def messages_to_stderr() -> None:
    """Write what SkyPilot's client logs to stderr, without escape codes. Call it after the import.

    By default it colors its messages, also in a file, and writes them to stdout, where `--json` has JSON
    only (`sky/sky_logging.py`, 0.14.1).
    """
    for handler in logging.getLogger("sky").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(_PlainStderr())


def is_refusal(error: Exception) -> bool:
    """Whether an error is SkyPilot's answer to a request, or the lack of one, and no mistake of this program.

    The client raises again what its server raised: SkyPilot's own errors, built-in ones, and for a type that
    it does not know a plain Exception (`sky/exceptions.py`, `deserialize_exception`). Those of its
    connections are requests' and Python's, which are OSErrors.
    """
    return (
        type(error) is Exception
        or type(error).__module__ == "sky.exceptions"
        or isinstance(error, (OSError, RuntimeError, ValueError))
    )


def lines_of(error: Exception) -> list[str]:
    """The lines of an error of SkyPilot, which may color them for a terminal; its type if it has none."""
    lines = [line for line in without_colors(str(error)).splitlines() if line.strip()]
    return lines or [type(error).__name__]


def wait_for(sky: Any, request: Callable[[], Any]) -> str:
    """Wait for the end of a request that deletes something, with a limit; why it failed, or nothing."""
    failed: list[str] = []

    def wait() -> None:
        try:
            sky.get(request())
        except Exception as error:  # noqa: BLE001 - SkyPilot passes on what its connections raise
            failed.append(lines_of(error)[0])

    waiter = threading.Thread(target=wait, daemon=True, name="sky-down")
    waiter.start()
    waiter.join(DOWN_TIMEOUT_S)
    return next(iter(failed), "")


def parse(document: Mapping[str, Any]) -> Any:
    """The `sky.Task` of a document.

    Raises:
        TrainfleetError: SkyPilot rejects it.
    """
    import sky

    try:
        try:
            return sky.Task.from_yaml_config(copy.deepcopy(dict(document)))
        except Exception as error:
            if PRIVATE_KEY not in str(error):
                raise
            return sky.Task.from_yaml_config(with_public_keys(document))
    except Exception as error:
        raise TrainfleetError(f"SkyPilot rejects the task: {lines_of(error)[0]}") from error


def with_public_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """The task without SkyPilot's private key, for a version that no longer has it.

    Only the private key gives each alternative pod settings of its own; with the public one, `config`, the
    task is left with its first alternative.
    """
    found = copy.deepcopy(dict(document))
    resources = found["resources"].get("ordered", [found["resources"]])[0]
    config = resources.pop(PRIVATE_KEY, {})
    return {**found, "resources": resources, "config": config}


def to_yaml(document: Mapping[str, Any]) -> str:
    """A task as YAML, with scripts as blocks of lines."""
    import yaml

    class BlockDumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - no anchors for equal tolerations
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    BlockDumper.add_representer(str, text)
    return yaml.dump(dict(document), Dumper=BlockDumper, sort_keys=False, width=150)
