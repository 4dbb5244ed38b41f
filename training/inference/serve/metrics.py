"""Metrics of a served model in Prometheus' text format, over all replicas of a machine.

A request for /metrics reaches one replica, so each writes its counts to a file that all read. Counters only
grow, so the file of an ended replica stays.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WRITE_EVERY_S = 1.0


class ServeMetrics:
    """The metrics of one replica."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name, self.folder = name, folder
        self.codes: Counter[str] = Counter()
        self.buckets: Counter[str] = Counter()
        self.seconds = 0.0
        self.rows = self.batches = 0
        self._written = 0.0

    def request(self, status: int, seconds: float) -> None:
        """Record an answered request."""
        self.codes[str(status)] += 1
        self.seconds += seconds
        self.buckets[str(next((bucket for bucket in BUCKETS if seconds <= bucket), "+Inf"))] += 1
        if time.monotonic() - self._written > WRITE_EVERY_S:
            self._write()

    def batch(self, rows: int) -> None:
        """Record a forward pass."""
        self.rows, self.batches = self.rows + rows, self.batches + 1

    def text(self, waiting: int) -> str:
        """The metrics of all replicas; `waiting` is the length of this one's queue, in rows."""
        self._write()
        parts = [self._state()]
        for path in sorted(self.folder.glob("replica-*.json")) if self.folder is not None else ():
            with contextlib.suppress(OSError, ValueError):
                state = json.loads(path.read_text(encoding="utf-8"))
                if state["name"] != self.name:
                    parts.append(state)
        codes: Counter[str] = Counter()
        buckets: Counter[str] = Counter()
        for part in parts:
            codes.update(part["codes"])
            buckets.update(part["buckets"])
        lines = ["# TYPE trainfleet_serve_requests_total counter"]
        lines += [
            f'trainfleet_serve_requests_total{{code="{code}"}} {count}'
            for code, count in sorted(codes.items())
        ]
        lines.append("# TYPE trainfleet_serve_request_seconds histogram")
        total = 0
        for bucket in (*map(str, BUCKETS), "+Inf"):
            total += buckets[bucket]
            lines.append(f'trainfleet_serve_request_seconds_bucket{{le="{bucket}"}} {total}')
        lines += [
            f"trainfleet_serve_request_seconds_sum {sum(part['seconds'] for part in parts):.6f}",
            f"trainfleet_serve_request_seconds_count {total}",
        ]
        for name in ("rows", "batches"):
            lines += [
                f"# TYPE trainfleet_serve_{name}_total counter",
                f"trainfleet_serve_{name}_total {sum(part[name] for part in parts)}",
            ]
        lines += [
            "# TYPE trainfleet_serve_waiting_rows gauge",
            f'trainfleet_serve_waiting_rows{{replica="{self.name}"}} {waiting}',
        ]
        return "\n".join(lines) + "\n"

    def _state(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "codes": dict(self.codes),
            "buckets": dict(self.buckets),
            "seconds": self.seconds,
            "rows": self.rows,
            "batches": self.batches,
        }

    def _write(self) -> None:
        self._written = time.monotonic()
        if self.folder is not None:
            with contextlib.suppress(TrainfleetError):  # a full disk must not fail requests
                write_whole(self.folder / f"replica-{self.name}.json", json.dumps(self._state()))
