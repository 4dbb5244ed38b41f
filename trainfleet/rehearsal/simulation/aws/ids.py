"""AWS's resource ids: a prefix per type, and the property that holds the physical name."""

from __future__ import annotations

ACCOUNT = "111122223333"
REGION = "us-east-2"
PARTITION = "aws"

PREFIXES = {
    "ec2/vpc:Vpc": "vpc",
    "ec2/subnet:Subnet": "subnet",
    "ec2/securityGroup:SecurityGroup": "sg",
    "ec2/defaultSecurityGroup:DefaultSecurityGroup": "sg",
    "ec2/internetGateway:InternetGateway": "igw",
    "ec2/natGateway:NatGateway": "nat",
    "ec2/routeTable:RouteTable": "rtb",
    "ec2/defaultRouteTable:DefaultRouteTable": "rtb",
    "ec2/routeTableAssociation:RouteTableAssociation": "rtbassoc",
    "ec2/eip:Eip": "eipalloc",
    "ec2/vpcEndpoint:VpcEndpoint": "vpce",
    "ec2/flowLog:FlowLog": "fl",
    "ec2/launchTemplate:LaunchTemplate": "lt",
    "ec2/defaultNetworkAcl:DefaultNetworkAcl": "acl",
    "ec2/capacityReservation:CapacityReservation": "cr",
    "ec2/instance:Instance": "i",
    "vpc/securityGroupIngressRule:SecurityGroupIngressRule": "sgr",
    "vpc/securityGroupEgressRule:SecurityGroupEgressRule": "sgr",
    "ebs/snapshot:Snapshot": "snap",
    "ebs/volume:Volume": "vol",
    "ec2/customerGateway:CustomerGateway": "cgw",
    "ec2/egressOnlyInternetGateway:EgressOnlyInternetGateway": "eigw",
    "ec2/networkAcl:NetworkAcl": "acl",
    "ec2/networkInterface:NetworkInterface": "eni",
    "ec2/vpcDhcpOptions:VpcDhcpOptions": "dopt",
    "ec2/vpcPeeringConnection:VpcPeeringConnection": "pcx",
    "ec2/vpnGateway:VpnGateway": "vgw",
    "ec2transitgateway/transitGateway:TransitGateway": "tgw",
    "efs/accessPoint:AccessPoint": "fsap",
    "efs/fileSystem:FileSystem": "fs",
    "efs/mountTarget:MountTarget": "fsmt",
    "fsx/lustreFileSystem:LustreFileSystem": "fs",
    "fsx/dataRepositoryAssociation:DataRepositoryAssociation": "dra",
    "eks/podIdentityAssociation:PodIdentityAssociation": "a",
}
"""The id prefix of a type. Other types derive their id from their name."""

NAMES = {
    "s3/bucket:Bucket": "bucket",
    "s3/bucketV2:BucketV2": "bucket",
    "eks/nodeGroup:NodeGroup": "nodeGroupName",
}
"""The property that holds the physical name, where it is not `name`.

If the program omits it, it is generated from the logical name.
"""


def short(token: str) -> str:
    """Return a type token without its package."""
    return token.split(":", 1)[1]
