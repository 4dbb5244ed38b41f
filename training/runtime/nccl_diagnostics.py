"""NCCL's flight recorder and heartbeat: a collective that times out writes which rank is missing in it.

The files are `nccl_trace_rank_N` in the folder for temporary files of each rank's machine; `torchfrtrace`
reads them. Source: "Flight Recorder for Debugging Stuck Jobs" of PyTorch's documentation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    "TORCH_FR_BUFFER_SIZE": "2000",  # collectives of each rank that are recorded
    "TORCH_FR_DUMP_ON_TIMEOUT": "true",
    "TORCH_NCCL_ENABLE_MONITORING": "1",  # ends a process whose NCCL watchdog is stuck
}


def enable() -> None:
    """Set the variables, before the process group is made. Those that are set already stay."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
