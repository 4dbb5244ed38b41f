"""The measurement of false alarms on public programs: checking out, running, classification, and what pages quote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools import figures, public_programs
from tools.public_programs import ANSWERS, FALSE_ALARM, MISSING, PASSED, REJECTED, STACK, Program, Result
from trainfleet.errors import Problem
from trainfleet.rehearsal.report import Report, Step

ROWS = list(public_programs.programs())
RESULTS = public_programs.results()
ON_ENGINE = public_programs.results(public_programs.ENGINE_RESULTS)


def git(root: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *settings, *arguments], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


PULUMI = """
name: ${PROJECT}
runtime: python
template:
  config:
    aws:region: {default: us-east-1}
    size: {default: t3.micro}
    secret: {secret: true}
"""
MAIN = """
import pulumi, socket, pulumi_aws as aws
config = pulumi.Config()
config.require("secret")
aws.ec2.Instance("server", ami="ami-0123456789abcdef0", instance_type=config.require("size"), %s)
pulumi.ComponentResource("kubernetes:helm.sh/v3:Chart", "chart")
"""


def mirror(folder: Path, argument: str = "", name: str = "name") -> tuple[Path, Program]:
    """A folder of clones with one program."""
    repository = folder / "owner" / name
    (repository / "deep" / "program").mkdir(parents=True)
    git(repository, "init", "-q")
    (repository / "deep" / "program" / "Pulumi.yaml").write_text(PULUMI)
    (repository / "deep" / "program" / "__main__.py").write_text(MAIN % argument)
    (repository / "other.txt").write_text("x")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "a program")
    commit = git(repository, "rev-parse", "HEAD")
    return folder, Program(f"owner/{name}", commit, "deep/program", {"secret": "s"})


def test_a_program_is_checked_out_as_pulumi_new_does(tmp_path: Path) -> None:
    clones, program = mirror(tmp_path / "clones")
    folder = tmp_path / "here"
    public_programs.check_out(clones / program.repository, program, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        f"Pulumi.{STACK}.yaml",
        "Pulumi.yaml",
        "__main__.py",
    ]
    assert "name: public\n" in (folder / "Pulumi.yaml").read_text()
    config = yaml.safe_load((folder / f"Pulumi.{STACK}.yaml").read_text())["config"]
    assert config["aws:region"] == "us-east-1"
    assert (config["public:size"], config["public:secret"]) == ("t3.micro", "s")


def test_a_folder_that_the_commit_lacks_is_named(tmp_path: Path) -> None:
    clones, program = mirror(tmp_path / "clones")
    with pytest.raises(ValueError, match="has no absent at"):
        public_programs.check_out(
            clones / "owner/name", Program("owner/name", program.commit, "absent"), tmp_path
        )


PROGRAMS = {
    "right": ("", PASSED, ""),
    "unknown": ('tags={"a": "b"}, ebs_optimised=True', FALSE_ALARM, "ebs_optimised"),
    "value": ('credit_specification={"cpu_credits": "unlimitd"}', FALSE_ALARM, "cpuCredits"),
    "network": ('key_name=str(socket.create_connection(("127.0.0.1", 9)))', FALSE_ALARM, "no network"),
}


@pytest.mark.deep
def test_the_command_checks_each_resource_of_each_program(tmp_path: Path) -> None:
    clones, rows = tmp_path / "clones", []
    for name, (argument, _, _) in PROGRAMS.items():
        _, program = mirror(clones, argument, name)
        rows.append(
            f'[[repository]]\nname = "{program.repository}"\ncommit = "{program.commit}"\n'
            f'[[repository.program]]\npath = "{program.path}"\nconfig = {{secret = "s"}}\n'
        )
    (tmp_path / "programs.toml").write_text("".join(rows))
    files = ["--programs", str(tmp_path / "programs.toml"), "--results", str(tmp_path / "results.toml")]
    command = [sys.executable, "-m", "tools.public_programs", "--mirror", str(clones), "--write", *files]
    done = subprocess.run(
        command, cwd=public_programs.ROOT, check=False, capture_output=True, text=True, timeout=250
    )
    found = public_programs.results(tmp_path / "results.toml")
    assert "public_programs_share = 25 %" in done.stdout, done.stdout + done.stderr
    for name, (_, outcome, problem) in PROGRAMS.items():
        row = found[f"owner/{name}/deep/program"]
        assert (row.outcome, row.resources) == (outcome, 2 if outcome == PASSED else 0), row
        assert problem in " ".join(row.problems)


PROBLEM = Problem("aws:ec2/vpc:Vpc main cidrBlock", "'x' is not a range")


@pytest.mark.parametrize(
    ("ok", "more", "outcome"),
    [
        (True, {}, PASSED),
        (True, {"missing": "an SDK"}, PASSED),
        (False, {}, FALSE_ALARM),
        (False, {"missing": "an SDK"}, MISSING),
        (False, {"rejected": {"Vpc main cidrBlock": "it is not one"}}, REJECTED),
        (False, {"rejected": {"Vpc other cidrBlock": "it is not one"}}, FALSE_ALARM),
    ],
)
def test_a_rejection_without_its_explanation_is_a_false_alarm(
    ok: bool, more: dict[str, object], outcome: str
) -> None:
    step = Step("preview", "preview", ok=ok, problems=[] if ok else [PROBLEM])
    program = Program("o/n", "c", "p", **more)  # type: ignore[arg-type] # a row of the table
    assert public_programs.outcome(program, Report("", "", 0, [step])).outcome == outcome


def test_needing_answers_is_not_a_false_alarm() -> None:
    asked = Problem("rehearsal.toml", "the simulated clouds have no answer to: aws:route53/getZone:getZone")
    for problems, outcome in (([asked], ANSWERS), ([asked, PROBLEM], FALSE_ALARM)):
        step = Step("preview", "preview", ok=False, problems=problems)
        report = Report("", "", 0, [step])
        assert public_programs.outcome(Program("o/n", "c", "p"), report).outcome == outcome


def test_every_false_alarm_is_explained_and_nothing_else() -> None:
    why = {each.name: each.false_alarm for each in ROWS if each.false_alarm}
    measured = (*RESULTS.values(), *ON_ENGINE.values())
    alarms = {each.program for each in measured if each.outcome == FALSE_ALARM}
    assert set(why) == alarms
    assert {each.program: each.explanation for each in measured if each.explanation} == why


def test_an_explanation_does_not_make_a_false_alarm_right() -> None:
    program = Program("o/n", "c", "p", false_alarm="an output of a component is missing")
    for ok, outcome, explanation in ((False, FALSE_ALARM, program.false_alarm), (True, PASSED, "")):
        step = Step("check", "check", ok=ok, problems=[] if ok else [PROBLEM])
        found = public_programs.outcome(program, Report("", "", 0, [step]))
        assert (found.outcome, found.explanation) == (outcome, explanation)


def test_one_explained_problem_does_not_excuse_another() -> None:
    step = Step("preview", "preview", ok=False, problems=[PROBLEM, Problem("b", "c")])
    program = Program("o/n", "c", "p", rejected={"Vpc main cidrBlock": "it is not one"})
    assert public_programs.outcome(program, Report("", "", 0, [step])).outcome == FALSE_ALARM


def test_a_result_has_no_path_of_the_machine() -> None:
    problem = Problem("/a/lib/site-packages/pulumi/x.py:3", "no '/tmp/public-program-x/program/app/a.zip'")
    report = Report("", "", 0, [Step("preview", "preview", ok=False, problems=[problem])])
    (text,) = public_programs.outcome(Program("o/n", "c", "p"), report).problems
    assert text == "pulumi/x.py:3: no 'app/a.zip'"


def test_the_share_is_of_what_is_right() -> None:
    kinds = [PASSED] * 3 + [FALSE_ALARM] + [REJECTED] * 5 + [MISSING] + [ANSWERS] * 2
    found = {str(index): Result(str(index), kind) for index, kind in enumerate(kinds)}
    assert public_programs.figures(found) == {
        "public_programs": "11",
        "public_programs_passed": "3",
        "public_programs_rejected": "5",
        "public_programs_false_alarms": "1",
        "public_programs_missing": "1",
        "public_programs_needing_answers": "2",
        "public_programs_share": "75 %",
    }


def test_results_are_what_was_written(tmp_path: Path) -> None:
    found = {"o/n/p": Result("o/n/p", FALSE_ALARM, 3, "check", ('a "quoted" problem\n', "b"), "not known")}
    file = tmp_path / "results.toml"
    file.write_text(public_programs.written(found))
    assert public_programs.results(file) == found


def test_every_program_has_a_result_and_the_other_way_round() -> None:
    assert sorted(RESULTS) == sorted(ON_ENGINE) == sorted(each.name for each in ROWS)
    assert len({each.name for each in ROWS}) == len(ROWS)


def test_there_are_enough_programs_over_all_packages_and_nearly_all_pass() -> None:
    computed = public_programs.figures(RESULTS)
    assert int(computed["public_programs"]) >= 60
    assert int(computed["public_programs_share"].split()[0]) >= 95
    passed = " ".join(each.program for each in RESULTS.values() if each.outcome == PASSED)
    assert all(word in passed for word in ("aws-py", "azure-py", "gcp-py", "kubernetes-py"))


def test_pages_quote_the_computed_figures() -> None:
    computed = public_programs.all_figures()
    quoted = {
        match["name"]: match["text"]
        for page in figures.pages()
        for match in figures.QUOTED.finditer(page.read_text(encoding="utf-8"))
        if match["name"].startswith("public_programs")
    }
    for on in ("", "_on_engine"):
        assert {f"public_programs{name}{on}" for name in ("", "_passed", "_false_alarms")} <= set(quoted)
    assert quoted == {name: computed[name] for name in quoted}


def test_the_results_are_of_the_locked_sdks() -> None:
    """After an upgrade, the programs are tried again."""
    locked = {
        name: found
        for line in (public_programs.ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
        if (name := line.partition("==")[0]) in public_programs.SDKS
        and (found := line.partition("==")[2].partition(" ")[0])
    }
    assert public_programs.sdks() == public_programs.sdks(public_programs.ENGINE_RESULTS) == locked
