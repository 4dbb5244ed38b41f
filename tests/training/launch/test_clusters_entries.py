"""The list of `--clusters`: values that are read as those of the command line, and what is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.training.launch.clusters.entries import read_entries, requests
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import resolve


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


@pytest.mark.parametrize(
    "file", ["aws.prod.json", "aws_prod.json", "a b.json", "größe.json", "-a.json", ".."]
)
def test_a_platform_whose_name_cannot_end_the_name_of_a_run_needs_another(file: str) -> None:
    with pytest.raises(InputError, match="cannot read the clusters") as raised:
        read_entries(f"{file},gcp-prod.json", "kuberay")
    (problem,) = raised.value.problems
    assert problem.what == f"`{file.removesuffix('.json')}` cannot end the name of a run"
    assert "a `name` of lowercase letters, digits and dashes" in problem.fix


@pytest.mark.parametrize(
    "text", ["stacks/AWS-Prod.json", "s3://bucket/stacks/aws-prod.json", "team/project/aws-prod"]
)
def test_the_name_of_a_platform_has_no_folder_and_small_letters(text: str) -> None:
    assert [each.name for each in read_entries(f"{text},gcp", "kuberay")] == ["aws-prod", "gcp"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "FILE: is not a list"),
        ("[]", "--clusters FILE: names no cluster"),
        ("- a: b: c", "FILE:1:7: is not YAML: mapping values are not allowed"),
        ("\xff", "FILE: is not UTF-8 text"),
        ("\x00", "FILE: is not YAML: unacceptable character"),
        ("- {name: a}\n- {name: a}", "--clusters FILE: 2 clusters are named a"),
        (
            "- {name: a.b}\n- {name: b}",
            "FILE [0] name: `a.b` is not written as it must be (lowercase letters",
        ),
        ("- {name: a/b}\n- {name: 'a,b'}", "FILE [1] name"),
        ("- {name: A}\n- {name: b}", "FILE [0] name"),
        (None, "FILE: Is a directory"),
    ],
)
def test_a_file_that_lists_no_clusters_is_rejected_with_the_place(
    text: str | None, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "clusters.yaml"
    if text is None:
        file.mkdir()
    else:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="cannot read the clusters") as raised:
        read_entries(str(file), "kuberay")
    assert any(str(each).startswith(expected.replace("FILE", str(file))) for each in raised.value.problems), (
        raised.value
    )


def test_a_storage_of_one_cluster_replaces_that_of_the_command(tmp_path: Path) -> None:
    text = "- {name: a, overrides: [storage=s3://one]}\n- {name: b, storage: s3://two}\n- {name: c}"
    base = Request("lm-small", overrides=("storage=s3://set",), storage="s3://given")
    found = requests(base, "night", read_entries(written(tmp_path, text), "kuberay"), {})
    assert [resolve(each, {})[0].storage for each in found] == ["s3://one", "s3://two", "s3://given"]
