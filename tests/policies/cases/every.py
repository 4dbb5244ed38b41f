"""Every case: one list of all tables of this folder."""

from __future__ import annotations

from tests.policies.cases import (
    address_ranges,
    exposure,
    identity,
    platform,
    policy_documents,
    upkeep,
)
from tests.policies.cases.table import Case

CASES: list[Case] = [
    *exposure.CASES,
    *address_ranges.CASES,
    *identity.CASES,
    *policy_documents.CASES,
    *platform.CASES,
    *upkeep.CASES,
]
