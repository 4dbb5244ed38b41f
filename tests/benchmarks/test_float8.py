"""`benchmarks.float8`: the recipe that it trains, its rows, and scalings that fail. `make bench-smoke` runs it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import float8, loop
from trainfleet.errors import InputError, TrainfleetError

FOUND: dict[str, Any] = {
    "tokens_per_step": 1000,
    "step_seconds": {"ours": 0.4, "minimal": 0.5},
    "pairs": {"minimal": [0.8, 0.5, 1.0]},
    "loss": {"ours": 5.0, "minimal": 5.01},
    "device": "CPU",
}


def test_each_scaling_is_a_row_and_one_that_fails_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[tuple[str, ...]] = []

    def alternate(_recipe: str, _steps: int, given: tuple[str, ...], **_settings: Any) -> dict[str, Any]:
        changes.append(given)
        if "float8.scaling=rowwise" in given:
            raise TrainfleetError("rank 0 was\ntoo slow")
        return FOUND

    monkeypatch.setattr(loop, "alternate", alternate)
    monkeypatch.setattr(float8.local_resources, "gpus", lambda: 0)
    document = float8.measure("lm-tiny like lm-1b", smoke=False)
    first, second = document["rows"]
    assert (first["scaling"], first["tokens_per_s"], first["bf16_tokens_per_s"]) == ("tensorwise", 2500, 2000)
    assert first["speed"] == {"median": 1.25, "least": 1.0, "most": 2.0}
    assert second == {"recipe": "lm-tiny like lm-1b", "scaling": "rowwise", "error": "rank 0 was too slow"}
    assert not float8.passed(document)
    assert [row["scaling"] for row in float8.measure("lm-tiny like lm-1b", smoke=True)["rows"]] == [
        "tensorwise"
    ]
    assert all({"precision=bf16", "compile=true", "float8.emulate=true"} <= set(each) for each in changes)


def test_an_unknown_recipe_is_rejected() -> None:
    with pytest.raises(InputError, match="lm-tiny like lm-1b"):
        float8.measure("lm-2b", smoke=True)
