"""SkyPilot's configuration and kubeconfig are written from contracts, keep what the user has, and can be
restored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.launch.saved_platforms import STACKS, outputs
from trainfleet.errors import InputError
from trainfleet.files import write_whole
from trainfleet.infra.outputs.launcher_token import checked_token
from trainfleet.training.launch.remote.storage_env import SHARED_MOUNT
from trainfleet.training.launch.sky import configure
from trainfleet.training.launch.sky.config import (
    RAY_SETTINGS,
    accelerator_prices,
    context_config,
    context_name,
    merged,
)
from trainfleet.training.launch.sky.kubeconfig import masked, uses_own_context, with_context
from trainfleet.training.launch.sky.yaml_edit import changed

TOKEN = "header.payload.signature"
OTHER = "header.other.signature"
MINE = """\
# my own
allowed_clouds: [kubernetes, aws]  # both
kubernetes:
  # the one on my desk
  allowed_contexts: [minikube]
  context_configs:
    minikube:
      provision_timeout: 10  # it is quick

# behind it
aws:
  vpc_name: mine
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(env: dict[str, str], name: str, text: str) -> Path:
    file = Path(env["HOME"]) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_contexts_of_all_stacks_differ_even_if_two_clusters_have_one_name() -> None:
    names = [context_name(outputs(stack)) for stack in STACKS]
    assert len(set(names)) == len(names)
    assert outputs("aws-prod").kube_context == outputs("azure-prod").kube_context
    assert context_name(outputs("gcp-prod")) == outputs("gcp-prod").kube_context, (
        "SkyPilot reads a GKE context's name"
    )


@pytest.mark.parametrize("stack", STACKS)
def test_a_context_sets_the_service_account_the_provision_timeout_and_the_queue(stack: str) -> None:
    platform = outputs(stack)
    found = context_config(platform)
    assert found["remote_identity"] == "trainer"
    assert found["provision_timeout"] >= 900, "a GPU node takes minutes from zero"
    assert found["autoscaler"] == ("gke" if stack.startswith("gcp") else "generic")
    assert found["set_pod_resource_limits"] is False, "a CPU limit throttles the pods"
    assert found.get("kueue", {}).get("local_queue_name", "") == platform.queue
    pod = found["pod_config"]
    assert pod.get("metadata", {}).get("labels", {}) == platform.pod_labels
    environment = {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}
    for secret in platform.secrets:
        assert environment[secret.upper().replace("-", "_")]["valueFrom"]["secretKeyRef"] == {
            "name": secret,
            "key": "value",
            "optional": True,
        }


def test_certificates_are_signed_before_the_pod_starts_and_only_our_ray_uses_them() -> None:
    pod = context_config(outputs("aws-prod"))["pod_config"]["spec"]
    container, init = pod["containers"][0], pod["initContainers"][0]
    names = {each["name"] for each in container["env"]}
    assert RAY_SETTINGS in names
    assert not any(name.startswith("RAY_") for name in names), (
        "SkyPilot's own Ray, which does not support TLS, reads them"
    )
    assert not [volume for volume in pod["volumes"] if volume.get("secret")], "no pod mounts a key of the CA"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    (token,) = (volume["name"] for volume in pod["volumes"] if "projected" in volume)
    assert token not in mounted, "the token for the signer belongs to the init container"
    assert token in {mount["name"] for mount in init["volumeMounts"]}


@pytest.mark.parametrize("tls", [True, False])
def test_the_shared_filesystem_is_mounted_where_kuberay_mounts_it(tls: bool) -> None:
    platform = outputs("aws-prod", **({} if tls else {"ray_certificates": None}))
    pod = context_config(platform)["pod_config"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    (volume,) = (volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume)
    assert volume["persistentVolumeClaim"] == {"claimName": platform.shared_volume}
    assert mounts[volume["name"]] == SHARED_MOUNT
    assert len(mounts) == (2 if tls else 1)


def test_the_keys_of_a_platforms_store_are_in_its_context() -> None:
    (container,) = context_config(outputs("aws-prod", storage_secret="s3-keys"))["pod_config"]["spec"][
        "containers"
    ]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]


