"""`trainfleet sky check`: whether SkyPilot can use a platform, up to a small task in its image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import Problem, TrainfleetError
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.remote.pod_template import of_platform
from trainfleet.training.launch.sky.config import context_config, context_name
from trainfleet.training.launch.sky.configure import config_path
from trainfleet.training.launch.sky.event_stream import EventStream, reasons_in
from trainfleet.training.launch.sky.pods import context_problem
from trainfleet.training.launch.sky.server import missing_tools, remote_endpoint, require_server, shown
from trainfleet.training.launch.sky.skypilot import (
    PRIVATE_KEY,
    VERSION,
    lines_of,
    messages_to_stderr,
    parse,
    require_skypilot,
)
from trainfleet.training.launch.sky.task import patched_pod


@dataclass(frozen=True)
class Report:
    """The result for one platform."""

    platform: str
    context: str
    problems: tuple[Problem, ...]
    ran: bool
    """Whether the small task completed."""

    def line(self) -> str:
        """The result for people."""
        problems = "; ".join(each.what for each in self.problems)
        ready = f"ready ({'a task ran' if self.ran else 'it answers'})"
        return f"{self.platform}: {self.context}: {problems or ready}"

    def as_json(self) -> dict[str, Any]:
        """The result for `--json`."""
        problems = [vars(each) for each in self.problems]
        return {
            "platform": self.platform,
            "context": self.context,
            "ready": not problems,
            "ran": self.ran,
            "problems": problems,
        }


def probe(
    platform: str,
    outputs: PlatformOutputs,
    env: Mapping[str, str],
    *,
    quick: bool,
    progress: Callable[[str], Any],
) -> Report:
    """Check one platform step by step, until one fails."""
    context = context_name(outputs)
    require_skypilot()
    if endpoint := remote_endpoint(env, config_path(env)):
        return _probe_server(platform, outputs, endpoint, quick=quick, progress=progress)
    progress(f"{context}: tools and configuration")
    problems = [*missing_tools(), *configuration_problems(outputs, env)]
    if not problems:
        progress(f"{context}: contacting the cluster")
        why = context_problem(context, outputs.namespace)
        problems = [Problem(context, why)] if why else []
    if problems or quick:
        return Report(platform, context, tuple(problems), ran=False)
    progress(f"{context}: a small task (minutes if a node must start first)")
    problems = list(try_task(outputs, context))
    return Report(platform, context, tuple(problems), ran=not problems)


def _probe_server(
    platform: str, outputs: PlatformOutputs, endpoint: str, *, quick: bool, progress: Callable[[str], Any]
) -> Report:
    """Check a platform through a team's server, which alone has the context, the programs and the login."""
    context = context_name(outputs)
    progress(f"{context}: contacting SkyPilot's server at {shown(endpoint)}")
    try:
        require_server(endpoint)
        problems = _disabled(endpoint)
    except TrainfleetError as error:
        problems = list(error.problems)
    if problems or quick:
        return Report(platform, context, tuple(problems), ran=False)
    progress(f"{context}: a small task (minutes if a node must start first)")
    problems = try_task(outputs, context)
    return Report(platform, context, tuple(problems), ran=not problems)


def _disabled(endpoint: str) -> list[Problem]:
    """Why the server accepts no task for Kubernetes, if so."""
    from sky.client import sdk

    where, fix = shown(endpoint), "its administrator runs: trainfleet sky setup --server FOLDER"
    try:
        # Not `enabled_clouds`, which is what the server found earlier: a new one has not looked.
        enabled = sdk.get(sdk.check(infra_list=("kubernetes",), verbose=False))
    except Exception as error:  # noqa: BLE001 - SkyPilot raises many kinds; each is a result here
        first = lines_of(error)[0]
        return [Problem(where, f"rejects this client: {first}", "sky api login")]
    if not any("kubernetes" in str(clouds).lower() for clouds in enabled.values()):
        return [Problem(where, "has no Kubernetes cluster enabled", fix)]
    return []


