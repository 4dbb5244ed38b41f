"""The errors of a run by SkyPilot, with the reasons that its log has."""

from __future__ import annotations

from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.launch.sky.event_stream import reasons_in
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.skypilot import lines_of
from trainfleet.training.launch.sky.submission import SetupError


def not_started(spec: SkySpec, error: Exception, log: str, setup_failures: list[str]) -> TrainfleetError:
    """The error of a launch that SkyPilot rejected or could not complete."""
    lines = lines_of(error)
    problems = [Problem("", each) for each in reasons_in(log) or lines[:3]]
    if setup_failures:
        failures = [Problem("", each) for each in setup_failures]
        return SetupError("SkyPilot could not set up the pods", failures)
    if type(error).__name__ == "ResourcesUnavailableError":
        return TrainfleetError(f"no capacity anywhere; tried {_tried(spec)}", problems)
    return TrainfleetError(f"SkyPilot could not start the run: {lines[0]}", problems)


def not_in_time(spec: SkySpec, log: str) -> TrainfleetError:
    """The error of a launch whose pods did not come in time."""
    problems = [Problem("", each) for each in reasons_in(log)]
    return TrainfleetError(f"no capacity anywhere within {within(spec)}; tried {_tried(spec)}", problems)


def no_result(spec: SkySpec, lines: list[str], *, lost: bool) -> TrainfleetError:
    """The error of a run whose log ended without an exit code.

    Args:
        spec: the run.
        lines: those of its log.
        lost: whether it lost pods.
    """
    last = lines[-1] if lines else "its log ended"
    problems = [Problem("", each) for each in reasons_in("\n".join(lines[-50:])) or [last]]
    if lost:
        # SkyPilot cancels no job on such a cluster, and does not delete one that has lost its first pod.
        fix = f"sky down {spec.cluster}" if spec.kept else ""
        what = f"not all of its {spec.task['num_nodes']} pods run"
        problems.insert(0, Problem(spec.cluster, what, fix))
    return TrainfleetError("the run ended without reporting a result", problems)


def managed_failure(record: Any, log: str) -> TrainfleetError:
    """The error of a managed job without an exit code.

    Args:
        record: SkyPilot's record of it; None if there is none.
        log: that of its controller.
    """
    why = ((record.failure_reason if record is not None else None) or "").strip().splitlines()
    status = record.status.value if record is not None and record.status is not None else "gone"
    reasons = reasons_in("\n".join([*why, log])) or why[:1]
    return TrainfleetError(f"the managed job ended: {status}", [Problem("", each) for each in reasons])


def within(spec: SkySpec) -> str:
    """How long the run may wait for its pods."""
    return f"{spec.within_s / 60:g} minutes"


def _tried(spec: SkySpec) -> str:
    return ", ".join(dict.fromkeys(spec.contexts))