def test_the_context_of_an_existing_cluster_is_the_users_own() -> None:
    """Its contract holds no login: kubectl would ask for a user name."""
    login = json.loads(outputs("aws-prod").kubeconfig)
    assert not uses_own_context(outputs("aws-prod"))
    login["users"][0]["user"] = {}
    assert uses_own_context(outputs("aws-prod", kubeconfig=json.dumps(login)))
    assert uses_own_context(outputs("aws-prod", launcher_account=""))


def test_a_platform_without_tls_queue_or_autoscaler_has_no_settings_for_them() -> None:
    found = context_config(
        outputs("aws-dev", ray_certificates=None, queue="", autoscaler="", secrets=[], priority_classes=[])
    )
    assert set(found) == {
        "namespace",
        "remote_identity",
        "provision_timeout",
        "set_pod_resource_limits",
        "pricing",
        "pod_config",
    }
    assert found["provision_timeout"] < 300
    assert found["pod_config"] == {"spec": {"containers": [{"imagePullPolicy": "IfNotPresent"}]}}


def test_prices_are_those_of_the_cheapest_pool_per_gpu_and_unknown_ones_are_left_out() -> None:
    assert accelerator_prices(outputs("azure-prod").pools) == {"A100-80GB": 3.673, "H100": 12.29}


def test_the_users_settings_are_kept() -> None:
    user: dict[str, Any] = {
        "kubernetes": {
            "allowed_contexts": ["mine"],
            "ports": "ingress",
            "context_configs": {"there": {"dws": {"enabled": True}}},
        },
        "aws": {"a": 1},
    }
    found = merged(user, {"there": {"namespace": "training"}})
    assert found["kubernetes"]["allowed_contexts"] == ["mine", "there"]
    assert found["kubernetes"]["context_configs"]["there"] == {
        "dws": {"enabled": True},
        "namespace": "training",
    }
    assert (found["kubernetes"]["ports"], found["aws"]) == ("ingress", {"a": 1})
    assert user["kubernetes"]["allowed_contexts"] == ["mine"], "the user's document must not be modified"
    assert (
        merged({"kubernetes": {"allowed_contexts": "all"}}, {"there": {}})["kubernetes"]["allowed_contexts"]
        == "all"
    )
    assert merged({"jobs": {"controller": {"x": 1}}}, {}, managed=True)["jobs"] == {"controller": {"x": 1}}
    assert merged({}, {}, managed=True)["jobs"] == {"controller": {"consolidation_mode": True}}
    assert "jobs" not in merged({}, {}), "without managed jobs, their processes must not start"


def test_comments_and_order_of_the_users_file_are_kept() -> None:
    expected = merged(
        yaml.safe_load(MINE), {"there": {"namespace": "training", "pricing": {"accelerators": {"L4": 0.5}}}}
    )
    text, lost = changed(MINE, expected)
    assert yaml.safe_load(text) == expected
    assert not lost
    for comment in ("# my own", "# both", "# the one on my desk", "# it is quick", "# behind it"):
        assert comment in text
    assert text.index("aws:") > text.index("there:")


def test_a_file_that_cannot_be_edited_in_place_is_rewritten_with_a_note() -> None:
    text, lost = changed(
        "kubernetes: {allowed_contexts: [a]}  # short\n",
        {"kubernetes": {"allowed_contexts": ["a", "b"]}, "x": 1},
    )
    assert yaml.safe_load(text) == {"kubernetes": {"allowed_contexts": ["a", "b"]}, "x": 1}
    assert changed("{a: 1}  # all of it\n", {"a": 2}) == ("a: 2\n", True)
    assert lost is ("# short" not in text), "a comment was removed without a note"
    text, lost = changed("a: [1]  # mine\nb: 2  # yours\n", {"a": [1, 2], "b": 2})
    assert ("# yours" in text, lost) == (True, "# mine" not in text)


