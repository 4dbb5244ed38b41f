"""The executable `pulumi-analyzer-policy-python`: runs a CrossGuard policy pack with this Python environment.

In a rehearsal without `--network`, the pack's process has none, like the program's (see isolation.py).

The official Pulumi distribution ships a shell script for this; the Python packages ship only the module that
the script starts. SIGINT and SIGTERM end the process without output.
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

from trainfleet.rehearsal.engine import isolation


def once(function: Callable[[Any], Any], mark: Callable[[Any], Any]) -> Callable[..., Any]:
    """Cache a function by `mark` of its argument. Calls with more arguments are not cached."""
    kept: dict[Any, tuple[Any, Any]] = {}

    def ask(value: Any, *more: Any) -> Any:
        if more:
            return function(value, *more)
        key = mark(value)
        if key not in kept:
            kept[key] = (value, function(value))  # keep the value alive, because its key may be id(value)
        return kept[key][1]

    return ask


def read_once() -> None:
    """Deserialize each resource once, not once per policy: that took 90% of the time of a pack of 90."""
    policy: Any = importlib.import_module("pulumi_policy.policy")
    read = policy.json_format.MessageToDict
    policy.json_format = SimpleNamespace(
        MessageToDict=once(read, lambda message: message.SerializeToString(deterministic=True))
    )
    policy.deserialize_properties = once(policy.deserialize_properties, id)
    policy.unknown_checking_proxy = once(policy.unknown_checking_proxy, id)


def main() -> None:
    """Run `pulumi.policy` with the engine's arguments."""
    # No Python handlers: after printing its port the main thread sleeps for a day, and a Python handler whose
    # signal arrives just before that sleep would run only after it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # Drop the pack's runtime options (`-virtualenv=…`), which the engine adds and the module does not accept.
    sys.argv = [
        "pulumi-analyzer-policy-python",
        *(argument for argument in sys.argv[1:] if not argument.startswith("-")),
    ]
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - the same entry as `python -m` adds
    read_once()
    if os.environ.get(isolation.MARK):  # a rehearsal without --network
        isolation.hide_other_processes()
        isolation.without_network()
    runpy.run_module("pulumi.policy", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
