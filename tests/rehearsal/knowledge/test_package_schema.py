"""From a Pulumi package schema to a table, and from there to what a change does."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainfleet.errors import InputError
from trainfleet.files import write_whole
from trainfleet.rehearsal.cli.knowledge import knowledge
from trainfleet.rehearsal.knowledge.package_schema import from_schema
from trainfleet.rehearsal.knowledge.update import schema_file, update
from trainfleet.rehearsal.simulation.knowledge_table import (
    SHIPPED,
    Row,
    Table,
    read_table,
    tables,
    write_table,
)
from trainfleet.rehearsal.simulation.replacement import Effect, Rules, effects
from trainfleet.toolchain import ENGINE, build_lock, cache_folder, find_go, run_go

NEWEST_ENGINE = Path(__file__).parents[1] / "newest_engine"
TOKEN = "aws:shop/disk:Disk"
SCHEMA: dict[str, Any] = {
    "name": "aws",
    "version": "99.1.0",
    "types": {
        "aws:shop/Mount:Mount": {
            "properties": {
                "path": {"type": "string", "willReplaceOnChanges": True},
                "readonly": {"type": "boolean"},
                "inner": {"$ref": "#/types/aws:shop/Mount:Mount"},
            }
        }
    },
    "resources": {
        TOKEN: {
            "inputProperties": {
                "size": {"type": "integer"},
                "kmsKeyId": {"type": "string", "willReplaceOnChanges": True},
                "owner": {"type": "string", "replaceOnChanges": True},
                "mounts": {"type": "array", "items": {"$ref": "#/types/aws:shop/Mount:Mount"}},
            }
        }
    },
}
BEFORE = Table(
    "aws",
    "shipped",
    "1",
    "2026-01-01",
    "1.0.0",
    {
        TOKEN: Row(
            replace=("size",),
            when={"size": ("shrinks",), "kmsKeyId": ("added",)},
            unclear={"owner": "newer than the source", "mounts": "decide"},
            sets=("mounts",),
        )
    },
    ("region",),
)


def test_what_the_schema_marks_replaces_also_inside_lists_of_objects() -> None:
    row = from_schema(SCHEMA, date="2026-11-26", source="schema.json").types[TOKEN]
    assert row.replace == ("kmsKeyId", "mounts[*].path", "owner"), "a type within itself is read once"


def test_what_a_schema_cannot_say_is_kept() -> None:
    table = from_schema(SCHEMA, date="2026-11-26", source="schema.json", before=BEFORE)
    row = table.types[TOKEN]
    assert (row.sets, row.when, row.unclear) == (("mounts",), {"size": ("shrinks",)}, {"mounts": "decide"})
    assert (table.version, table.every) == ("99.1.0", ("region",))


def test_a_wrong_row_shows_in_what_a_change_does() -> None:
    """The relation of table and differ: without a property in `replace`, the verdict changes."""
    table = from_schema(SCHEMA, date="2026-11-26", source="schema.json", before=BEFORE)
    right, row = Rules({"aws": table}, {}), table.types[TOKEN]
    wrong = Rules({"aws": Table("aws", "s", "1", "d", "1", {TOKEN: Row(row.replace[1:], row.when)}, ())}, {})
    change = ({"kmsKeyId": "a"}, {"kmsKeyId": "b"})
    assert list(effects(TOKEN, *change, right).values()) == [Effect.REPLACE]
    assert list(effects(TOKEN, *change, wrong).values()) == [Effect.UPDATE]
    assert list(effects(TOKEN, {"size": 2}, {"size": 1}, right).values()) == [Effect.REPLACE]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({}, "not a package schema"),
        ({"name": "aws", "resources": {}}, "not a package schema"),
        ({"name": "aws", "resources": {TOKEN: {"inputProperties": {"a": {}}}}}, "does not mark replacement"),
    ],
)
def test_what_is_not_a_schema_is_rejected(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_schema(schema, date="2026-11-26", source="schema.json")


def test_the_table_of_a_project_goes_before_the_one_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "below").mkdir()
    table, file = update(schema_file(tmp_path / "schema.json"), "schema.json", tmp_path)
    assert file == tmp_path / ".trainfleet" / "knowledge" / "aws.json"
    monkeypatch.chdir(tmp_path / "below")
    assert tables()["aws"] == table
    assert tables()["gcp"] == read_table(SHIPPED / "gcp.json")
    file.write_text("{}")
    with pytest.raises(InputError, match="trainfleet knowledge update"):
        tables()


def test_a_table_is_what_was_written(tmp_path: Path) -> None:
    write_table(BEFORE, tmp_path / "aws.json")
    assert read_table(tmp_path / "aws.json") == BEFORE


@pytest.fixture(scope="module")
def real_schema() -> Path:
    """The schema of pulumi-tls 4.10.0, as `pulumi package get-schema` prints it. The engine's module has it."""
    module, go = ENGINE, str(find_go(print))
    run_go([go, "mod", "download", module], NEWEST_ENGINE, print)
    command = [go, "list", "-m", "-f", "{{.Dir}}", module]
    found = subprocess.run(command, cwd=NEWEST_ENGINE, capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()) / "codegen" / "testing" / "utils" / "schemas" / "tls-4.10.0.json"


