"""Resources of other people's programs, with which tests/rehearsal/test_agreements.py makes its programs."""

from __future__ import annotations

import json
from typing import Any

from tests.rehearsal.relation_cases import record
from trainfleet.rehearsal.simulation.cloud_object import CloudObject

HOME, AWAY = "vpc-home", "vpc-away"


def subnet(name: str, vpc: str, zone: str = "us-east-2a") -> CloudObject:
    return record("aws:ec2/subnet:Subnet", name, vpcId=vpc, availabilityZone=zone)


def group(name: str, vpc: str) -> CloudObject:
    return record("aws:ec2/securityGroup:SecurityGroup", name, vpcId=vpc)


NODES, FAR, LOCAL, FOREIGN = (
    subnet("nodes", HOME),
    subnet("far", AWAY, "us-east-2b"),
    group("local", HOME),
    group("foreign", AWAY),
)
NETWORK = [
    record("aws:ec2/vpc:Vpc", HOME),
    *(NODES, subnet("more", HOME, "us-east-2c")),
    *(FAR, LOCAL, FOREIGN),
]


def table(vpc: str) -> CloudObject:
    return record("aws:ec2/routeTable:RouteTable", f"rt-{vpc}", vpcId=vpc)


def routed(vpc: str) -> CloudObject:
    token = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    return record(token, "routed", subnetId="nodes", routeTableId=f"rt-{vpc}")


def in_vpc(groups: list[str]) -> list[tuple[str, CloudObject]]:
    """One resource of every type that has subnets and security groups, in the subnet `nodes`."""
    config = {"subnetIds": ["nodes"], "securityGroupIds": groups}
    return [
        (
            "instance",
            record("aws:ec2/instance:Instance", "i", subnetId="nodes", vpcSecurityGroupIds=groups),
        ),
        (
            "cluster",
            record("aws:eks/cluster:Cluster", "eks", vpcConfig=config | {"subnetIds": ["nodes", "more"]}),
        ),
        (
            "load balancer",
            record("aws:lb/loadBalancer:LoadBalancer", "lb", subnets=["nodes"], securityGroups=groups),
        ),
        ("function", record("aws:lambda/function:Function", "fn", vpcConfig=config)),
        ("endpoint", record("aws:ec2/vpcEndpoint:VpcEndpoint", "vpce", vpcId=HOME, **config)),
        ("file system", record("aws:fsx/lustreFileSystem:LustreFileSystem", "fs", **config)),
    ]


def role(*services: str, effect: str = "Allow") -> CloudObject:
    trust = {
        "Effect": effect,
        "Principal": {"Service": list(services)},
        "Action": "sts:AssumeRole",
    }
    arn = "arn:aws:iam::123456789012:role/r"
    policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    return record("aws:iam/role:Role", "r", {"arn": arn}, assumeRolePolicy=policy)


ARN = "arn:aws:iam::123456789012:role/r"
TAKEN: list[tuple[str, CloudObject]] = [
    ("ec2", record("aws:eks/nodeGroup:NodeGroup", "pool", nodeRoleArn=ARN)),
    ("eks", record("aws:eks/cluster:Cluster", "eks", roleArn=ARN)),
    ("lambda", record("aws:lambda/function:Function", "fn", role=ARN)),
    ("scheduler", record("aws:scheduler/schedule:Schedule", "nightly", target={"roleArn": ARN})),
]
BUCKET = record("aws:s3/bucket:Bucket", "data")
GATEWAY = record("aws:ec2/internetGateway:InternetGateway", "igw", vpcId=HOME)
NAT = record("aws:ec2/natGateway:NatGateway", "nat", subnetId="nodes")
PRIVATE_NAT = record("aws:ec2/natGateway:NatGateway", "nat", subnetId="nodes", connectivityType="private")
REPLICATION = record("aws:s3/bucketReplicationConfig:BucketReplicationConfig", "copy", bucket="data")
ACL = record("aws:s3/bucketAcl:BucketAcl", "acl", bucket="data", acl="private")


def versions(status: str) -> CloudObject:
    token = "aws:s3/bucketVersioning:BucketVersioning"
    return record(token, "versions", bucket="data", versioningConfiguration={"status": status})


def owners(setting: str) -> CloudObject:
    token = "aws:s3/bucketOwnershipControls:BucketOwnershipControls"
    return record(token, "owners", bucket="data", rule={"objectOwnership": setting})


def block(blocked: bool) -> CloudObject:
    token = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
    return record(token, "block", bucket="data", blockPublicPolicy=blocked)


def bucket_policy(principal: Any, **more: Any) -> CloudObject:
    statement = {"Effect": "Allow", "Principal": principal, "Action": "s3:GetObject", **more}
    policy = json.dumps({"Version": "2012-10-17", "Statement": statement})
    return record("aws:s3/bucketPolicy:BucketPolicy", "policy", bucket="data", policy=policy)


