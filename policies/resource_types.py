"""Short names for the resource types that rules check. Azure types have no API version."""

from __future__ import annotations

EKS = "aws:eks/cluster:Cluster"
EKS_NODES = "aws:eks/nodeGroup:NodeGroup"
EKS_ADDON = "aws:eks/addon:Addon"
LAUNCH_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
EC2 = "aws:ec2/instance:Instance"
VPC = "aws:ec2/vpc:Vpc"
AWS_SUBNET = "aws:ec2/subnet:Subnet"
S3 = ("aws:s3/bucket:Bucket", "aws:s3/bucketV2:BucketV2")
S3_BLOCK = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
S3_POLICY = "aws:s3/bucketPolicy:BucketPolicy"
S3_LOGGING = "aws:s3/bucketLogging:BucketLogging"
S3_VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
S3_ENCRYPTION = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
S3_LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
KMS_KEY = "aws:kms/key:Key"
ECR = "aws:ecr/repository:Repository"
LOG_GROUP = "aws:cloudwatch/logGroup:LogGroup"
AWS_SECRET = "aws:secretsmanager/secret:Secret"
FSX = "aws:fsx/lustreFileSystem:LustreFileSystem"
EFS = "aws:efs/fileSystem:FileSystem"
AWS_ROLE = "aws:iam/role:Role"
AWS_BUDGET = "aws:budgets/budget:Budget"
CLOUD_CONTROL = "aws:cloudcontrol/resource:Resource"

GKE = "gcp:container/cluster:Cluster"
GKE_NODES = "gcp:container/nodePool:NodePool"
GCS = "gcp:storage/bucket:Bucket"
GCP_NETWORK = "gcp:compute/network:Network"
GCP_SUBNET = "gcp:compute/subnetwork:Subnetwork"
GCP_FIREWALL = "gcp:compute/firewall:Firewall"
GCP_INSTANCE = "gcp:compute/instance:Instance"
GCP_DISK = "gcp:compute/disk:Disk"
GCP_KEY = "gcp:kms/cryptoKey:CryptoKey"
GCP_SECRET = "gcp:secretmanager/secret:Secret"
GCP_IMAGES = "gcp:artifactregistry/repository:Repository"
GCP_LOGS = "gcp:logging/projectBucketConfig:ProjectBucketConfig"
FILESTORE = "gcp:filestore/instance:Instance"
GCP_LUSTRE = "gcp:lustre/instance:Instance"
GCP_SERVICE = "gcp:projects/service:Service"
GCP_BUDGET = "gcp:billing/budget:Budget"

AKS = "azure-native:containerservice:ManagedCluster"
AKS_NODES = "azure-native:containerservice:AgentPool"
AZURE_STORAGE = "azure-native:storage:StorageAccount"
BLOB_SERVICE = "azure-native:storage:BlobServiceProperties"
BLOB_CONTAINER = "azure-native:storage:BlobContainer"
VAULT = "azure-native:keyvault:Vault"
AZURE_KEY = "azure-native:keyvault:Key"
ACR = "azure-native:containerregistry:Registry"
VNET = "azure-native:network:VirtualNetwork"
AZURE_SUBNET = "azure-native:network:Subnet"
NSG = "azure-native:network:NetworkSecurityGroup"
NSG_RULE = "azure-native:network:SecurityRule"
WORKSPACE = "azure-native:operationalinsights:Workspace"
AZURE_LUSTRE = "azure-native:storagecache:AmlFilesystem"
AZURE_DIAGNOSTICS = ("azure-native:monitor:DiagnosticSetting",)
AZURE_BUDGETS = ("azure-native:consumption:Budget", "azure-native:costmanagement:Budget")

RELEASE = "kubernetes:helm.sh/v3:Release"
NAMESPACE = "kubernetes:core/v1:Namespace"
NETWORK_POLICY = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
STORAGE_CLASS = "kubernetes:storage.k8s.io/v1:StorageClass"
SERVICE = "kubernetes:core/v1:Service"
RBAC = "kubernetes:rbac.authorization.k8s.io/v1:"
ROLES = (f"{RBAC}ClusterRole", f"{RBAC}Role")
BINDINGS = (f"{RBAC}ClusterRoleBinding", f"{RBAC}RoleBinding")
WORKLOADS = (
    "kubernetes:core/v1:Pod",
    "kubernetes:core/v1:ReplicationController",
    "kubernetes:apps/v1:Deployment",
    "kubernetes:apps/v1:DaemonSet",
    "kubernetes:apps/v1:ReplicaSet",
    "kubernetes:apps/v1:StatefulSet",
    "kubernetes:batch/v1:Job",
    "kubernetes:batch/v1:CronJob",
    "kubernetes:ray.io/v1:RayCluster",
    "kubernetes:ray.io/v1:RayJob",
    "kubernetes:ray.io/v1:RayService",
)
"""Kinds that contain a pod specification somewhere below `spec`."""
