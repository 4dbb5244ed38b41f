"""docs/reference/relations.md names every kind of rule and every type that has one."""

from __future__ import annotations

from tools.reference import pages, relations
from trainfleet.rehearsal.simulation.stateful_rules import rules


def test_every_kind_and_every_type_is_on_the_page() -> None:
    assert relations.KINDS.keys() == rules().keys()
    page = (pages.ROOT / pages.FOLDER / "relations.md").read_text()
    assert [token for rows in rules().values() for token in rows if f"`{token}`" not in page] == []
