"""Proves that SkyPilot can use a platform: tools, configuration, the cluster's answer, and a small task that
runs in its image.

Used by `trainfleet sky check`. Easy to get wrong: each step says what is missing in its own words, and later
steps are left out
when one before them failed, or every mistake would be told as SkyPilot's last one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from trainfleet.errors import Problem
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.sky import VERSION, need_skypilot
from trainfleet.training.launch.sky.config import context_config, context_name
from trainfleet.training.launch.sky.configure import config_path
from trainfleet.training.launch.sky.event_stream import EventStream, reasons_in
from trainfleet.training.launch.sky.pods import trouble

TOOLS = ("kubectl", "socat", "nc", "rsync", "ssh")
"""What SkyPilot calls on the machine of its API server."""
SECONDS = 900


@dataclass(frozen=True)
class Report:
    """What was found of one platform."""

    platform: str
    context: str
    problems: tuple[Problem, ...]
    ran: bool
    """Whether the small task ran to its end."""

    def line(self) -> str:
        done = "a task ran" if self.ran else "it answers"
        return f"{self.platform}: {self.context}: {'; '.join(each.what for each in self.problems) or f'ready ({done})'}"

    def as_json(self) -> dict[str, Any]:
        problems = [vars(each) for each in self.problems]
        return {
            "platform": self.platform,
            "context": self.context,
            "ready": not problems,
            "ran": self.ran,
            "problems": problems,
        }


def examine(
    platform: str, outputs: PlatformOutputs, env: Mapping[str, str], *, quick: bool, say: Callable[[str], Any]
) -> Report:
    """Look at one platform, step by step, until one fails."""
    context = context_name(outputs)
    need_skypilot()
    say(f"{context}: tools and configuration")
    problems = [*missing_tools(), *configured(outputs, env)]
    if not problems:
        say(f"{context}: asking the cluster")
        why = trouble(context, outputs.namespace)
        problems = [Problem(context, why)] if why else []
    if problems or quick:
        return Report(platform, context, tuple(problems), ran=False)
    say(f"{context}: a small task (minutes where a node must come first)")
    problems = list(try_task(outputs, context))
    return Report(platform, context, tuple(problems), ran=not problems)


def missing_tools() -> list[Problem]:
    """Programs that SkyPilot calls and this machine lacks."""
    packages = {"nc": "netcat-openbsd", "ssh": "openssh-client"}
    return [
        Problem("", f"`{tool}` is not on the path", f"install {packages.get(tool, tool)}")
        for tool in TOOLS
        if shutil.which(tool) is None
    ]


def configured(outputs: PlatformOutputs, env: Mapping[str, str]) -> list[Problem]:
    """What SkyPilot's configuration lacks of this platform, or says otherwise."""
    file, context, fix = config_path(env), context_name(outputs), "trainfleet sky setup"
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        kubernetes = document.get("kubernetes") or {}
    except FileNotFoundError:
        return [Problem(str(file), "is not there: SkyPilot knows nothing of the platform", fix)]
    except (OSError, AttributeError, yaml.YAMLError) as error:
        return [Problem(str(file), f"cannot be read: {str(error).splitlines()[0]}", "mend it")]
    allowed = kubernetes.get("allowed_contexts") or []
    if allowed != "all" and context not in allowed:
        return [Problem(str(file), f"`{context}` is not among kubernetes.allowed_contexts", fix)]
    said = (kubernetes.get("context_configs") or {}).get(context) or {}
    other = [key for key, value in context_config(outputs).items() if said.get(key) != value]
    what = (
        f"kubernetes.context_configs.{context} is not what the platform's outputs say of {', '.join(other)}"
    )
    return [Problem(str(file), what, f"{fix}, to bring it up to date")] if other else []


def try_task(outputs: PlatformOutputs, context: str) -> list[Problem]:
    """Run a task of one processor in the platform's image, and take it down; what went wrong, if anything."""
    import secrets

    import sky

    name, said = f"tf-check-{secrets.token_hex(3)}", list[str]()
    stream = EventStream(lambda _: None, said.append)
    document = {
        "name": name,
        "resources": {
            "infra": f"k8s/{context}",
            "cpus": 1,
            "memory": 2,
            "image_id": f"docker:{outputs.image}",
        },
        "run": 'python -c "import training, ray, torch"',
    }
    try:
        task = sky.Task.from_yaml_config(document)
        job, _ = sky.stream_and_get(
            sky.launch(task, cluster_name=name, idle_minutes_to_autostop=1, down=True), output_stream=stream
        )
        code = sky.tail_logs(name, job, follow=True, output_stream=stream)
        if code != 0:
            tail = next(
                (line for line in reversed(said) if "Error" in line),
                said[-1] if said else f"exit code {code}",
            )
            return [
                Problem(
                    context,
                    f"the image cannot run Trainfleet: {tail}",
                    f"an image with this project, Ray and torch; SkyPilot {VERSION}",
                )
            ]
    except Exception as error:  # noqa: BLE001 - SkyPilot raises many kinds, and each is an answer here
        reasons = reasons_in("\n".join([str(error), *said[-200:]]))
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return [Problem(context, each) for each in (reasons or [f"the task did not start: {first}"])]
    finally:
        _down(sky, name)
    return []


def _down(sky: Any, name: str) -> None:
    import contextlib

    with contextlib.suppress(Exception):
        sky.get(sky.down(name))
