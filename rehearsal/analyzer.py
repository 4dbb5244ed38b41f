"""The executable `pulumi-analyzer-policy-python`: runs a CrossGuard policy pack in this environment's Python.

The official Pulumi ships a shell script for it; the Python packages ship only the module that the script starts. Signals of
a run that is being cancelled end it quietly.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys


def main() -> None:
    """Run `pulumi.policy` with the arguments the engine gave."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    # The engine adds the pack's runtime options (`-virtualenv=…`), which the module would take for its own.
    sys.argv = ["pulumi-analyzer-policy-python", *(argument for argument in sys.argv[1:] if not argument.startswith("-"))]
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` would have it
    runpy.run_module("pulumi.policy", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
