"""MLflow: one MLflow run per run folder, which a resumed run continues.

The address is a tracking URI (`http://...`, `sqlite:///file.db`, a folder). Credentials are MLflow's own
variables, as are the limits of its requests: MLFLOW_HTTP_REQUEST_TIMEOUT and MLFLOW_HTTP_REQUEST_MAX_RETRIES.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainfleet.training.trackers import metrics_of

ID_FILE = "mlflow-run-id"
EXPERIMENT = "trainfleet"
TIMEOUT, RETRIES = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
TIMEOUT_S = 10
START_RETRIES = 3
"""MLflow's own are 120 s and 7: a start whose packets are dropped would wait for 20 minutes."""


class Mlflow:
    """Metrics by step; the recipe as parameters and as the text of a tag."""

    def __init__(
        self, uri: str, name: str, run_dir: Path, parameters: Mapping[str, Any], recipe: str
    ) -> None:
        from mlflow.tracking import MlflowClient

        os.environ.setdefault(TIMEOUT, str(TIMEOUT_S))
        self._client: Any = MlflowClient(tracking_uri=uri)
        with _few_retries():
            self._start(name, run_dir / ID_FILE, parameters, recipe)

    def _start(self, name: str, file: Path, parameters: Mapping[str, Any], recipe: str) -> None:
        from mlflow.entities import Param

        if file.is_file():
            self._id = file.read_text(encoding="ascii").strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        self._id = self._client.create_run(
            number, run_name=name, tags={"trainfleet.recipe": recipe[:5000]}
        ).info.run_id
        self._client.log_batch(
            self._id, params=[Param(key, str(value)[:6000]) for key, value in parameters.items()]
        )
        file.write_text(self._id, encoding="ascii")

    def write_row(self, row: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(
            self._id,
            metrics=[
                Metric(f"{split}/{name}", value, now, row["step"]) for split, name, value in metrics_of(row)
            ],
        )

    def close(self) -> None:
        self._client.set_terminated(self._id)


@contextmanager
def _few_retries() -> Iterator[None]:
    """Few retries at the start, which the run waits for. Later a server that restarts does not disable the
    tracker.
    """
    if RETRIES in os.environ:
        yield
        return
    os.environ[RETRIES] = str(START_RETRIES)
    try:
        yield
    finally:
        del os.environ[RETRIES]
