"""Rules about inputs that only a cloud's API knows: one TOML file per package, each rule with its source.

`CloudModel.check` calls `broken(package, token, inputs)` after it has checked the SDK's own types.
`reader.py` defines the syntax of a row. A row limits a value with keywords of JSON Schema (`json_schema.py`)
and with the predicates of `predicates.py` for what these cannot express.
"""

from __future__ import annotations

from trainfleet.rehearsal.simulation.rules.conventions import unusual
from trainfleet.rehearsal.simulation.rules.reader import RULES, Rule, broken, rules, rules_of, softened

__all__ = ["RULES", "Rule", "broken", "rules", "rules_of", "softened", "unusual"]
