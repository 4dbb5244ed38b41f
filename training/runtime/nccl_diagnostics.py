"""NCCL's flight recorder and heartbeat: a collective that times out writes which rank is missing in it.

NCCL's own watchdog writes `nccl_trace_rank_N` to the folder for temporary files of each rank's machine. If
the hang watch ends a rank first, the rank stores the same below `diagnostics` in the run's folder or URL.
`torchfrtrace` reads both. Source: "Flight Recorder for Debugging Stuck Jobs" of PyTorch's documentation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainfleet.training.stores import Store

VARIABLES: Mapping[str, str] = {
    "TORCH_FR_BUFFER_SIZE": "2000",  # collectives of each rank that are recorded
    "TORCH_FR_DUMP_ON_TIMEOUT": "true",
    "TORCH_NCCL_ENABLE_MONITORING": "1",  # ends a process whose NCCL watchdog is stuck
}


def enable() -> None:
    """Set the variables, before the process group is made. Those that are set already stay."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)


FOLDER = "diagnostics"
RECORD_S = 10.0


def store_trace(store: Store, rank: int, backend: str = "nccl") -> bool:
    """Store what this rank's collectives did, for `torchfrtrace FOLDER`; whether that took at most RECORD_S.

    Stores nothing if the recorder is off. A driver or a store that does not respond is not waited for.

    Args:
        store: of the run's diagnostics.
        rank: this process.
        backend: whose collectives. Each backend has its own recorder.
    """

    def record() -> None:
        import torch._C._distributed_c10d as c10d

        nccl = backend == "nccl"
        trace = c10d._dump_nccl_trace() if nccl else c10d._dump_fr_trace(backend=backend)  # type: ignore[attr-defined]  # missing from the stubs
        store.put(f"nccl_trace_rank_{rank}", trace)

    if not int(os.environ.get("TORCH_FR_BUFFER_SIZE", "0")):
        return True
    recorder = threading.Thread(target=record, daemon=True, name="trace")
    recorder.start()
    recorder.join(RECORD_S)
    return not recorder.is_alive()
