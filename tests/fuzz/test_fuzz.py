"""Whatever input a reader gets, it accepts it, or rejects it with a message: no other exception, no hang, no
file or process of the input's choice.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.run import run
from tests.fuzz.targets import TARGETS

SHORT, LONG = 25, int(os.environ.get("TRAINFLEET_FUZZ_INPUTS", "3000"))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if not target.slow])
def test_input_is_accepted_or_rejected_with_a_message(name: str) -> None:
    tried = run(TARGETS[name], SHORT, 1)
    assert tried.rejected


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_thousands_of_inputs_are_accepted_or_rejected_with_a_message(name: str) -> None:
    tried = run(TARGETS[name], LONG, 2)
    assert tried.accepted
    assert tried.rejected
