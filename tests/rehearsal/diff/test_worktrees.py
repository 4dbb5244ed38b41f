"""Two clean copies out of git: which commits, what counts as uncommitted, and that nothing is written into
the
repository.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rehearsal.diff.repos import PROJECT, STACK, Repo, make_repo
from trainfleet.errors import InputError
from trainfleet.rehearsal.diff.diff import DiffOptions, sides
from trainfleet.rehearsal.diff.worktrees import Repository, refuse_uncommitted, scratch


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        action()
    return str(error.value)


def test_on_a_branch_the_base_is_where_it_left_main(repo: Repo) -> None:
    fork = repo.git("rev-parse", "HEAD")
    repo.git("checkout", "-q", "-b", "change")
    repo.commit("one")
    repo.commit("two")
    base, head = sides(Repository(repo.root), DiffOptions())
    assert (base.commit, base.shown_as) == (fork, "merge base with main")
    assert head.commit == repo.git("rev-parse", "HEAD")


def test_on_main_the_base_is_the_commit_before(repo: Repo) -> None:
    first = repo.git("rev-parse", "HEAD")
    repo.commit("second")
    base, _ = sides(Repository(repo.root), DiffOptions())
    assert base.commit == first


def test_a_working_tree_on_main_is_compared_with_head(repo: Repo) -> None:
    base, head = sides(Repository(repo.root), DiffOptions(worktree=True))
    assert base.commit == repo.git("rev-parse", "HEAD")
    assert (head.tree, head.short) == ("", "working tree")


def test_a_first_commit_has_nothing_to_compare_with(repo: Repo) -> None:
    assert "no commit before it" in refused(lambda: sides(Repository(repo.root), DiffOptions()))


def test_an_unknown_base_offers_the_nearest_name(repo: Repo) -> None:
    repo.git("branch", "release-2")
    message = refused(lambda: sides(Repository(repo.root), DiffOptions(base="relaese-2")))
    assert "git has no commit `relaese-2`" in message
    assert "did you mean `release-2`?" in message


def test_a_ref_that_looks_like_a_flag_is_not_used_as_one(repo: Repo) -> None:
    assert "git has no commit" in refused(lambda: sides(Repository(repo.root), DiffOptions(base="--help")))


def test_a_shallow_clone_says_how_to_get_the_rest(repo: Repo, tmp_path: Path) -> None:
    repo.commit("second")
    repo.git("clone", "-q", "--depth", "1", f"file://{repo.top}", str(tmp_path / "shallow"))
    message = refused(lambda: sides(Repository(tmp_path / "shallow"), DiffOptions(base="HEAD~1")))
    assert "git fetch --unshallow" in message


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path / "plain")
    assert "not in a git repository" in refused(lambda: Repository(tmp_path / "plain"))


def test_uncommitted_changes_are_listed_with_what_to_do(repo: Repo) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    repo.write("infra/new.py", "")
    (repo.root / "infra/parts.py").unlink()
    message = refused(lambda: refuse_uncommitted(Repository(repo.root)))
    assert f"{STACK}: is changed" in message
    assert "infra/new.py: is untracked" in message
    assert "infra/parts.py: is deleted" in message
    assert "--worktree" in message


def test_a_report_in_the_checkout_does_not_count_as_uncommitted(repo: Repo) -> None:
    repo.write("diff.html", "<p>")
    repo.write("ignored.py", "")
    refuse_uncommitted(Repository(repo.root))


@pytest.mark.parametrize(
    "file",
    [
        "queue-1.0.0.tgz",
        "charts/queue/templates/_names.tpl",
        "charts/queue/files/motd",
        "charts/queue/.helmignore",
    ],
)
def test_an_untracked_file_of_a_chart_counts_as_uncommitted(tmp_path: Path, file: str) -> None:
    repo = make_repo(tmp_path / "repo", PROJECT, below="platform")
    repo.write("charts/queue/Chart.yaml", "name: queue\n")
    repo.commit("a chart")
    refuse_uncommitted(Repository(repo.root))
    repo.write(file, "new")
    message = refused(lambda: refuse_uncommitted(Repository(repo.root)))
    assert f"{file}: is untracked" in message


def test_a_named_head_leaves_uncommitted_changes_out(repo: Repo) -> None:
    repo.commit("second")
    repo.replace(STACK, "team: ml", "team: vision")
    _, head = sides(Repository(repo.root), DiffOptions(head="HEAD"))
    assert head.commit == repo.git("rev-parse", "HEAD")


def test_two_heads_are_refused(repo: Repo) -> None:
    assert "conflicting options" in refused(
        lambda: sides(Repository(repo.root), DiffOptions(head="main", worktree=True))
    )


def test_a_checkout_is_the_commit_and_not_the_working_tree(repo: Repo, tmp_path: Path) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    repository = Repository(repo.root)
    root = repository.check_out(repository.revision("HEAD", "--head"), tmp_path / "out")
    assert "team: ml" in (root / STACK).read_text()


def test_a_working_tree_has_what_is_new_and_not_what_is_ignored_or_deleted(
    repo: Repo, tmp_path: Path
) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    repo.write("infra/new.py", "")
    repo.write("ignored.py", "")
    (repo.root / "infra/parts.py").unlink()
    root = Repository(repo.root).check_out(Repository(repo.root).working_tree(), tmp_path / "out")
    assert "team: vision" in (root / STACK).read_text()
    assert (root / "infra/new.py").is_file()
    assert not (root / "ignored.py").exists()
    assert not (root / "infra/parts.py").exists()


def test_a_project_below_gits_top_is_found_in_the_checkout(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "mono", PROJECT, below="platforms/ml")
    repository = Repository(repo.root)
    for revision, name in (
        (repository.revision("HEAD", "--head"), "commit"),
        (repository.working_tree(), "tree"),
    ):
        root = repository.check_out(revision, tmp_path / name)
        assert root == tmp_path / name / "platforms/ml"
        assert (root / STACK).is_file()


def everything(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_the_repository_is_only_read(repo: Repo, tmp_path: Path) -> None:
    repo.commit("second")
    os.utime(repo.root / STACK)  # makes git want to refresh its index
    before = everything(repo.top)
    repository = Repository(repo.root)
    base, head = sides(repository, DiffOptions())
    repository.check_out(base, tmp_path / "base")
    repository.check_out(head, tmp_path / "head")
    assert everything(repo.top) == before


def test_git_set_up_by_a_hook_is_not_in_the_way(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert Repository(repo.root).revision("HEAD", "--head").commit == Repository(repo.root).git(
        "rev-parse", "HEAD"
    )


def test_the_scratch_folder_goes_away_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def interrupted() -> None:
        with scratch() as folder:
            (folder / "file").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
