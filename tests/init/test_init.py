"""`trainfleet init`: what it creates, and what it refuses before it creates anything."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.init.conftest import CLOUDS, Init, options
from trainfleet import __version__
from trainfleet.errors import InputError
from trainfleet.init.answers import Answers, complete
from trainfleet.init.cli.init import _next_steps
from trainfleet.init.render import render
from trainfleet.init.requirement import Requirement, from_direct_url
from trainfleet.init.write import RECORD, create


def files_of(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def answers(cloud: str, ci: str = "github") -> Answers:
    given = options(cloud, "--ci", ci)
    return complete(
        {key.removeprefix("--"): value for key, value in zip(given[::2], given[1::2], strict=True)}
    )


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_repository_is_created_with_a_git_branch(cloud: str, init: Init, tmp_path: Path) -> None:
    done = init("platform", *options(cloud))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "platform"
    found = files_of(folder)
    assert {"Makefile", "Pulumi.yaml", "stacks/__main__.py", "policies/own_rules.py", RECORD} <= found
    stacks = (
        {"stacks/Pulumi.local.yaml"}
        if cloud == "local"
        else {"stacks/Pulumi.dev.yaml", "stacks/Pulumi.prod.yaml"}
    )
    assert {name for name in found if name.startswith("stacks/Pulumi")} == stacks
    assert (folder / ".git/HEAD").read_text() == "ref: refs/heads/main\n"
    assert "make check" in done.stdout


@pytest.mark.parametrize("ci", ["github", "gitlab", "none"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_file_is_complete(cloud: str, ci: str) -> None:
    for name, text in render(answers(cloud, ci), Requirement()).items():
        assert "{=" not in text, name
        assert "{%" not in text, name
        assert text.endswith("\n"), name
        assert not text.endswith("\n\n"), name
        if name.endswith(".py"):
            compile(text, name, "exec")
        if name.endswith((".yaml", ".yml")):
            assert yaml.safe_load(text), name


def test_the_documentation_range_is_named_until_it_is_replaced() -> None:
    given = answers("aws")
    readme = render(given, Requirement())["README.md"]
    assert "203.0.113.0/24" in readme
    own = complete(vars(given) | {"public_range": "198.51.100.0/24"})
    files = render(own, Requirement())
    assert "203.0.113.0/24" not in "".join(
        files[name] for name in files if name != "stacks/platform.schema.json"
    )


def test_every_mistake_is_reported_before_anything_is_created(init: Init, tmp_path: Path) -> None:
    done = init("platform", "--cloud", "gpc", "--name", "Acme!", "--owner", "me", "--ci", "jenkins")
    assert done.returncode == 2
    for option in ("--cloud", "--name", "--owner", "--ci"):
        assert option in done.stderr
    assert files_of(tmp_path) == set()


@pytest.mark.parametrize(
    ("cloud", "more", "expected"),
    [
        ("gcp", ("--account", ""), "--account"),
        ("local", ("--region", "us-east-2"), "--region"),
        ("aws", ("--public-range", "everyone"), "public_ranges"),
        ("aws", ("--account", "12"), "account"),
        ("azure", ("--admin", "somebody"), "admins"),
        ("aws", ("--yes",), "--yes"),
    ],
)
def test_an_answer_that_makes_no_valid_platform_is_refused(
    cloud: str, more: tuple[str, ...], expected: str, init: Init, tmp_path: Path
) -> None:
    done = init("platform", *options(cloud), *more)
    assert done.returncode == 2, done.stdout
    assert expected in done.stderr
    assert files_of(tmp_path) == set()


def test_nothing_is_overwritten(init: Init, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "stacks").mkdir(parents=True)
    (folder / "README.md").write_text("mine")
    (folder / "stacks" / "__main__.py").write_text("mine")
    done = init("mine", *options("aws"))
    assert done.returncode == 2
    assert "README.md" in done.stderr
    assert "__main__.py" in done.stderr
    assert files_of(folder) == {"README.md", "stacks/__main__.py"}


def test_a_second_run_names_upgrade(init: Init) -> None:
    assert init("mine", *options("aws")).returncode == 0
    done = init("mine", *options("aws"))
    assert done.returncode == 2
    assert "--upgrade" in done.stderr


def test_a_folder_within_a_git_repository_gets_no_second_one(init: Init, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert init("mine", *options("aws")).returncode == 0
    assert not (tmp_path / "mine" / ".git").exists()


def test_json_lists_the_files_and_asks_nothing(init: Init, tmp_path: Path) -> None:
    done = init("mine", *options("gcp"), "--json")
    document = json.loads(done.stdout)
    assert set(document["files"]) | {RECORD} == files_of(tmp_path / "mine")
    assert document["answers"]["cloud"] == "gcp"


@pytest.mark.parametrize(
    ("typed", "flag", "file"),
    [
        ("gitlab\n", (), ".gitlab-ci.yml"),
        ("\n", (), ".github/workflows/apply.yml"),
        ("", ("--ci", "gitlab"), ".gitlab-ci.yml"),
    ],
    ids=["an answer", "the default", "the option"],
)
def test_a_person_is_asked_for_what_is_missing(
    typed: str, flag: tuple[str, ...], file: str, init: Init, tmp_path: Path
) -> None:
    done = init("mine", "--owner", "ml@example.com", *flag, answers=f"acme\naws\n{typed}us-west-2\n")
    assert done.returncode == 0, done.stderr
    assert ("CI system" in done.stdout) == (not flag)
    given = json.loads((tmp_path / "mine" / RECORD).read_text())["answers"]
    assert (given["name"], given["cloud"], given["region"]) == ("acme", "aws", "us-west-2")
    assert (tmp_path / "mine" / file).is_file()


@pytest.mark.parametrize("folder", ["file", "file/mine"])
def test_a_folder_that_cannot_be_written_is_named(folder: str, init: Init, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = init(folder, *options("aws"))
    assert done.returncode == 2, done.stderr
    assert folder in done.stderr


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def fails(path: Path, data: str | bytes) -> None:
        if len(written) == 5:
            raise InputError("cannot write a file")
        written.append(path)
        path.write_text(str(data))

    monkeypatch.setattr("trainfleet.init.write.write_whole", fails)
    with pytest.raises(InputError):
        create(tmp_path / "mine", answers("aws"), render(answers("aws"), Requirement()), Requirement())
    assert len(written) == 5
    assert not (tmp_path / "mine").exists()


def test_a_wheel_comes_along(tmp_path: Path) -> None:
    wheel = tmp_path / "trainfleet-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    found = from_direct_url({"url": wheel.as_uri(), "archive_info": {}})
    assert found.wheel == wheel
    files = render(answers("aws"), found)
    create(tmp_path / "mine", answers("aws"), files, found)
    assert (tmp_path / "mine" / "wheels" / wheel.name).read_bytes() == b"wheel"
    assert "--find-links wheels" in files["requirements.txt"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"url": "https://example.com/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "trainfleet[aws] @ git+https://example.com/t.git@abc",
        ),
        (
            {"url": "https://example.com/t.whl", "archive_info": {}},
            "trainfleet[aws] @ https://example.com/t.whl",
        ),
        ({"url": "file:///gone/t.whl", "archive_info": {}}, "trainfleet[aws]==" + __version__),
        ({"url": "file:///checkout", "dir_info": {"editable": True}}, "trainfleet[aws]==" + __version__),
    ],
)
def test_the_requirement_repeats_where_trainfleet_came_from(
    document: dict[str, object], expected: str
) -> None:
    assert from_direct_url(document).line("aws") == expected


def test_what_pip_does_not_find_is_used_from_this_environment(tmp_path: Path) -> None:
    editable = _next_steps(tmp_path, answers("local"), Requirement())
    assert "make check PYTHON=python" in editable
    assert "requirements.txt does not say where pip finds" in editable
    from_git = _next_steps(tmp_path, answers("local"), Requirement(" @ git+https://example.com/it@1a2b"))
    assert "PYTHON=python" not in from_git
