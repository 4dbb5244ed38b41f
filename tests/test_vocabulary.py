"""The vocabulary check: every term by its own examples, every kind of place in a file, and the whole tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.vocabulary import (
    ROOT,
    TERMS,
    Checker,
    Hit,
    Term,
    TermError,
    Vocabulary,
    check_files,
    load,
    tracked,
    words_of,
)

VOCABULARY = load()
HITS = [
    pytest.param(term, each, id=f"{term.old[:20]}: {each[:30]}")
    for term in VOCABULARY.terms
    for each in term.hits
]
FINE = [
    pytest.param(term, each, id=f"{term.old[:20]}: {each[:30]}")
    for term in VOCABULARY.terms
    for each in term.fine
]


def found_in(path: str, source: str) -> list[tuple[int, str]]:
    """Line and rejected word of each hit in a file, names of folders and files left out."""
    checker = Checker(VOCABULARY)
    return [(hit.line, hit.old) for hit in checker.check(path, source) if hit not in checker.check(path, "")]


def matches(term: Term, example: str) -> bool:
    """Whether a term rejects an example, as text or as a name."""
    in_text = "text" in term.kinds and term.bounded.search(example.lower()) is not None
    return in_text or bool(term.kinds - {"text"} and term.in_name(words_of(example)))


@pytest.mark.parametrize(("term", "example"), HITS)
def test_every_old_word_is_rejected(term: Term, example: str) -> None:
    assert matches(term, example)


@pytest.mark.parametrize(("term", "example"), FINE)
def test_ordinary_english_passes(term: Term, example: str) -> None:
    assert not matches(term, example)


@pytest.mark.parametrize("term", VOCABULARY.terms, ids=lambda term: term.old[:30])
def test_every_term_has_examples_and_a_replacement_without_old_words(term: Term) -> None:
    assert term.hits, "add an example that must be rejected"
    assert term.fine, "add an example that must pass"
    assert found_in("docs/page.md", term.write) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def mend() -> None: ...", "mend"),
        ("async def mended() -> None: ...", "mended"),
        ("class WishList: ...", "wish"),
        ("def f(beside: int) -> None: ...", "beside"),
        ("def f(*, beside: int) -> None: ...", "beside"),
        ("f = lambda told: 1", "told"),
        ("_until_all_struck = 1", "struck"),
        ("class A:\n    wish: int", "wish"),
        ("def f(self):\n    self.trouble = 1", "trouble"),
        ("for wish in x: ...", "wish"),
        ("x = [told for told in y]", "told"),
        ("with a as said: ...", "said"),
        ("try: ...\nexcept E as trouble: ...", "trouble"),
        ("import room_service as room", "room"),
        ("if (said := 1): ...", "said"),
        ("match x:\n    case {'a': 1, **wishes}: ...", "wishes"),
    ],
)
def test_names_are_checked_where_they_are_defined(source: str, expected: str) -> None:
    assert [old for _, old in found_in("training/new.py", source)] == [expected]


@pytest.mark.parametrize(
    "source", ["print(x.wish)", "f(beside=1)", "from a import Wish", "del x.said", "x.told()"]
)
def test_a_use_of_a_name_from_elsewhere_is_not_reported(source: str) -> None:
    assert found_in("training/new.py", source) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("a.py", "# It goes on.\n", [(1, "goes on")]),
        ("a.py", "x = 1  # it goes on\n", [(1, "goes on")]),
        ("a.py", '"""One.\n\nIt\ngoes on."""\n', [(4, "goes on")]),
        ("a.py", '"""It goes\n    on."""\n', [(1, "goes on")]),
        ("a.py", "# It goes\n# on.\n", [(1, "goes on")]),
        ("a.py", 'x = "it goes on"\n', [(1, "goes on")]),
        ("a.py", 'x = ("it goes "\n     "on")\n', [(1, "goes on")]),
        ("a.py", 'x = f"{y} goes on at {z}"\n', [(1, "goes on")]),
        ("a.py", 'x = f"{y} is no {z}"\n', [(1, "is no")]),
        ("a.py", 'x = "now\\ngoes on"\n', [(1, "goes on")]),
        ("a.py", "x = 'a \"house\" of'\n", [(1, "house")]),
        ("a.md", "# Title\n\nIt goes\non.\n", [(3, "goes on")]),
        ("a.md", "| a | judged |\n|---|---|\n", [(1, "judged")]),
        ("a.md", "**Goes on** and `room`\n", [(1, "goes on"), (1, "room")]),
        ("a.yaml", "a: 1  # beside b\n", [(1, "beside")]),
        ("a.yaml", "# The run goes\n# on.\na: 1\n", [(1, "goes on")]),
        ("a.toml", 'say = "it lies in the folder"\n', [(1, "lies")]),
        ("a.sh", "#!/bin/sh\necho 'mend it'\n", [(2, "mend")]),
        ("a.html", "<p>None is\nthere.</p>\n", [(1, "none is there")]),
        ("a.j2", "{# beside #}{% if x %}mend{% endif %}\n", [(1, "beside"), (1, "mend")]),
        ("Makefile", "lint: ## Check the walls\n", [(1, "walls")]),
    ],
)
def test_text_is_checked_in_every_format(path: str, source: str, expected: list[tuple[int, str]]) -> None:
    assert found_in(path, source) == expected


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a.py", 'x = ["goes", "on"]\n'),
        ("a.py", 'x = "it goes"\n\n\ny = "on"\n'),
        ("a.py", 'x = f"{pool.room}"\n'),
        ("a.py", "x = f\"{pool['room']}\"\n"),
        ("a.py", "# It goes\nx = 1\n# on\n"),
        ("a.py", "# There\n# is no pool.\n"),
        ("a.py", "x = room.size\n"),
        ("a.md", "It goes\n\non.\n"),
        ("a.md", "- it goes\n- on\n"),
        ("a.md", "# It goes\non.\n"),
        ("a.md", "There\nis no pool.\n"),
        ("a.md", "See docs/troubleshooting.md.\n"),
        ("a.j2", "{{ row.room }}\n"),
        ("a.yaml", "# goes\na: on\n"),
    ],
)
def test_what_only_looks_like_an_old_word_passes(path: str, source: str) -> None:
    assert found_in(path, source) == []


def test_a_phrase_after_a_long_docstring_has_its_own_line() -> None:
    source = '"""A.\n\n' + "word word\n" * 50 + '"""\n\n\ndef f() -> None:\n    """It is made anew."""\n'
    assert found_in("a.py", source) == [(57, "anew")]


@pytest.mark.parametrize(
    ("path", "expected"), [("a/headway.py", 1), ("tests/test_headway.py", 1), ("headway/x.py", 1)]
)
def test_files_and_folders_are_names_too(path: str, expected: int) -> None:
    assert len(Checker(VOCABULARY).check(path, "")) == expected


def test_a_folder_is_reported_once() -> None:
    checker = Checker(VOCABULARY)
    assert len([*checker.check("headway/x.py", ""), *checker.check("headway/y.py", "")]) == 1


def test_a_hit_names_its_place_the_word_and_the_replacement() -> None:
    (hit,) = Checker(VOCABULARY).check("a.py", "_to_mend = 1\n")
    assert str(hit) == 'a.py:1: "mend" -> write "fix, repair" (in the name `_to_mend`)'


def test_a_term_is_checked_only_where_it_applies() -> None:
    only = Term("keep", frozenset({"parameter"}), "retain", only=("infra/*",))
    allow = Term("wish", frozenset({"name"}), "spec", allow=(("infra/old.py", "public until 0.2"),))
    checker = Checker(Vocabulary((only, allow), ("*.py",), ()))
    source = "def f(keep): ...\nwish = 1\n"

    def old(path: str) -> list[str]:
        return [hit.old for hit in checker.check(path, source)]

    assert old("infra/aws/new.py") == ["keep", "wish"]
    assert old("infra/old.py") == ["keep"]
    assert old("training/new.py") == ["wish"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('old = "a("\nin = ["text"]\nwrite = "b"', "a("),
        ('old = "a"\nin = ["texts"]\nwrite = "b"', "texts"),
        ('old = "a"\nin = ["text"]', "write"),
        ('old = "a"\nin = ["text"]\nwrite = "b"\nunless = "c"', "unless"),
        ('old = "a"\nin = ["text"]\nwrite = "b"\nallow = [{path = "x", reason = ""}]', "reason"),
    ],
)
def test_a_term_list_that_is_not_valid_is_rejected_by_name(tmp_path: Path, row: str, message: str) -> None:
    file = tmp_path / "terms.toml"
    file.write_text(f'files = ["*.py"]\n[[skip]]\npaths = []\nreason = "none"\n[[term]]\n{row}\n')
    with pytest.raises(TermError, match=r"entry 'a\(?' is not valid") as caught:
        load(file)
    assert message in str(caught.value)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.vocabulary", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_passes_over_files_that_the_list_skips() -> None:
    done = command(str(TERMS.relative_to(ROOT)), "LICENSE")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_command_refuses_a_path_outside_the_checkout(tmp_path: Path) -> None:
    done = command("--only", str(tmp_path))
    assert done.returncode == 2
    assert "does not exist in" in done.stderr


def test_each_file_of_the_tree_is_listed_once() -> None:
    paths = tracked()
    assert "tools/vocabulary.py" in paths
    assert len(paths) == len({(ROOT / path).resolve() for path in paths})


@pytest.mark.deep
def test_the_tree_uses_the_glossary() -> None:
    hits: list[Hit] = check_files(tracked(), VOCABULARY)
    shown = "\n".join(map(str, hits[:40]))
    assert not hits, f"{len(hits)} old words; `python -m tools.vocabulary` lists them all:\n{shown}"
