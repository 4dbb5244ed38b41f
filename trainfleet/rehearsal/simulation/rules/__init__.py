"""Rules about inputs that only a cloud's API knows: one readable TOML file per package, each rule with its
source.

`CloudModel.check` asks `broken(package, token, inputs)` after the SDK's own types were checked. What a row
may
say is in `reader.py`; what the words mean in `words.py`.
"""

from __future__ import annotations

from trainfleet.rehearsal.simulation.rules.conventions import unusual
from trainfleet.rehearsal.simulation.rules.reader import RULES, Rule, broken, rules, rules_of, softened

__all__ = ["RULES", "Rule", "broken", "rules", "rules_of", "softened", "unusual"]