def databases(*subnets: str) -> CloudObject:
    return record("aws:rds/subnetGroup:SubnetGroup", "db", subnetIds=list(subnets))


GCP_NET = record("gcp:compute/network:Network", "projects/p/global/networks/net", {"name": "net"})
GCP_SUBNET = record(
    "gcp:compute/subnetwork:Subnetwork",
    "projects/p/regions/us-central1/subnetworks/nodes",
    {"name": "nodes"},
    region="us-central1",
    network="https://www.googleapis.com/compute/v1/projects/p/global/networks/net",
)
SUBNET_ID = GCP_SUBNET.id


def machine(zone: str) -> CloudObject:
    return record(
        "gcp:compute/instance:Instance", "vm", zone=zone, networkInterfaces=[{"subnetwork": SUBNET_ID}]
    )


def gke(location: str = "us-central1", **inputs: Any) -> CloudObject:
    return record("gcp:container/cluster:Cluster", "gke", location=location, **inputs)


def routers(*regions: str) -> list[CloudObject]:
    return [
        record("gcp:compute/router:Router", f"p/{region}/out", {"name": "out"}, region=region)
        for region in regions
    ]


def key(location: str) -> CloudObject:
    return record(
        "gcp:kms/cryptoKey:CryptoKey",
        f"projects/p/locations/{location}/keyRings/ring/cryptoKeys/data",
        keyRing=f"projects/p/locations/{location}/keyRings/ring",
    )


def encrypted(location: str, key_location: str) -> CloudObject:
    return record(
        "gcp:storage/bucket:Bucket",
        "runs",
        location=location,
        encryption={"defaultKmsKeyName": key(key_location).id},
    )


def repository(key_location: str) -> CloudObject:
    token = "gcp:artifactregistry/repository:Repository"
    return record(token, "images", location="us-central1", kmsKeyName=key(key_location).id)


def cloud_nat(region: str) -> CloudObject:
    return record("gcp:compute/routerNat:RouterNat", "nat", region=region, router="out")


PRIVATE_SQL = record(
    "gcp:sql/databaseInstance:DatabaseInstance",
    "sql",
    settings={"ipConfiguration": {"privateNetwork": GCP_NET.id}},
)
CONNECTION = record("gcp:servicenetworking/connection:Connection", "google", network="net")


def gcs(**inputs: Any) -> CloudObject:
    return record("gcp:storage/bucket:Bucket", "runs", {"name": "runs"}, location="US", **inputs)


def reader(member: str) -> CloudObject:
    return record("gcp:storage/bucketIAMMember:BucketIAMMember", "reader", bucket="runs", member=member)


def readers(*members: str) -> CloudObject:
    token = "gcp:storage/bucketIAMBinding:BucketIAMBinding"
    return record(token, "readers", bucket="runs", members=list(members))


GCS_ACL = record("gcp:storage/bucketACL:BucketACL", "acl", bucket="runs")
ZONE = record("gcp:dns/managedZone:ManagedZone", "zone", {"name": "zone"}, dnsName="ml.example.com.")


def dns(name: str) -> CloudObject:
    return record("gcp:dns/recordSet:RecordSet", "record", managedZone="zone", name=name)


def vnet(location: str) -> list[CloudObject]:
    return [
        record("azure-native:network:VirtualNetwork", "/s/net", {"name": "net"}, location=location),
        record("azure-native:network:Subnet", "/s/net/nodes", virtualNetworkName="net"),
    ]


AKS = record(
    "azure-native:containerservice:ManagedCluster", "/s/aks", {"name": "aks"}, location="West Europe"
)
POOL = record(
    "azure-native:containerservice:AgentPool", "/s/pool", resourceName="aks", vnetSubnetID="/s/net/nodes"
)
INTERFACE = record(
    "azure-native:network:NetworkInterface",
    "/s/nic",
    location="westeurope",
    ipConfigurations=[{"subnet": {"id": "/s/net/nodes"}}],
)
ENDPOINT = record(
    "azure-native:network:PrivateEndpoint", "/s/pe", location="westeurope", subnet={"id": "/s/net/nodes"}
)


def address(sku: str) -> CloudObject:
    return record("azure-native:network:PublicIPAddress", "/s/ip", sku={"name": sku})


BALANCER = record(
    "azure-native:network:LoadBalancer",
    "/s/lb",
    sku={"name": "Standard"},
    frontendIPConfigurations=[{"publicIPAddress": {"id": "/s/ip"}}],
)
AZURE_NAT = record("azure-native:network:NatGateway", "/s/nat", publicIpAddresses=[{"id": "/s/ip"}])


def account(*, public: bool) -> CloudObject:
    return record(
        "azure-native:storage:StorageAccount", "/s/data", {"name": "data"}, allowBlobPublicAccess=public
    )


def container(access: str) -> CloudObject:
    token = "azure-native:storage:BlobContainer"
    return record(token, "/s/data/runs", accountName="data", publicAccess=access)