VALUES = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.text("ab #:-'\n", max_size=6), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUES, max_size=4)


@settings(deadline=None)
@given(DOCUMENTS, DOCUMENTS)
def test_the_edited_text_parses_to_the_expected_document(
    before: dict[str, Any], expected: dict[str, Any]
) -> None:
    text, _ = changed(yaml.safe_dump(before) if before else "", expected)
    assert (yaml.safe_load(text) or {}) == expected


def test_a_setup_is_written_printed_without_its_token_and_undone(env: dict[str, str]) -> None:
    config = write(env, ".sky/config.yaml", MINE)
    found = configure.prepare([(outputs("aws-prod"), TOKEN), (outputs("gcp-prod"), OTHER)], env)
    shown = "".join(change.difference() for change in found.changes)
    assert "payload" not in shown
    assert "trainfleet-prod-us-east-2" in shown
    configure.apply(found)
    access = Path(env["HOME"]) / ".kube" / "config"
    assert access.stat().st_mode & 0o777 == 0o600
    document = yaml.safe_load(access.read_text())
    assert {user["user"]["token"] for user in document["users"]} == {TOKEN, OTHER}
    assert not any("exec" in user["user"] for user in document["users"])
    assert {each["context"]["namespace"] for each in document["contexts"]} == {"training"}
    assert configure.prepare([(outputs("aws-prod"), TOKEN), (outputs("gcp-prod"), OTHER)], env).empty, (
        "the second setup must change nothing"
    )
    configure.apply_undo(configure.undo(env), env)
    assert config.read_text() == MINE
    assert not access.exists()
    with pytest.raises(InputError, match="nothing to undo"):
        configure.undo(env)


def test_undoing_two_setups_restores_the_state_before_the_first(env: dict[str, str]) -> None:
    config = write(env, ".sky/config.yaml", MINE)
    for stack in ("aws-prod", "gcp-prod"):
        configure.apply(configure.prepare([(outputs(stack), TOKEN)], env))
    configure.apply_undo(configure.undo(env), env)
    assert config.read_text() == MINE


def test_undoing_keeps_later_changes(env: dict[str, str]) -> None:
    config = write(env, ".sky/config.yaml", MINE)
    configure.apply(configure.prepare([(outputs("aws-prod"), TOKEN)], env))
    config.write_text(config.read_text() + "gcp: {}\n")
    with pytest.raises(InputError, match="was changed since"):
        configure.undo(env)
    assert "gcp" in config.read_text()


