"""The page of the demo shows its recording, of a demo that worked, and nothing of the machine that made it."""

from __future__ import annotations

import re

from tools.recording import __main__ as command
from tools.recording.cast import read


def test_the_page_and_the_picture_are_those_of_the_recording() -> None:
    assert command.main(["--check"]) == 0, "run: python -m tools.recording --draw"


def test_the_recording_is_one_of_a_demo_that_worked_and_names_no_path_of_a_machine() -> None:
    cast = read(command.CAST.read_text(encoding="utf-8"))
    text = "".join(part for _, part in cast.events)
    assert cast.exit_code == 0
    assert "demo: done in" in text
    assert "killed with SIGKILL after step" in text
    assert re.findall(r"(?:/root|/home|/work|/Users|/tmp)/[\w/.-]+", text) == []
    assert command.CAST.stat().st_size < command.LARGEST
