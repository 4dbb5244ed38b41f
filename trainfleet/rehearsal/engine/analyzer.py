"""The executable `pulumi-analyzer-policy-python`: runs a CrossGuard policy pack in this environment's Python.

The official Pulumi ships a shell script for it; the Python packages ship only the module that the script
starts. Signals of a run that is being cancelled end it quietly.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def once(function: Callable[[Any], Any], mark: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function, asked once for each value: values with the same mark are the same. With more arguments,
    asked each time.
    """
    kept: dict[Any, tuple[Any, Any]] = {}

    def ask(value: Any, *more: Any) -> Any:
        if more:
            return function(value, *more)
        key = mark(value)
        if key not in kept:
            kept[key] = (value, function(value))  # the value too: a mark may be its identity
        return kept[key][1]

    return ask


def read_once() -> None:
    """Read each resource once. The SDK does it for every policy, and that was nine tenths of what a pack of
    ninety costs.
    """
    policy: Any = importlib.import_module("pulumi_policy.policy")
    read = policy.json_format.MessageToDict
    policy.json_format = SimpleNamespace(
        MessageToDict=once(read, lambda message: message.SerializeToString(deterministic=True))
    )
    policy.deserialize_properties = once(policy.deserialize_properties, id)
    policy.unknown_checking_proxy = once(policy.unknown_checking_proxy, id)


def main() -> None:
    """Run `pulumi.policy` with the arguments the engine gave."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    # The engine adds the pack's runtime options (`-virtualenv=…`), which the module would take for its own.
    sys.argv = [
        "pulumi-analyzer-policy-python",
        *(argument for argument in sys.argv[1:] if not argument.startswith("-")),
    ]
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` would have it
    read_once()
    runpy.run_module("pulumi.policy", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
