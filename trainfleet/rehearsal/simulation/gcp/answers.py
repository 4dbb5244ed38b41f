"""What Google Cloud answers to functions: projects, zones, GKE versions, service agents and keys."""

from __future__ import annotations

import json
import re
from typing import Any

from trainfleet.rehearsal.simulation.cloud_model import Answer, Finder
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.gcp.ids import PROJECT_NUMBER, VERSION, number, zones
from trainfleet.rehearsal.simulation.values import CREATED, digest


def _client_config(args: dict[str, Any], region: str) -> dict[str, Any]:
    where = f"projects/{args['project']}/regions/{region}/zones/{args['zone']}"
    return {
        **{key: args[key] for key in ("project", "zone")},
        "id": where,
        "region": region,
        "accessToken": "rehearsal",
        "defaultLabels": {},
    }


def _project(args: dict[str, Any], _: str, there: list[CloudObject]) -> dict[str, Any]:
    """The billing account is empty while the program has enabled APIs and not Cloud Billing.

    Source: terraform-provider-google google/services/resourcemanager/resource_google_project.go
    (resourceGoogleProjectRead): a failure to read the billing info is only logged.
    """
    project = args.get("projectId") or args["project"]
    on = {each.inputs.get("service") for each in there if each.token == "gcp:projects/service:Service"}
    billed = not on or "cloudbilling.googleapis.com" in on
    return {
        "id": f"projects/{project}",
        "projectId": project,
        "name": project,
        "number": PROJECT_NUMBER,
        "orgId": "222233334444",
        "folderId": "",
        "billingAccount": "012345-6789AB-CDEF01" if billed else "",
        "autoCreateNetwork": False,
        "deletionPolicy": "PREVENT",
        "labels": {},
        "effectiveLabels": {},
        "pulumiLabels": {},
        "tags": {},
    }


def _projects(args: dict[str, Any], _: str) -> dict[str, Any]:
    """The project of a filter by its id or name (Resource Manager API reference, projects.list)."""
    match = re.fullmatch(r"\s*(?:projectId|id|name)\s*[:=]\s*([a-z][a-z0-9-]+)\s*", str(args.get("filter")))
    project = match[1] if match else args["project"]
    found = {
        "createTime": CREATED,
        "labels": {},
        "lifecycleState": "ACTIVE",
        "name": project,
        "number": PROJECT_NUMBER,
        "parent": {"type": "organization", "id": "222233334444"},
        "projectId": project,
    }
    return {"id": str(args.get("filter")), "filter": args.get("filter"), "projects": [found]}


def _zones(args: dict[str, Any], region: str) -> dict[str, Any]:
    return {
        "id": f"projects/{args['project']}/regions/{region}",
        "names": zones(region),
        "project": args["project"],
        "region": region,
    }


def _engine_versions(args: dict[str, Any], region: str) -> dict[str, Any]:
    channels = dict.fromkeys(("RAPID", "REGULAR", "STABLE", "EXTENDED"), VERSION)
    return {
        "id": digest(region)[:12],
        "project": args["project"],
        "location": args.get("location") or region,
        "defaultClusterVersion": VERSION,
        "latestMasterVersion": VERSION,
        "latestNodeVersion": VERSION,
        "validMasterVersions": [VERSION],
        "validNodeVersions": [VERSION],
        "releaseChannelDefaultVersion": channels,
        "releaseChannelLatestVersion": channels,
        "releaseChannelUpgradeTargetVersion": channels,
    }


def _storage_agent(args: dict[str, Any], _: str) -> dict[str, Any]:
    email = f"service-{PROJECT_NUMBER}@gs-project-accounts.iam.gserviceaccount.com"
    return {
        "id": email,
        "project": args["project"],
        "emailAddress": email,
        "member": f"serviceAccount:{email}",
    }


def _compute_account(args: dict[str, Any], _: str) -> dict[str, Any]:
    email = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"
    name = f"projects/{args['project']}/serviceAccounts/{email}"
    return {
        "id": name,
        "name": name,
        "project": args["project"],
        "email": email,
        "member": f"serviceAccount:{email}",
        "uniqueId": number(email, 21),
        "displayName": "Compute Engine default service account",
    }


def _iam_policy(args: dict[str, Any], _: str) -> dict[str, Any]:
    document = json.dumps({"bindings": args.get("bindings", [])}, sort_keys=True)
    return {
        "id": digest(document)[:12],
        "policyData": document,
        **{key: args[key] for key in ("bindings", "auditConfigs") if key in args},
    }


def _key_ring(args: dict[str, Any], region: str) -> dict[str, Any]:
    return {
        **args,
        "id": (
            f"projects/{args['project']}/locations/{args.get('location') or region}/keyRings/{args['name']}"
        ),
    }


def _log_encryption(args: dict[str, Any], _: str) -> dict[str, Any]:
    name = f"projects/{args['project']}/cmekSettings"
    writer = f"cmek-p{PROJECT_NUMBER}@gcp-sa-logging.iam.gserviceaccount.com"
    return {
        "id": name,
        "name": name,
        "project": args["project"],
        "kmsKeyName": "",
        "kmsKeyVersionName": "",
        "serviceAccountId": writer,
    }


ANSWERS: dict[str, Answer] = {
    "gcp:organizations/getClientConfig:getClientConfig": _client_config,
    "gcp:organizations/getIAMPolicy:getIAMPolicy": _iam_policy,
    "gcp:compute/getZones:getZones": _zones,
    "gcp:compute/getDefaultServiceAccount:getDefaultServiceAccount": _compute_account,
    "gcp:container/getEngineVersions:getEngineVersions": _engine_versions,
    "gcp:logging/getProjectCmekSettings:getProjectCmekSettings": _log_encryption,
    "gcp:storage/getProjectServiceAccount:getProjectServiceAccount": _storage_agent,
    "gcp:projects/getProject:getProject": _projects,
    "gcp:kms/getKMSKeyRing:getKMSKeyRing": _key_ring,
    "gcp:kms/getKMSCryptoKey:getKMSCryptoKey": lambda args, _: {
        **args,
        "id": f"{args['keyRing']}/cryptoKeys/{args['name']}",
        "purpose": "ENCRYPT_DECRYPT",
    },
}
FINDERS: dict[str, Finder] = {"gcp:organizations/getProject:getProject": _project}
