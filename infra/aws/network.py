"""Network: the VPC, a private and a public subnet per zone, subnets of the control plane, egress, the hub,
flow logs and endpoints of AWS services.

Nodes need routes and endpoints from start to drain, so whatever starts nodes depends on `ready`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents, layout, roles
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.component import Existing, PlatformComponent
from trainfleet.infra.spec.schema import ExistingNetwork, Hub, PlatformSpec


class Network(PlatformComponent):
    """The network of a platform."""

    TYPE = "trainfleet:aws:Network"

    def __init__(
        self,
        spec: PlatformSpec,
        keys: Keys,
        account: pulumi.Input[str],
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "network", opts)
        self.ready: list[pulumi.Resource] = []
        """Must exist before a node starts and outlive the last one: routes, associations, endpoints."""
        self.vpc: aws.ec2.Vpc | Existing
        self.private_subnets: Mapping[str, aws.ec2.Subnet | Existing]
        self.control_plane_subnets: Mapping[str, aws.ec2.Subnet | Existing]
        if spec.network.existing:
            self._use(spec.network.existing)
        else:
            self._create(keys, account)
        self.register_outputs({"vpc_id": self.vpc.id})

    def _use(self, existing: ExistingNetwork) -> None:
        """An existing network brings its own routes, egress, endpoints and flow logs."""
        self.vpc = Existing(existing.id)
        self.private_subnets = {zone: Existing(each) for zone, each in sorted(existing.subnets.items())}
        named = existing.control_plane_subnets or [each for _, each in sorted(existing.subnets.items())][:2]
        self.control_plane_subnets = {each: Existing(each) for each in named}

    def _create(self, keys: Keys, account: pulumi.Input[str]) -> None:
        spec = self.spec
        self.plan = layout.plan(spec)
        self.vpc = aws.ec2.Vpc(
            self.name("vpc"),
            cidr_block=str(spec.network.cidr),
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self.tags("vpc"),
            opts=self.options(),
        )
        # AWS creates it. Without rules it allows nothing.
        aws.ec2.DefaultSecurityGroup(
            self.name("default-sg"),
            vpc_id=self.vpc.id,
            tags=self.tags("default-sg"),
            opts=self.options(),
        )
        private = {zone.zone: self._subnet(zone.zone, str(zone.private), "private") for zone in self.plan}
        self.private_tables = {
            zone: self._table(f"private-{zone}", {zone: subnet}) for zone, subnet in private.items()
        }
        control_plane = {
            zone: self._subnet(zone, str(cidr), "control-plane")
            for zone, cidr in layout.control_plane_subnets(spec).items()
        }
        self.private_subnets, self.control_plane_subnets = private, control_plane
        self._control_plane_table = self._table("control-plane", control_plane)
        self._egress()
        if spec.network.hub:
            self._hub(spec.network.hub)
        self._endpoints()
        if spec.network.flow_logs:
            self._flow_logs(keys, account)

    def control_plane_subnet_ids(self) -> list[pulumi.Input[str]]:
        """The subnets of the control plane's interfaces."""
        return [subnet.id for subnet in self.control_plane_subnets.values()]

    def private_subnet_ids(self, zones: tuple[str, ...] | None = None) -> list[pulumi.Input[str]]:
        """The private subnets of these zones, or of all."""
        return [self.private_subnets[zone].id for zone in (zones or tuple(self.private_subnets))]

    def _subnet(self, zone: str, cidr: str, kind: str) -> aws.ec2.Subnet:
        what = f"{kind}-{zone}"
        return aws.ec2.Subnet(
            self.name(what),
            vpc_id=self.vpc.id,
            availability_zone=zone,
            cidr_block=cidr,
            # Gateways and load balancers request their public addresses.
            map_public_ip_on_launch=False,
            tags={**self.tags(what), **self._load_balancer_tags(kind)},
            opts=self.options(),
        )

    def _load_balancer_tags(self, kind: str) -> dict[str, str]:
        """Kubernetes finds the subnets of load balancers by these tags."""
        role = {"public": "elb", "private": "internal-elb"}.get(kind)
        if role is None:
            return {}
        return {
            f"kubernetes.io/role/{role}": "1",
            f"kubernetes.io/cluster/{layout.cluster_name(self.spec)}": "shared",
        }

    def _hub(self, hub: Hub) -> None:
        """Attach the network to a transit gateway, and route the private ranges of clients to it."""
        attachment = aws.ec2transitgateway.VpcAttachment(
            self.name("hub"),
            vpc_id=self.vpc.id,
            # The gateway serves only zones that it has an interface in.
            subnet_ids=[
                self.control_plane_subnets[zone].id
                if zone in self.control_plane_subnets
                else self.private_subnets[zone].id
                for zone in sorted({*self.private_subnets, *self.control_plane_subnets})
            ],
            transit_gateway_id=hub.id,
            dns_support="enable",
            tags=self.tags("hub"),
            opts=self.options(),
        )
        tables = {"control-plane": self._control_plane_table}
        tables |= {f"private-{zone}": table for zone, table in self.private_tables.items()}
        for what, table in tables.items():
            for cidr in self.spec.kubernetes.access.private_ranges:
                self.ready.append(
                    aws.ec2.Route(
                        self.name(f"{what}-to-{str(cidr).replace('/', '-')}"),
                        route_table_id=table.id,
                        destination_cidr_block=str(cidr),
                        transit_gateway_id=hub.id,
                        opts=self.options(depends_on=[attachment]),
                    )
                )

    def _table(self, what: str, subnets: dict[str, aws.ec2.Subnet]) -> aws.ec2.RouteTable:
        table = aws.ec2.RouteTable(
            self.name(what + "-routes"),
            vpc_id=self.vpc.id,
            tags=self.tags(what),
            opts=self.options(),
        )
        for zone, subnet in subnets.items():
            name = what if what.endswith(zone) else f"{what}-{zone}"
            self.ready.append(
                aws.ec2.RouteTableAssociation(
                    self.name(name + "-association"),
                    route_table_id=table.id,
                    subnet_id=subnet.id,
                    opts=self.options(),
                )
            )
        return table

    def _egress(self) -> None:
        internet = aws.ec2.InternetGateway(
            self.name("internet"),
            vpc_id=self.vpc.id,
            tags=self.tags("internet"),
            opts=self.options(),
        )
        subnets = {zone.zone: self._subnet(zone.zone, str(zone.public), "public") for zone in self.plan}
        table = self._table("public", subnets)
        egress = aws.ec2.Route(
            self.name("public-internet"),
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=internet.id,
            opts=self.options(),
        )
        self.ready.append(egress)
        zones = list(subnets) if self.spec.network.nat == "per-zone" else list(subnets)[:1]
        gateways = {zone: self._nat(zone, subnets[zone], egress) for zone in zones}
        for zone, private in self.private_tables.items():
            self.ready.append(
                aws.ec2.Route(
                    self.name(f"private-{zone}-out"),
                    route_table_id=private.id,
                    destination_cidr_block="0.0.0.0/0",
                    nat_gateway_id=gateways.get(zone, gateways[zones[0]]).id,
                    opts=self.options(),
                )
            )

    def _nat(self, zone: str, subnet: aws.ec2.Subnet, egress: aws.ec2.Route) -> aws.ec2.NatGateway:
        # After the route to the internet gateway: AWS does not detach a gateway that still has an address.
        address = aws.ec2.Eip(
            self.name(f"nat-{zone}-address"),
            domain="vpc",
            tags=self.tags(f"nat-{zone}"),
            opts=self.options(depends_on=[egress]),
        )
        return aws.ec2.NatGateway(
            self.name(f"nat-{zone}"),
            allocation_id=address.id,
            subnet_id=subnet.id,
            tags=self.tags(f"nat-{zone}"),
            opts=self.options(depends_on=[egress]),
        )

    def _endpoints(self) -> None:
        """Endpoints of AWS services: S3 is free (checkpoints and image layers), the others are billed by the
        hour.
        """
        self.ready.append(
            aws.ec2.VpcEndpoint(
                self.name("s3-endpoint"),
                vpc_id=self.vpc.id,
                service_name=f"com.amazonaws.{self.spec.region}.s3",
                vpc_endpoint_type="Gateway",
                route_table_ids=[table.id for table in self.private_tables.values()],
                tags=self.tags("s3-endpoint"),
                opts=self.options(),
            )
        )
        group = aws.ec2.SecurityGroup(
            self.name("endpoints-sg"),
            vpc_id=self.vpc.id,
            description="HTTPS from inside the network to AWS endpoints",
            tags=self.tags("endpoints-sg"),
            opts=self.options(),
        )
        aws.vpc.SecurityGroupIngressRule(
            self.name("endpoints-https"),
            security_group_id=group.id,
            description="HTTPS from inside the network",
            ip_protocol="tcp",
            from_port=443,
            to_port=443,
            cidr_ipv4=str(self.spec.network.cidr),
            tags=self.tags("endpoints-https"),
            opts=self.options(),
        )
        for service in layout.endpoint_services(self.spec):
            what = f"{service.replace('.', '-')}-endpoint"
            self.ready.append(
                aws.ec2.VpcEndpoint(
                    self.name(what),
                    vpc_id=self.vpc.id,
                    service_name=f"com.amazonaws.{self.spec.region}.{service}",
                    vpc_endpoint_type="Interface",
                    private_dns_enabled=True,
                    subnet_ids=self.private_subnet_ids(),
                    security_group_ids=[group.id],
                    tags=self.tags(what),
                    opts=self.options(),
                )
            )

    def _flow_logs(self, keys: Keys, account: pulumi.Input[str]) -> None:
        group = aws.cloudwatch.LogGroup(
            self.name("flow-logs"),
            retention_in_days=layout.log_retention(self.spec.kubernetes.log_retention_days),
            kms_key_id=keys.logs.arn,
            tags=self.tags("flow-logs"),
            opts=self.options(retain=True),
        )
        role_arn, writes = self._flow_logs_role(roles.flow_logs(account, group.arn))
        aws.ec2.FlowLog(
            self.name("flow-log"),
            vpc_id=self.vpc.id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role_arn,
            max_aggregation_interval=600,
            tags=self.tags("flow-log"),
            opts=self.options(depends_on=writes),
        )

    def _flow_logs_role(
        self, documents: roles.RoleDocuments
    ) -> tuple[pulumi.Input[str], list[pulumi.Resource]]:
        """The ARN of the role under which the VPC writes its log, and what the role needs first."""
        if self.spec.identities.existing:
            return self.spec.identities.existing[roles.FLOW_LOGS], []
        role = aws.iam.Role(
            self.name("flow-logs-role"),
            assume_role_policy=iam_documents.to_json(documents.trust),
            permissions_boundary=self.spec.identities.permission_boundary or None,
            tags=self.tags("flow-logs-role"),
            opts=self.options(),
        )
        write = aws.iam.RolePolicy(
            self.name("flow-logs-write"),
            role=role.name,
            policy=iam_documents.to_json(documents.inline or {}),
            opts=self.options(),
        )
        return role.arn, [write]