@pytest.mark.deep
def test_a_project_reads_the_rules_of_a_real_schema(
    real_schema: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private key has no rule before, and is replaced afterwards, as the provider does."""
    monkeypatch.chdir(tmp_path)
    key = "tls:index/privateKey:PrivateKey"
    change = ({"algorithm": "RSA", "rsaBits": 2048}, {"algorithm": "RSA", "rsaBits": 4096})
    assert list(effects(key, *change).values()) == [Effect.UNKNOWN]
    done = CliRunner().invoke(knowledge, ["update", "--schema", str(real_schema)])
    assert done.exit_code == 0, done.output
    assert list(effects(key, *change).values()) == [Effect.REPLACE]
    row = tables()["tls"].types[key]
    assert set(row.replace) == {"algorithm", "ecdsaCurve", "rsaBits"}
    certificate = tables()["tls"].types["tls:index/selfSignedCert:SelfSignedCert"]
    assert "subject" in certificate.replace
    assert "earlyRenewalHours" not in certificate.replace


AWS_MODULE = f"{ENGINE}@v3.60.0"
AWS_FILE = "codegen/testing/test/testdata/aws-5.16.2.json"
AWS_DIGEST = "11578077e6019108fecd7b0186e519f9f64543b6d854ee3c3c2eaac168e97414"


@pytest.fixture(scope="module")
def aws_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schema of pulumi-aws 5.16.2: the newest of a package with a shipped table that can be downloaded.

    A version of the engine's module of 2023 has it. It is kept in the cache; the module, of 380 MB, is not.
    """
    file = cache_folder() / f"schema-{AWS_DIGEST[:16]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with build_lock(file.with_suffix(".lock"), print, "schema"):
        if not file.is_file():
            work = tmp_path_factory.mktemp("module")
            settings = {
                "GOMODCACHE": str(work),
                "GOFLAGS": "-modcacherw",
                "GOTOOLCHAIN": "local",
                "GOWORK": "off",
            }
            command = [str(find_go(print)), "mod", "download", AWS_MODULE]
            subprocess.run(command, cwd=work, env=os.environ | settings, check=True)
            module, _, version = AWS_MODULE.partition("@")
            archive = work / "cache" / "download" / module / "@v" / f"{version}.zip"
            content = zipfile.ZipFile(archive).read(f"{AWS_MODULE}/{AWS_FILE}")
            assert hashlib.sha256(content).hexdigest() == AWS_DIGEST
            write_whole(file, content)
            shutil.rmtree(work)
    return file


@pytest.mark.deep
def test_a_project_reads_the_rules_of_the_schema_of_a_whole_cloud(
    aws_schema: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema's verdict wins over the table that ships, whose conditions stay."""
    monkeypatch.chdir(tmp_path)
    disk, database = "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:rds/instance:Instance"
    renamed = ({"identifier": "a"}, {"identifier": "b"})
    assert list(effects(database, *renamed).values()) == [Effect.UPDATE], "since version 6 of the provider"
    done = CliRunner().invoke(knowledge, ["update", "--schema", str(aws_schema)])
    assert done.exit_code == 0, done.output
    assert list(effects(database, *renamed).values()) == [Effect.REPLACE]
    large, small = ({"deploymentType": "PERSISTENT_1", "storageCapacity": size} for size in (4800, 1200))
    assert list(effects(disk, large, small).values()) == [Effect.REPLACE]
    assert list(effects(disk, small, large).values()) == [Effect.UPDATE]
    assert len(tables()["aws"].types) > 1000
    assert tables()["aws"].version == "5.16.2"


def verdicts(schema: Path) -> Iterator[Effect]:
    """What the table that ships says of each property of a type that a provider's own schema marks."""
    real = from_schema(schema_file(schema), date="2026-11-26", source="real")
    shipped = read_table(SHIPPED / f"{real.package}.json")
    assert len(real.types.keys() & shipped.types.keys()) > 100
    for token in real.types.keys() & shipped.types.keys():
        row = shipped.types[token]
        for path in real.types[token].replace:
            if "." not in path:
                other = Effect.UNKNOWN if path in row.unclear else Effect.UPDATE
                yield Effect.REPLACE if path in row.replace or path in row.when else other


@pytest.mark.deep
def test_the_table_that_ships_agrees_with_the_schema_of_an_older_version(aws_schema: Path) -> None:
    """Of 2,664 marked properties it replaces 2,575 and calls 22 unclear; since then, the provider changed."""
    found = list(verdicts(aws_schema))
    assert len(found) > 2500
    assert found.count(Effect.REPLACE) / len(found) > 0.96
    assert found.count(Effect.UPDATE) / len(found) < 0.03


@pytest.mark.deep
def test_what_an_older_schema_has_is_not_newer_than_the_source(aws_schema: Path) -> None:
    """A property that only has another name in the source looks as if it were; a row by hand decides it."""
    inputs = {
        token: resource.get("inputProperties", {})
        for token, resource in schema_file(aws_schema)["resources"].items()
    }
    older = [
        (token, path)
        for token, row in read_table(SHIPPED / "aws.json").types.items()
        for path, why in row.unclear.items()
        if why == "newer than the source" and path in inputs.get(token, {})
    ]
    assert len(older) > 5
    unknown = [
        f"{token} {path}"
        for token, path in older
        if Effect.UNKNOWN in effects(token, {path: "a"}, {path: "b"}).values()
    ]
    assert unknown == []


@pytest.mark.skipif(
    "PULUMI_PACKAGE_SCHEMA" not in os.environ, reason="needs the file of a package that a table ships for"
)
def test_a_real_schema_agrees_with_the_table_that_ships() -> None:
    """At least 97 of 100 properties that a provider's own schema marks are marked in the table."""
    found = list(verdicts(Path(os.environ["PULUMI_PACKAGE_SCHEMA"])))
    assert found.count(Effect.REPLACE) / len(found) > 0.97
