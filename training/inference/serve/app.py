"""`trainfleet serve`: a trained model over HTTP by Ray Serve, with replicas, batching, limits, draining."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.inference.serve.request_handler import Limits, RequestHandler
from trainfleet.training.runtime import code_archive
from trainfleet.training.workloads import Precision

APPLICATION = "trainfleet"
POLL_INTERVAL_S = 0.2
RETRY_AFTER_S = 1


class Replica:
    """A Ray Serve replica."""

    def __init__(
        self,
        source: str,
        limits: dict[str, Any],
        folder: str,
        precision: Precision | None = None,
        code: str | None = None,
    ) -> None:
        from ray import serve

        from trainfleet.training.inference.predict import device
        from trainfleet.training.inference.predictor import open_predictor

        code_archive.use(code)
        name = serve.get_replica_context().replica_tag.rpartition("#")[2]
        predictor = open_predictor(source, "best", device(), precision=precision)
        self.handler = RequestHandler(predictor, Limits(**limits), name, Path(folder))

    async def __call__(self, request: Any) -> Any:
        """Answer a request."""
        return await self.handler.answer(request)


def serve(
    source: str,
    which: str,
    *,
    host: str,
    port: int,
    replicas: int,
    limits: Limits,
    precision: Precision | None = None,
    hear: Callable[[Mapping[str, Any]], Any],
) -> dict[str, Any]:
    """Serve until Ctrl-C or SIGTERM, then finish accepted requests.

    Args:
        source: folder or URL of a run, checkpoint or published model.
        which: `best`, `newest` or `step-N`, if `source` is a run.
        host: address to listen on.
        port: port to listen on.
        replicas: number of model replicas.
        limits: of each replica.
        precision: of the weights; see `open_predictor`.
        hear: receives the events `ready` and `draining`.

    Raises:
        InputError: no such model, or the address is not available.
        TrainfleetError: Ray or the replicas did not start.
    """
    from trainfleet.training.runtime import local_resources, subprocess_jobs

    _check_address(host, port)
    found: dict[str, Any] = subprocess_jobs.run(
        "trainfleet.training.inference.serve.app:work",
        {
            "source": source,
            "which": which,
            "host": host,
            "port": port,
            "replicas": replicas,
            "limits": limits.model_dump(),
            "precision": precision,
        },
        hear=hear,
        threads=max(1, local_resources.cpus() // replicas),
        grace_s=limits.timeout_s + 60,
    )
    return found


def work(job: Mapping[str, Any], send: Callable[..., Any]) -> dict[str, Any]:
    """Serve, in the process that drives Ray."""
    from trainfleet.training.inference.predictor import open_predictor
    from trainfleet.training.recipe.schema import ScalingConfig
    from trainfleet.training.runtime import local_resources, subprocess_jobs
    from trainfleet.training.runtime.ray_cluster import connect

    limits, precision = Limits(**job["limits"]), job["precision"]
    # Open the model here first: an error in a replica would be hard to read. Only replicas load its weights.
    path, step = _resolved(open_predictor(job["source"], job["which"], precision=precision, load=False))
    figures = Path(os.environ["TRAINFLEET_STOP_FILE"]).parent / "figures"
    gpu = local_resources.gpus() > 0
    with connect(ScalingConfig(workers=job["replicas"], use_gpu=gpu), os.environ):
        from ray import serve as ray_serve

        ray_serve.start(proxy_location="HeadOnly", http_options={"host": job["host"], "port": job["port"]})
        try:
            ray_serve.run(
                _application(path, limits, job["replicas"], gpu, figures, precision),
                name=APPLICATION,
                route_prefix="/",
                blocking=False,
            )
        except Exception as error:
            raise TrainfleetError(
                f"the replicas did not start: {str(error).strip().splitlines()[-1]}"
            ) from error
        address = f"http://{job['host']}:{job['port']}"
        send("ready", address=address, step=step, checkpoint=path, replicas=job["replicas"])
        while not subprocess_jobs.stopping():
            time.sleep(POLL_INTERVAL_S)
        send("draining")
        ray_serve.delete(APPLICATION)  # first: rejects new requests while accepted ones finish
        ray_serve.shutdown()  # type: ignore[no-untyped-call]  # ray is typed in part
    return {"address": address, "step": step}


def build(settings: Mapping[str, Any]) -> Any:
    """The application for an existing Ray Serve, such as KubeRay's: `source`, `which`, `replicas`, `gpu`,
    `limits`, `precision`, and `code`, the URL of an archive of the user's code.
    """
    import tempfile

    from trainfleet.training.inference.predictor import open_predictor

    precision, code = settings.get("precision"), settings.get("code")
    code_archive.use(code)
    path, _ = _resolved(
        open_predictor(settings["source"], settings.get("which", "best"), precision=precision, load=False)
    )
    figures = Path(tempfile.gettempdir()) / "trainfleet-figures"
    return _application(
        path,
        Limits(**settings.get("limits", {})),
        int(settings.get("replicas", 1)),
        bool(settings.get("gpu")),
        figures,
        precision,
        code,
    )


def _application(  # noqa: PLR0917 - called above only
    path: str,
    limits: Limits,
    replicas: int,
    gpu: bool,
    figures: Path,
    precision: Precision | None,
    code: str | None = None,
) -> Any:
    from ray import serve as ray_serve
    from ray.serve.config import BackpressureConfig
    from ray.serve.schema import LoggingConfig

    deployment: Any = ray_serve.deployment(
        Replica,
        name="model",
        num_replicas=replicas,
        # above the limit, so that the replica itself rejects requests, with its own Retry-After
        max_ongoing_requests=limits.queue + 8,
        max_queued_requests=limits.queue,
        backpressure_config=BackpressureConfig(status_code=503, retry_after_s=RETRY_AFTER_S),
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=limits.timeout_s + 5,
        health_check_timeout_s=60,
        ray_actor_options={"num_cpus": 1, "num_gpus": 1 if gpu else 0},
        logging_config=LoggingConfig(enable_access_log=False),
    )
    return deployment.bind(path, limits.model_dump(), str(figures), precision, code)


def _resolved(predictor: Any) -> tuple[str, int]:
    return str(
        Path(predictor.path).absolute()
    ) if "://" not in predictor.path else predictor.path, predictor.step


def _check_address(host: str, port: int) -> None:
    """Reject an address that is in use, before anything is started."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise InputError(
            "cannot listen there",
            [Problem(f"{host}:{port}", error.strerror or str(error), "another --port or --host")],
        ) from error
