"""Build IAM policy documents in Python. Values may be Pulumi outputs, which `to_json` resolves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

Statement = dict[str, Any]
Document = dict[str, Any]


def statement(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[pulumi.Input[str]] = (),
    *,
    effect: str = "Allow",
    principal: Mapping[str, Any] | str | None = None,
    when: Mapping[str, Mapping[str, Any]] | None = None,
) -> Statement:
    """One statement of a policy.

    Args:
        sid: its ID, unique in the policy.
        actions: actions such as `s3:GetObject`.
        resources: ARNs; empty in trust policies, which have none.
        effect: `Allow` or `Deny`.
        principal: who it applies to; None in policies of a role.
        when: the Condition block: values by operator and key.
    """
    body: Statement = {"Sid": sid, "Effect": effect, "Action": list(actions)}
    if principal is not None:
        body["Principal"] = principal if isinstance(principal, str) else dict(principal)
    if resources:
        body["Resource"] = list(resources)
    if when:
        body["Condition"] = {operator: dict(keys) for operator, keys in when.items()}
    return body


def document(*statements: Statement) -> Document:
    """A policy document."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def trust_service(service: str, when: Mapping[str, Mapping[str, Any]] | None = None) -> Document:
    """Who may take a role: an AWS service."""
    return document(statement("Service", ["sts:AssumeRole"], principal={"Service": service}, when=when))


def trust_pods(cluster_arn: pulumi.Input[str], namespace: str, service_account: str) -> Document:
    """Who may take a role: pods of one service account of this cluster. EKS Pod Identity names all three in
    the session's tags.
    """
    tag = "aws:RequestTag/"
    return document(
        statement(
            "Pods",
            ["sts:AssumeRole", "sts:TagSession"],
            principal={"Service": "pods.eks.amazonaws.com"},
            when={
                "StringEquals": {
                    f"{tag}eks-cluster-arn": cluster_arn,
                    f"{tag}kubernetes-namespace": namespace,
                    f"{tag}kubernetes-service-account": service_account,
                }
            },
        )
    )


def arn(*parts: pulumi.Input[str]) -> pulumi.Input[str]:
    """The parts of an ARN put together: text where all of them are, else an output."""
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    return pulumi.Output.concat(*parts)


def to_json(policy: Document) -> pulumi.Output[str]:
    """The document as AWS reads it, outputs resolved."""
    return pulumi.Output.json_dumps(policy)