def test_a_failed_setup_leaves_every_file_unchanged(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(env, ".sky/config.yaml", MINE)
    found = configure.prepare([(outputs("aws-prod"), TOKEN)], env)
    real = write_whole

    def failing(path: Path, data: str, mode: int = 0o644) -> None:
        if path == config and data != MINE:
            raise InputError("cannot write a file", [])
        real(path, data, mode)

    monkeypatch.setattr(configure, "write_whole", failing)
    with pytest.raises(InputError, match="cannot write"):
        configure.apply(found)
    assert config.read_text() == MINE
    assert not (Path(env["HOME"]) / ".kube" / "config").exists()


def test_a_context_with_the_users_login_is_kept_unless_asked(env: dict[str, str]) -> None:
    name = context_name(outputs("gcp-prod"))
    theirs = {
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": {"exec": {}}}],
    }
    write(env, ".kube/config", yaml.safe_dump(theirs))
    with pytest.raises(InputError, match="a context of yours has this name"):
        configure.prepare([(outputs("gcp-prod"), TOKEN)], env)
    found = configure.prepare([(outputs("gcp-prod"), TOKEN)], env, replace=True)
    document = yaml.safe_load(found.changes[0].after or "")
    assert [user["name"] for user in document["users"]] == [name, f"trainfleet-launcher-{name}"], (
        "the login itself must be kept"
    )


def test_a_platform_without_a_launcher_account_needs_its_context_in_the_kubeconfig(
    env: dict[str, str],
) -> None:
    platform = outputs("aws-dev", launcher_account="", kube_context="kind-kind", region="")
    with pytest.raises(InputError, match="no context `kind-kind`"):
        configure.prepare([(platform, None)], env)
    write(env, ".kube/config", yaml.safe_dump({"contexts": [{"name": "kind-kind", "context": {}}]}))
    found = configure.prepare([(platform, None)], env)
    assert [change.empty for change in found.changes] == [True, False], "the kubeconfig must not change"


def test_managed_jobs_add_the_plug_in_next_to_the_users_plug_ins(
    env: dict[str, str],
) -> None:
    mine = "# mine\nplugins:\n- class: my.Plugin  # keep\n"
    file = write(env, ".sky/plugins.yaml", mine)
    platforms = [(outputs("aws-prod"), TOKEN)]
    configure.apply(configure.prepare(platforms, env))
    assert file.read_text() == mine, "managed jobs were not requested"
    found = configure.prepare(platforms, env, managed=True)
    assert configure.PLUGIN in "".join(change.difference() for change in found.changes)
    configure.apply(found)
    assert [each["class"] for each in yaml.safe_load(file.read_text())["plugins"]] == [
        "my.Plugin",
        configure.PLUGIN,
    ]
    assert configure.prepare(platforms, env, managed=True).empty
    assert yaml.safe_load((Path(env["HOME"]) / ".sky/config.yaml").read_text())["jobs"]["controller"] == {
        "consolidation_mode": True
    }
    configure.apply_undo(configure.undo(env), env)
    assert file.read_text() == mine


def test_unreadable_plug_ins_are_kept(env: dict[str, str]) -> None:
    file = write(env, ".sky/plugins.yaml", "plugins: text\n")
    with pytest.raises(InputError, match="configuration"):
        configure.prepare([(outputs("aws-prod"), TOKEN)], env, managed=True)
    assert file.read_text() == "plugins: text\n"


@pytest.mark.parametrize(
    ("kubeconfig", "says"),
    [
        ("", "is empty"),
        ("{}", "no cluster address"),
        (json.dumps({"clusters": [{"cluster": {"server": "http://10.0.0.1"}}]}), "a token is not sent"),
    ],
)
def test_a_contract_without_an_address_is_rejected(kubeconfig: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        with_context({}, outputs("aws-dev", kubeconfig=kubeconfig), TOKEN, file=Path("config"))


def test_two_platforms_with_one_context_are_rejected(env: dict[str, str]) -> None:
    with pytest.raises(InputError, match="cannot be distinguished"):
        configure.prepare([(outputs("aws-dev"), TOKEN), (outputs("aws-dev"), OTHER)], env)


@pytest.mark.parametrize("text", ["- a list", "{", "a: [", "kubernetes: text"])
def test_an_unreadable_configuration_is_kept(env: dict[str, str], text: str) -> None:
    file = write(env, ".sky/config.yaml", text)
    with pytest.raises(InputError, match="configuration"):
        configure.prepare([(outputs("aws-dev"), TOKEN)], env)
    assert file.read_text() == text


@pytest.mark.parametrize("token", ["", "one", "a.b", "a..c", "a.b .c", "a.b.c.d", "a.b.c\nd"])
def test_an_invalid_token_is_rejected_before_a_cluster_is_called(token: str) -> None:
    with pytest.raises(InputError, match="is not a service account's token"):
        checked_token(token, "file")


def test_secrets_of_a_kubeconfig_are_not_printed() -> None:
    secret = {"users": [{"user": {"token": "planted", "client-key-data": "planted", "password": "planted"}}]}
    assert "planted" not in masked(secret)
