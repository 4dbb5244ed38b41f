"""How the progress of `cluster up` is shown. No cluster is started."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from trainfleet import console
from trainfleet.local_cluster.cli.options import progress_line

MESSAGES = (
    "kube: 5 s, 10 modules downloaded",
    "image: the system [1/3]",
    "kube: 9 s",
    "starting the API server",
)


def shown(monkeypatch: pytest.MonkeyPatch, *messages: str, terminal: bool) -> str:
    """What a start writes, with the control characters of a terminal."""
    stream = io.StringIO()
    made = Console(file=stream, force_terminal=terminal, width=60, highlight=False)
    monkeypatch.setattr(console, "err", lambda: made)
    with progress_line() as progress:
        for message in messages:
            progress(message)
    return stream.getvalue()


def test_without_a_terminal_each_message_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, *MESSAGES, terminal=False).splitlines() == list(MESSAGES)


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        (MESSAGES[:3], "kube: 9 s; image: the system [1/3]"),
        (MESSAGES, " starting the API server"),
        (("x" * 200,), "x" * 50),
    ],
)
def test_on_a_terminal_one_line_is_updated_and_then_removed(
    monkeypatch: pytest.MonkeyPatch, messages: tuple[str, ...], line: str
) -> None:
    text = shown(monkeypatch, *messages, terminal=True)
    assert line in text
    assert text.count("\n") == 1, "no message is left on a line of its own"
    assert text.endswith("\x1b[1A\x1b[2K"), "the line is removed"