def configuration_problems(outputs: PlatformOutputs, env: Mapping[str, str]) -> list[Problem]:
    """How SkyPilot's configuration differs from the platform's outputs."""
    file, context, fix = config_path(env), context_name(outputs), "trainfleet sky setup"
    try:
        document = yaml_limits.load(file.read_text(encoding="utf-8")) or {}
        kubernetes = document.get("kubernetes") or {}
    except FileNotFoundError:
        return [Problem(str(file), "does not exist: SkyPilot is not configured for the platform", fix)]
    except (OSError, AttributeError, yaml.YAMLError) as error:
        return [Problem(str(file), f"cannot be read: {str(error).splitlines()[0]}", "fix it")]
    allowed = kubernetes.get("allowed_contexts") or []
    if allowed != "all" and context not in allowed:
        return [Problem(str(file), f"`{context}` is not in kubernetes.allowed_contexts", fix)]
    configured = (kubernetes.get("context_configs") or {}).get(context) or {}
    other = [key for key, value in context_config(outputs).items() if configured.get(key) != value]
    what = f"kubernetes.context_configs.{context} differs from the platform's outputs: {', '.join(other)}"
    return [Problem(str(file), what, f"{fix} updates it")] if other else []


def outdated_certificates(outputs: PlatformOutputs, env: Mapping[str, str]) -> list[Problem]:
    """Whether SkyPilot's configuration still mounts the key of a CA that the platform keeps from pods. Such a
    pod would wait for its Secret for ever.
    """
    tls, context, file = outputs.ray_certificates, context_name(outputs), config_path(env)
    if tls is None or not tls.signer:
        return []
    try:
        document = yaml_limits.load(file.read_text(encoding="utf-8"))
        pod = document["kubernetes"]["context_configs"][context]["pod_config"]["spec"]
        secrets = [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each]
    except (OSError, LookupError, TypeError, yaml.YAMLError):
        return []  # SkyPilot reads it too, and says what is wrong
    what = (
        f"kubernetes.context_configs.{context} mounts Secret {tls.ca_config}, which the platform has no more"
    )
    return [Problem(str(file), what, "trainfleet sky setup")] if tls.ca_config in secrets else []


def check_task(name: str, outputs: PlatformOutputs, context: str) -> dict[str, Any]:
    """A one-CPU task in the platform's image, whose pod has the platform's own changes, as those of runs."""
    resources: dict[str, Any] = {
        "infra": f"k8s/{context}",
        "cpus": 1,
        "memory": 2,
        "image_id": f"docker:{outputs.image}",
    }
    if patches := of_platform(outputs, None):
        pod = patched_pod({"spec": {"containers": [{}]}}, patches)
        resources[PRIVATE_KEY] = {"kubernetes": {"pod_config": pod}}
    return {"name": name, "resources": resources, "run": 'python -c "import trainfleet.training, ray, torch"'}


def try_task(outputs: PlatformOutputs, context: str) -> list[Problem]:
    """Run a small task, and delete it; what failed, if anything."""
    import secrets

    import sky

    messages_to_stderr()
    name, lines = f"tf-check-{secrets.token_hex(3)}", list[str]()
    stream = EventStream(lambda _: None, lines.append)
    try:
        task = parse(check_task(name, outputs, context))
        job, _ = sky.stream_and_get(
            sky.launch(task, cluster_name=name, idle_minutes_to_autostop=1, down=True), output_stream=stream
        )
        code = sky.tail_logs(name, job, follow=True, output_stream=stream)
        if code != 0:
            last_line = lines[-1] if lines else f"exit code {code}"
            tail = next((line for line in reversed(lines) if "Error" in line), last_line)
            return [
                Problem(
                    context,
                    f"the image cannot run Trainfleet: {tail}",
                    f"an image with this project, Ray and torch; SkyPilot {VERSION}",
                )
            ]
    except Exception as error:  # noqa: BLE001 - SkyPilot raises many kinds; each is a result here
        reasons = reasons_in("\n".join([*lines_of(error), *lines[-200:]]))
        first = lines_of(error)[0]
        return [Problem(context, each) for each in (reasons or [f"the task did not start: {first}"])]
    finally:
        _down(sky, name)
    return []


def _down(sky: Any, name: str) -> None:
    import contextlib

    with contextlib.suppress(Exception):
        sky.get(sky.down(name))
