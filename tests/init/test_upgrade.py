"""`trainfleet init --upgrade`: a three-way merge of what an earlier version made, what you have, and what this one makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.init.conftest import Init, options
from trainfleet.init.upgrade import Fate, merge
from trainfleet.init.write import RECORD

OLD, NEW = "one\ntwo\nthree\nfour\nfive\n", "one\ntwo\nthree\nfour\nFIVE\n"


@pytest.mark.parametrize(
    ("base", "here", "new", "fate", "text"),
    [
        (OLD, OLD, NEW, Fate.UPDATE, NEW),
        (OLD, "ONE" + OLD[3:], NEW, Fate.MERGE, "ONE\ntwo\nthree\nfour\nFIVE\n"),
        (OLD, OLD.replace("five", "5"), NEW, Fate.CONFLICT, None),
        (OLD, None, NEW, Fate.KEEP, None),
        (None, None, NEW, Fate.ADD, NEW),
        (None, "mine\n", NEW, Fate.CONFLICT, None),
        (OLD, OLD, None, Fate.REMOVE, None),
        (OLD, OLD + "mine\n", None, Fate.LEFT, OLD + "mine\n"),
        (OLD, NEW, NEW, None, None),
        (OLD, "mine\n", OLD, None, None),
    ],
)
def test_what_happens_to_a_file(
    base: str | None, here: str | None, new: str | None, fate: Fate | None, text: str | None, tmp_path: Path
) -> None:
    if here is not None:
        (tmp_path / "file").write_text(here)
    found = merge(tmp_path, {"file": base} if base else {}, {"file": new} if new else {})
    assert [each.fate for each in found] == ([fate] if fate else [])
    if fate is Fate.CONFLICT:
        assert "<<<<<<< yours" in (found[0].text or "")
    elif found:
        assert found[0].text == text


def older(folder: Path, name: str, old: str, new: str) -> None:
    """Make a repository look as if an earlier version had written `old` where this one writes `new`."""
    path, record = folder / name, json.loads((folder / RECORD).read_text())
    text: Any = record["files"][name]
    assert text.count(new) == 1
    record["files"][name] = text.replace(new, old)
    record["trainfleet"] = "0.0.9"
    (folder / RECORD).write_text(json.dumps(record))
    path.write_text(path.read_text().replace(new, old))


def test_a_later_version_is_merged_after_it_was_shown(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("aws")).returncode == 0
    folder = tmp_path / "mine"
    older(folder, "Makefile", "echo Done.", 'echo "Everything passed."')
    with (folder / "Makefile").open("a") as file:
        file.write("\nown:\n\t@echo mine\n")
    before = (folder / "Makefile").read_text()
    shown = init("mine", "--upgrade")
    assert shown.returncode == 0
    assert '+\t@echo "Everything passed."' in shown.stdout
    assert "add --yes" in shown.stderr
    assert (folder / "Makefile").read_text() == before
    assert init("mine", "--upgrade", "--yes").returncode == 0
    after = (folder / "Makefile").read_text()
    assert "Everything passed." in after
    assert "@echo mine" in after
    again = init("mine", "--upgrade", "--yes")
    assert "Nothing to merge" in again.stdout


def test_a_conflict_is_written_and_named(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("aws")).returncode == 0
    folder = tmp_path / "mine"
    older(folder, "Makefile", "echo Done.", 'echo "Everything passed."')
    path = folder / "Makefile"
    path.write_text(path.read_text().replace("echo Done.", "echo Mine."))
    done = init("mine", "--upgrade", "--yes")
    assert done.returncode == 1
    assert "Makefile" in done.stderr
    assert "<<<<<<< yours" in path.read_text()


def test_an_upgrade_takes_no_answers_and_needs_a_repository(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("aws")).returncode == 0
    refused = init("mine", "--upgrade", "--region", "us-west-2")
    assert refused.returncode == 2
    assert "--region" in refused.stderr
    other = init("other", "--upgrade")
    assert other.returncode == 2
    assert RECORD in other.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", ["", "{}", "[]", '{"trainfleet": "0.1.0", "answers": [], "files": {}}'])
def test_a_broken_record_is_named(text: str, init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("aws")).returncode == 0
    (tmp_path / "mine" / RECORD).write_text(text)
    done = init("mine", "--upgrade")
    assert done.returncode == 2, done.stderr
    assert RECORD in done.stderr


def test_json_has_each_file_and_writes_nothing_by_itself(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("aws")).returncode == 0
    older(tmp_path / "mine", "Makefile", "echo Done.", 'echo "Everything passed."')
    document = json.loads(init("mine", "--upgrade", "--json").stdout)
    assert [each["name"] for each in document["files"]] == ["Makefile"]
    assert document["written"] is False
    assert document["from"] == "0.0.9"


LINE = "trainfleet[aws,train]"
UNPINNED, MINE = (
    f"{LINE}>=0.1\npytest>=9\n",
    "trainfleet[aws,sky,train]==0.1.0\nacme-models\npytest>=9\nruff>=0.9\n",
)
FROM_WHEEL = f"# A copy of its wheel.\n--find-links wheels\n{LINE}==0.1.0\npytest>=9\n"


@pytest.mark.parametrize(
    ("base", "here", "new", "text"),
    [
        # A range that has the new version stays.
        (f"{LINE}==0.1.0\npytest>=9\n", UNPINNED, f"{LINE}==0.2.0\npytest>=9\n", None),
        (f"{LINE}==0.1.0\npytest>=9\n", UNPINNED, f"{LINE}==0.2.0\npytest>=9.1\n", UNPINNED.replace("=9", "=9.1")),
        # The pin is that of the new version, the extras are those of both.
        (
            f"{LINE}==0.1.0\npytest>=9\nruff>=0.9\n", MINE, "trainfleet[aws,kuberay,train]==0.2.0\npytest>=9\nruff>=0.9\n",
            MINE.replace("sky,train]==0.1.0", "sky,train,kuberay]==0.2.0"),
        ),
        # From a wheel to an index, and from an index to Git.
        (FROM_WHEEL, FROM_WHEEL.replace("pytest", "acme-models\npytest"), f"{LINE}==0.2.0\npytest>=9\n",
         f"{LINE}==0.2.0\nacme-models\npytest>=9\n"),
        (f"{LINE}==0.1.0\n", f"{LINE}>=0.1\n", f"{LINE} @ git+https://git.test/t.git@{'a' * 40}\n",
         f"{LINE} @ git+https://git.test/t.git@{'a' * 40}\n"),
        (f"{LINE}==0.1.0\n", f"{LINE}==0.1.0 ; python_version >= '3.11'  # ours\n", f"{LINE}==0.2.0\n",
         f"{LINE}==0.2.0 ; python_version >= \"3.11\"  # ours\n"),
    ],
    ids=["a range", "a range, other packages", "extras and a neighbour", "a wheel", "Git", "a marker and a comment"],
)  # fmt: skip
def test_the_pin_of_trainfleet_does_not_conflict(
    base: str, here: str, new: str, text: str | None, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text(here)
    found = merge(tmp_path, {"requirements.txt": base}, {"requirements.txt": new})
    assert [(each.fate, each.text) for each in found] == ([(Fate.MERGE, text)] if text else [])


def test_a_line_with_options_or_a_second_one_is_not_touched(tmp_path: Path) -> None:
    for here in (f"{LINE}==0.1.0 --hash=sha256:{'0' * 64}\n", f"{LINE}>=0.1\ntrainfleet[sky]\n"):
        (tmp_path / "requirements.txt").write_text(here)
        (found,) = merge(
            tmp_path,
            {"requirements.txt": f"{LINE}==0.1.0\n"},
            {"requirements.txt": f"{LINE}==0.2.0\n"},
        )
        assert found.fate is Fate.CONFLICT
