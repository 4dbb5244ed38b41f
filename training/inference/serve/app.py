"""`trainfleet serve`: a trained model behind HTTP, by Ray Serve: replicas, batching, limits, and an end that
lets requests finish.

Used by the command line. Easy to get wrong: Serve's own proxy holds requests that no replica has taken yet,
so its queue has a limit
too; and at the end the application goes first, so that nothing new comes in while what is there is finished.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.inference.serve.request_handler import Desk, Limits

APPLICATION = "trainfleet"
LOOK_EVERY_S = 0.2
AGAIN_S = 1


class Replica:
    """What Ray Serve starts several of."""

    def __init__(self, source: str, limits: dict[str, Any], folder: str) -> None:
        from ray import serve

        from trainfleet.training.inference.predict import device
        from trainfleet.training.inference.predictor import open_predictor

        name = serve.get_replica_context().replica_tag.rpartition("#")[2]
        self.desk = Desk(open_predictor(source, "best", device()), Limits(**limits), name, Path(folder))

    async def __call__(self, request: Any) -> Any:
        """Answer a request."""
        return await self.desk.answer(request)


def serve(
    source: str,
    which: str,
    *,
    host: str,
    port: int,
    replicas: int,
    limits: Limits,
    hear: Callable[[Mapping[str, Any]], Any],
) -> dict[str, Any]:
    """Serve until Ctrl-C or SIGTERM, then let what was taken finish. `hear` is told when it is `ready`, and
    when it is `draining`.

    Raises:
        InputError: no such model, or an address that cannot be had.
        TrainfleetError: Ray or the replicas did not start.
    """
    from trainfleet.training.runtime import local_resources, subprocess_jobs

    _free(host, port)
    found: dict[str, Any] = subprocess_jobs.run(
        "trainfleet.training.inference.serve.app:work",
        {
            "source": source,
            "which": which,
            "host": host,
            "port": port,
            "replicas": replicas,
            "limits": limits.model_dump(),
        },
        hear=hear,
        threads=max(1, local_resources.cpus() // replicas),
        grace_s=limits.timeout_s + 60,
    )
    return found


def work(job: Mapping[str, Any], send: Callable[..., Any]) -> dict[str, Any]:
    """All of it, in the process that drives Ray."""
    from trainfleet.training.inference.predictor import open_predictor
    from trainfleet.training.recipe.schema import ScalingConfig
    from trainfleet.training.runtime import local_resources, subprocess_jobs
    from trainfleet.training.runtime.ray_cluster import connect

    limits = Limits(**job["limits"])
    path, step = _resolved(
        open_predictor(job["source"], job["which"])
    )  # an error here is clear; from a replica it is not
    figures = Path(os.environ["TRAINFLEET_STOP_FILE"]).parent / "figures"
    gpu = local_resources.gpus() > 0
    with connect(ScalingConfig(workers=job["replicas"], use_gpu=gpu), os.environ):
        from ray import serve as ray_serve

        ray_serve.start(proxy_location="HeadOnly", http_options={"host": job["host"], "port": job["port"]})
        try:
            ray_serve.run(
                _application(path, limits, job["replicas"], gpu, figures),
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
            time.sleep(LOOK_EVERY_S)
        send("draining")
        ray_serve.delete(APPLICATION)
        ray_serve.shutdown()  # type: ignore[no-untyped-call]  # ray is typed in part
    return {"address": address, "step": step}


def build(settings: Mapping[str, Any]) -> Any:
    """The application for a Ray Serve that somebody else runs, such as KubeRay's: `source`, `which`,
    `replicas`, `gpu`, `limits`.
    """
    import tempfile

    from trainfleet.training.inference.predictor import open_predictor

    path, _ = _resolved(open_predictor(settings["source"], settings.get("which", "best")))
    figures = Path(tempfile.gettempdir()) / "trainfleet-figures"
    return _application(
        path,
        Limits(**settings.get("limits", {})),
        int(settings.get("replicas", 1)),
        bool(settings.get("gpu")),
        figures,
    )


def _application(path: str, limits: Limits, replicas: int, gpu: bool, figures: Path) -> Any:
    from ray import serve as ray_serve
    from ray.serve.config import BackpressureConfig
    from ray.serve.schema import LoggingConfig

    deployment: Any = ray_serve.deployment(
        Replica,
        name="model",
        num_replicas=replicas,
        max_ongoing_requests=limits.queue
        + 8,  # so that a replica refuses by itself, with its own guess of when to come again
        max_queued_requests=limits.queue,
        backpressure_config=BackpressureConfig(status_code=503, retry_after_s=AGAIN_S),
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=limits.timeout_s + 5,
        health_check_timeout_s=60,
        ray_actor_options={"num_cpus": 1, "num_gpus": 1 if gpu else 0},
        logging_config=LoggingConfig(enable_access_log=False),
    )
    return deployment.bind(path, limits.model_dump(), str(figures))


def _resolved(predictor: Any) -> tuple[str, int]:
    return str(
        Path(predictor.path).absolute()
    ) if "://" not in predictor.path else predictor.path, predictor.step


def _free(host: str, port: int) -> None:
    """Refuse an address that is taken, before anything is started."""
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
