"""`--priority` is a class of the platform: in the queue and on the pods, or the mistake by name."""

from __future__ import annotations

import pytest

from trainfleet.training.launch.remote.priority import choose_priority

CLASSES = ("trainfleet-high", "trainfleet-normal", "trainfleet-low")


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (None, "trainfleet-normal"),
        ("low", "trainfleet-low"),
        ("high", "trainfleet-high"),
        ("trainfleet-high", "trainfleet-high"),
    ],
)
def test_a_priority_is_named_by_its_class_or_the_last_word_of_it(
    requested: str | None, expected: str
) -> None:
    assert choose_priority(CLASSES, requested) == (expected, [])


def test_without_classes_the_default_is_none() -> None:
    assert choose_priority((), None) == ("", [])


@pytest.mark.parametrize(
    ("classes", "requested", "message"),
    [
        (CLASSES, "hihg", "--priority hihg: is not a priority of the platform (did you mean `high`?)"),
        (
            CLASSES,
            "urgent",
            "--priority urgent: is not a priority of the platform (known: high, low, normal)",
        ),
        (
            (),
            "low",
            "--priority low: the platform has no priority classes "
            "(leave it out, or `layer.priority_classes` in the platform's spec)",
        ),
    ],
)
def test_an_unknown_priority_is_a_mistake(classes: tuple[str, ...], requested: str, message: str) -> None:
    name, (problem,) = choose_priority(classes, requested)
    assert (name, str(problem)) == ("", message)
