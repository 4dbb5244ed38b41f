"""An answer in rehearsal.toml has a reason, and may end on a day."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from trainfleet.dates import as_of
from trainfleet.errors import InputError
from trainfleet.rehearsal import accepted

ANSWER = """[[answer]]
{what}
reason = "the account of the network team"
until = {until}
"""
FUNCTION = 'function = "f"\nresult = { id = "z" }'
RESOURCE = 'type = "t"\noutputs = { id = "z" }'


@pytest.mark.parametrize(("day", "holds"), [(date(2026, 12, 31), True), (date(2027, 1, 1), False)])
@pytest.mark.parametrize("what", [FUNCTION, RESOURCE], ids=["function", "resource"])
def test_an_answer_holds_until_its_day(what: str, day: date, holds: bool, tmp_path: Path) -> None:
    (tmp_path / "rehearsal.toml").write_text(ANSWER.format(what=what, until="2026-12-31"))
    found = accepted.read(tmp_path)
    with as_of(day):
        answer = found.answer("f", {}) or found.outputs("t", "any")
    assert (answer == {"id": "z"}) is holds


def test_a_day_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rehearsal.toml").write_text(ANSWER.format(what=RESOURCE, until='"soon"'))
    with pytest.raises(InputError, match="'soon' is not a day"):
        accepted.read(tmp_path)
