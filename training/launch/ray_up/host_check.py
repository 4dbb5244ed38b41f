"""Validates a run on its head, an existing host, before Ray starts there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from trainfleet.training.launch.ray_up.checks import SSH
from trainfleet.training.launch.ray_up.run_spec import RunSpec
from trainfleet.training.launch.remote.ray_job import FILES_FOLDER, RECIPE_FILE
from trainfleet.training.launch.remote.storage_env import trust_variables
from trainfleet.training.launch.run_check import MODULE, ProcessCheck, RunCheck, Unchecked
from trainfleet.training.recipe.load import dump
from trainfleet.training.runtime.code_archive import CODE

CA_NAME = "ca.crt"
COMMAND = "exec bash --login -s"
"""As Ray runs its commands: in a login shell, whose profile has the path of the packages."""
SCRIPT = """
check() {{
  umask 077
  folder=$(mktemp -d) || exit 1
  trap 'rm -rf "$folder"' EXIT
  {files}
  {exports}
  python -m {module} < /dev/null &
  child=$!
  # The input ends when the launcher has gone, and this must not outlive it.
  (cat > /dev/null; kill $child 2> /dev/null) <&0 > /dev/null 2>&1 &
  watch=$!
  wait $child
  code=$?
  pkill -P $watch 2> /dev/null
  kill $watch 2> /dev/null
  exit $code
}}
check
"""


def host_check(run: RunSpec, env: Mapping[str, str]) -> RunCheck:
    """The check of a run: a process on its head. Keys travel on the process's input, not in its arguments."""
    if not run.hosts:
        return Unchecked("its machines do not exist yet; they are paid for once they do")
    if run.docker:
        return Unchecked(f"the image {run.image} is only used by Ray")
    key = ["-i", run.ssh_key, "-o", "IdentitiesOnly=yes"] if run.ssh_key else []
    head = run.hosts[0]
    return ProcessCheck(("ssh", *SSH, *key, f"{run.ssh_user}@{head}", COMMAND), env, script(run, env), head)


def script(run: RunSpec, env: Mapping[str, str]) -> str:
    """What the head's shell reads."""
    files = {RECIPE_FILE: dump(run.recipe)} | ({CA_NAME: run.ca} if run.ca else {})
    values = run.env | {name: env[name] for name in run.secrets} | ({CODE: run.code} if run.code else {})
    own = {FILES_FOLDER: "$folder"}
    own |= trust_variables(run.env, f"$folder/{CA_NAME}") if run.ca else {}
    return SCRIPT.format(
        files="; ".join(f'printf %s {shlex.quote(text)} > "$folder/{name}"' for name, text in files.items()),
        exports="; ".join(
            [
                *(f"export {name}={shlex.quote(value)}" for name, value in values.items()),
                *(f'export {name}="{value}"' for name, value in own.items()),
            ]
        ),
        module=MODULE,
    )
