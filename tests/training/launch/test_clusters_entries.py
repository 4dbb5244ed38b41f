"""The list of `--clusters`: values that are read as those of the command line, and what is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.training.launch.clusters.entries import read_entries, requests
from trainfleet.training.launch.request import Request


def written(folder: Path, text: str) -> str:
    file = folder / "clusters.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("within: 30", "within_s", 1800.0),
        ("within: '30'", "within_s", 1800.0),
        ("within: 90s", "within_s", 90.0),
        ("idle: 2h", "idle_s", 7200.0),
        ("nodes: 2", "nodes", 2),
        ("price: {a/b: 0.5}", "prices", {"a/b": 0.5}),
    ],
)
def test_an_option_of_a_cluster_is_read_as_its_flag(
    options: str, field: str, value: Any, tmp_path: Path
) -> None:
    text = f"[{{name: a, launcher: sky, options: {{{options}}}}}, {{name: b}}]"
    found = requests(Request("lm-small"), "night", read_entries(written(tmp_path, text), "sky"), {})
    assert getattr(found[0].options, field) == value


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        *(
            (f"within: {text}", "is not a time")
            for text in ("-5", "0", ".nan", ".inf", "true", "'5d'", "[5]")
        ),
        ("idle: false", "is not a time"),
        ("nodes: 0", "at least 1"),
        ("nodes: -3", "at least 1"),
        ("price: {a/b: -1}", "at least 0"),
        ("price: {a/b: .nan}", "must be a number"),
    ],
)
def test_a_value_that_its_flag_rejects_is_rejected_with_its_name(
    option: str, expected: str, tmp_path: Path
) -> None:
    options = f"{option}, managed: 3"
    text = f"[{{name: a, launcher: sky, options: {{{options}}}}}, {{name: b}}]"
    with pytest.raises(InputError) as raised:
        requests(Request("lm-small"), "night", read_entries(written(tmp_path, text), "sky"), {})
    texts = [str(each) for each in raised.value.problems]
    found, managed = sorted(texts, key=lambda text: text.startswith("a managed"))
    assert found.startswith(f"a {option.partition(':')[0]}")
    assert expected in found
    assert managed.startswith("a managed"), "all mistakes at once"
