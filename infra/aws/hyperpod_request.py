"""The desired state of an AWS::SageMaker::Cluster as types. Imports no Pulumi.

The provider takes the whole cluster as unchecked JSON. Names, ranges and patterns are those of the
CloudFormation template reference; only what this package uses is here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

TYPE_NAME = "AWS::SageMaker::Cluster"
MOST_TAGS = 50

Arn = Annotated[str, Field(max_length=2048, pattern=r"^arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:(\d{12})?:\S+$")]
ClusterName = Annotated[str, Field(max_length=63, pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")]
LabelKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    ),
]
LabelValue = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]


class Part(BaseModel):
    """A part of the request with CloudFormation's names. Undeclared keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Tag(Part):
    Key: str = Field(min_length=1, max_length=128, pattern=r"^[\w\s.:/=+\-@]*$")
    Value: str = Field(max_length=256, pattern=r"^[\w\s.:/=+\-@]*$")


class Vpc(Part):
    SecurityGroupIds: list[Annotated[str, Field(pattern=r"^sg-\S+$", max_length=32)]] = Field(
        min_length=1, max_length=5
    )
    Subnets: list[Annotated[str, Field(pattern=r"^subnet-\S+$", max_length=32)]] = Field(
        min_length=1, max_length=16
    )


class LifeCycle(Part):
    SourceS3Uri: str = Field(max_length=1024, pattern=r"^(https|s3)://([^/]+)/?(.*)$")
    OnCreate: str = Field(min_length=1, max_length=128)


class Volume(Part):
    VolumeSizeInGB: int = Field(ge=1, le=16384)
    VolumeKmsKeyId: str = Field(max_length=2048, pattern=r"^[a-zA-Z0-9:/_-]*$")


class Storage(Part):
    EbsVolumeConfig: Volume


class Taint(Part):
    Key: LabelKey
    Value: LabelValue
    Effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class KubernetesConfig(Part):
    Labels: dict[LabelKey, LabelValue] = Field(max_length=50)
    Taints: list[Taint] = Field(max_length=50)


class InstanceGroup(Part):
    InstanceGroupName: ClusterName
    InstanceType: str = Field(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$")
    InstanceCount: int = Field(ge=0)
    ExecutionRole: Arn
    LifeCycleConfig: LifeCycle
    KubernetesConfig: KubernetesConfig
    InstanceStorageConfigs: list[Storage] = Field(max_length=1)
    OnStartDeepHealthChecks: list[Literal["InstanceStress", "InstanceConnectivity"]] = Field(min_length=1)
    OverrideVpcConfig: Vpc
    ThreadsPerCore: Literal[1, 2] = 2
    TrainingPlanArn: str | None = Field(
        None,
        min_length=50,
        max_length=2048,
        pattern=r"^arn:aws[a-z\-]*:sagemaker:[a-z0-9\-]*:[0-9]{12}:training-plan/.*$",
    )


class Eks(Part):
    ClusterArn: str = Field(
        pattern=r"^arn:aws[a-z-]*:eks:[a-z0-9-]+:\d{12}:cluster/[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
    )


class Orchestrator(Part):
    Eks: Eks


class Cluster(Part):
    ClusterName: ClusterName
    InstanceGroups: list[InstanceGroup] = Field(min_length=1)
    Orchestrator: Orchestrator
    VpcConfig: Vpc
    NodeRecovery: Literal["Automatic", "None"] = "Automatic"
    NodeProvisioningMode: Literal["Continuous"] = "Continuous"
    Tags: list[Tag] = Field(max_length=MOST_TAGS)

    @model_validator(mode="after")
    def _names_differ(self) -> Cluster:
        names = [group.InstanceGroupName for group in self.InstanceGroups]
        if len(set(names)) < len(names):
            raise ValueError("two instance groups have one name")
        return self

    def json_text(self) -> str:
        """The document as Cloud Control reads it, in a stable order."""
        return self.model_dump_json(exclude_none=True)
