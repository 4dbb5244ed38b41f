"""The analyzer reads each resource once, and not once for each policy."""

from __future__ import annotations

from trainfleet.rehearsal.engine.analyzer import once


def test_the_same_value_is_read_once() -> None:
    asked: list[str] = []

    def read(value: str) -> str:
        asked.append(value)
        return value.upper()

    ask = once(read, str)
    assert [ask("a"), ask("b"), ask("a")] == ["A", "B", "A"]
    assert asked == ["a", "b"]


def test_a_mark_of_identity_holds_the_value_so_that_no_other_takes_its_place() -> None:
    ask = once(dict, id)
    answers = [ask({"number": number}) for number in range(100)]
    assert [answer["number"] for answer in answers] == list(range(100))


def test_with_more_to_say_it_is_asked_each_time() -> None:
    asked: list[tuple[str, ...]] = []
    ask = once(lambda *values: asked.append(values), str)
    ask("a", True)
    ask("a", True)
    assert len(asked) == 2
