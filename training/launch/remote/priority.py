"""Which of a platform's priority classes a run has: in the queue, and for the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from trainfleet.errors import Problem
from trainfleet.suggestions import did_you_mean


def choose_priority(classes: Sequence[str], requested: str | None) -> tuple[str, list[Problem]]:
    """The requested class, by its name or the last word of it; else the middle one. Empty on a platform
    without classes.
    """
    if requested is None:
        return classes[len(classes) // 2] if classes else "", []
    if not classes:
        fix = "leave it out, or `layer.priority_classes` in the platform's spec"
        return "", [Problem(f"--priority {requested}", "the platform has no priority classes", fix)]
    by_word = {each.rpartition("-")[2]: each for each in classes}
    if found := {**by_word, **{each: each for each in classes}}.get(requested):
        return found, []
    fix = did_you_mean(requested, by_word)
    return "", [Problem(f"--priority {requested}", "is not a priority of the platform", fix)]
