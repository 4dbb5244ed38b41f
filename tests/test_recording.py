"""A recording shows what the terminal showed, without what it must not show, and its picture ends the same."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

import pytest

from tools.recording.cast import Cast, merged, read, record, replaced
from tools.recording.picture import PAUSE_S, film, picture
from tools.recording.terminal import PLAIN, Terminal, styled


def shown(text: str, columns: int = 20, rows: int = 5) -> str:
    terminal = Terminal(columns, rows)
    terminal.feed(text)
    return terminal.plain()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("10 %\r20 %\r\n", "20 %\n"),
        ("wait\r\x1b[2Kdone\r\n", "done\n"),
        ("one\r\ntwo\r\n\x1b[1A\x1b[2Kthree\r\n", "one\nthree\n"),
        ("one\r\ntwo\r\n\x1b[2A\x1b[Jthree\r\n", "three\n"),
        ("x" * 25, "x" * 20 + "\n" + "x" * 5 + "\n"),
        ("\x1b[?25la\x1b[31mb\x1b[0m\x1b]8;;file\x1b\\c\r\n", "abc\n"),
        ("a\tb\x1b[5Gc", "a   c   b\n"),
    ],
)
def test_a_terminal_shows_what_output_leaves(text: str, lines: str) -> None:
    assert shown(text) == lines


def test_styles_follow_their_sequences() -> None:
    assert styled(PLAIN, [1, 32]).color == "2"
    assert styled(PLAIN, [1, 32]).bold
    assert styled(PLAIN, [38, 5, 196, 4]).color == "#ff0000"
    assert styled(PLAIN, [38, 5, 196, 4]).underline
    assert styled(PLAIN, [38, 2, 1, 2, 3]).color == "#010203"
    assert styled(styled(PLAIN, [1, 91]), [0]) == PLAIN


def test_a_hidden_text_is_replaced_where_it_starts_also_between_two_events() -> None:
    events = [(0.0, "see /secret/pa"), (1.0, "th/file"), (2.0, " and /secret/path")]
    assert replaced(events, {"/secret/path": "~", "/secret": "!"}) == (
        (0.0, "see ~"),
        (1.0, "/file"),
        (2.0, " and ~"),
    )


def test_redraws_of_a_line_are_merged_and_new_lines_keep_their_time() -> None:
    redraw = "\r\x1b[2K"
    every = [
        (0.0, "a\r\n"),
        (0.1, f"{redraw}1"),
        (0.3, f"{redraw}2"),
        (0.5, f"{redraw}3"),
        (1.2, f"{redraw}4"),
    ]
    every += [(1.3, f"{redraw}done\r\n"), (1.4, "b\r\n")]
    short = merged(every)
    assert [(at, text.replace(redraw, "").strip()) for at, text in short] == [
        (0.0, "a"),
        (0.1, "3"),
        (1.2, "4"),
        (1.3, "done"),
        (1.4, "b"),
    ]
    assert shown("".join(text for _, text in short)) == shown("".join(text for _, text in every))


def test_a_command_is_recorded_with_its_times_and_exit_code() -> None:
    program = "import time; print('one', flush=True); time.sleep(0.3); print('two'); raise SystemExit(3)"
    cast = record([sys.executable, "-c", program], "demo", {"two": "2"})
    assert cast.exit_code == 3
    assert "".join(text for _, text in cast.events) == "one\r\n2\r\n"
    assert 0.2 < cast.events[-1][0] - cast.events[0][0] < 20
    assert read(cast.text()).events == tuple((round(at, 3), text) for at, text in cast.events)


def test_a_picture_ends_with_the_last_screen_and_shortens_pauses() -> None:
    cast = Cast("x", 0, ((0.5, "a\r\n"), (100.0, "10 %"), (100.5, "\r20 %\r\n"), (101.0, "<&>\r\n")), 20, 3)
    drawn = film(cast)
    assert drawn.seconds < 4 * PAUSE_S
    last = ["".join(text for text, _ in version.content) for version in drawn.versions if version.end is None]
    assert last == ["$ x", "a", "20 %", "<&>"]
    assert drawn.tops[-1][1] == 2
    root = ElementTree.fromstring(picture(cast))
    assert "".join(root.itertext()).endswith("20 %\n<&>\n\n") or "<&>" in "".join(root.itertext())
