"""Prometheus gauges: `trainfleet_loss{run, workload, split}`, `trainfleet_tokens_per_second`,
`trainfleet_step`.

They are served from a port of rank 0's machine, or by Ray's node agents (as `ray_trainfleet_loss`) where a
cluster
scrapes Ray. A name can be registered only once in a process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from trainfleet.training.trackers import metrics_of

LABELS = ("run", "workload", "split")


class Prometheus:
    """The newest value of every metric."""

    def __init__(self, run: str, workload: str, where: Literal["ray", "off"] | int) -> None:
        self._labels = {"run": run, "workload": workload}
        self._gauges: dict[str, Any] = {}
        self._server: Any = None
        self._registry: Any = None
        if where != "ray":
            from prometheus_client import CollectorRegistry, start_http_server

            self._registry = CollectorRegistry()
            self._server, self._thread = start_http_server(int(where), registry=self._registry)

    def write_row(self, row: Mapping[str, Any]) -> None:
        self._set(str(row["kind"]), "step", float(row["step"]))
        for split, name, value in metrics_of(row):
            self._set(split, re.sub(r"\W", "_", name), value)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def _set(self, split: str, name: str, value: float) -> None:
        labels = self._labels | {"split": split}
        if self._registry is None:
            from ray.util.metrics import Gauge as RayGauge

            if name not in self._gauges:
                self._gauges[name] = RayGauge(
                    f"trainfleet_{name}", description=_describe(name), tag_keys=LABELS
                )
            self._gauges[name].set(value, tags=labels)
            return
        from prometheus_client import Gauge

        if name not in self._gauges:
            self._gauges[name] = Gauge(f"trainfleet_{name}", _describe(name), LABELS, registry=self._registry)
        self._gauges[name].labels(**labels).set(value)


def _describe(name: str) -> str:
    return f"{name.replace('_', ' ')} of a training run, newest value"
