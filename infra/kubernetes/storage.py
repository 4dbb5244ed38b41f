"""Storage: the encrypted default storage class, and the shared filesystem as a claim in the training
namespace, with folders that trainings may write.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.certificates import IMAGE
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import STORAGE_CLASS
from trainfleet.infra.platform import SHARED_CLAIM, TRAINING_NAMESPACE, Platform, SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec

TRAINING_USER = 1000
"""User and group of training pods, as launchers set them."""
MOUNT = "/shared"


class Storage(pulumi.ComponentResource):
    """A storage class where the cloud names a driver; a volume and its claim where there is a shared
    filesystem.
    """

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Storage", f"{spec.name}-cluster-storage", None, opts)
        if features.storage_class:
            self._storage_class(platform, spec)
        if platform.shared_filesystem:
            self._shared_volume(platform.shared_filesystem, spec)
        self.register_outputs({})

    def _storage_class(self, platform: Platform, spec: PlatformSpec) -> None:
        k8s.storage.v1.StorageClass(
            f"{spec.name}-storage-class",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=STORAGE_CLASS, annotations={"storageclass.kubernetes.io/is-default-class": "true"}
            ),
            provisioner=platform.storage_class_provisioner,
            parameters=platform.storage_class_parameters,
            volume_binding_mode="WaitForFirstConsumer",
            allow_volume_expansion=True,
            reclaim_policy="Delete",
            # Every field but this one's metadata is immutable, and a name can be held only once.
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )

    def _shared_volume(self, shared: SharedVolume, spec: PlatformSpec) -> None:
        name = f"{spec.name}-{SHARED_CLAIM}"
        size = {"storage": f"{shared.capacity_gib}Gi"}
        volume = k8s.core.v1.PersistentVolume(
            f"{spec.name}-shared-volume",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=name),
            spec=k8s.core.v1.PersistentVolumeSpecArgs(
                access_modes=["ReadWriteMany"],
                capacity=size,
                # The filesystem is the cloud's resource: what happens to the claim must not touch it.
                persistent_volume_reclaim_policy="Retain",
                storage_class_name="",
                claim_ref=k8s.core.v1.ObjectReferenceArgs(namespace=TRAINING_NAMESPACE, name=SHARED_CLAIM),
                csi=k8s.core.v1.CSIPersistentVolumeSourceArgs(
                    driver=shared.driver, volume_handle=shared.handle, volume_attributes=shared.attributes
                ),
                mount_options=list(shared.mount_options) or None,
            ),
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        claim = k8s.core.v1.PersistentVolumeClaim(
            f"{spec.name}-shared-claim",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=SHARED_CLAIM, namespace=TRAINING_NAMESPACE),
            spec=k8s.core.v1.PersistentVolumeClaimSpecArgs(
                access_modes=["ReadWriteMany"],
                resources=k8s.core.v1.VolumeResourceRequirementsArgs(requests=size),
                # Empty, not absent: absent means the default class.
                storage_class_name="",
                volume_name=name,
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[volume], delete_before_replace=True),
        )
        k8s.batch.v1.Job(
            f"{spec.name}-shared-folders",
            # Not awaited: the Job may wait for a free node or for its image.
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name="shared-folders",
                namespace=TRAINING_NAMESPACE,
                annotations={"pulumi.com/skipAwait": "true"},
            ),
            spec=k8s.batch.v1.JobSpecArgs(backoff_limit=20, template=folders_pod(shared.folders)),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[claim], delete_before_replace=True),
        )


def folders_pod(folders: tuple[str, ...]) -> k8s.core.v1.PodTemplateSpecArgs:
    """A pod that creates the folders and gives them to the user of trainings.

    The root of a new filesystem belongs to root, and the kubelet applies `fsGroup` to no ReadWriteMany volume
    unless the driver has fsGroupPolicy File (kubernetes-csi.github.io, CSI driver fsGroup support;
    kubernetes-sigs/aws-fsx-csi-driver#348).
    """
    paths = " ".join(f"{MOUNT}/{folder}" for folder in folders)
    owner = f"{TRAINING_USER}:{TRAINING_USER}"
    container = k8s.core.v1.ContainerArgs(
        name="shared-folders",
        image=IMAGE,
        command=["sh", "-euc", f"mkdir -p {paths}; chown {owner} {paths}; chmod 775 {paths}"],
        resources=k8s.core.v1.ResourceRequirementsArgs(
            requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}
        ),
        security_context=k8s.core.v1.SecurityContextArgs(
            run_as_user=0,
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=k8s.core.v1.CapabilitiesArgs(drop=["ALL"], add=["CHOWN", "DAC_OVERRIDE", "FOWNER"]),
        ),
        volume_mounts=[k8s.core.v1.VolumeMountArgs(name="shared", mount_path=MOUNT)],
    )
    claim = k8s.core.v1.PersistentVolumeClaimVolumeSourceArgs(claim_name=SHARED_CLAIM)
    return k8s.core.v1.PodTemplateSpecArgs(
        spec=k8s.core.v1.PodSpecArgs(
            restart_policy="OnFailure",
            automount_service_account_token=False,
            security_context=k8s.core.v1.PodSecurityContextArgs(
                seccomp_profile=k8s.core.v1.SeccompProfileArgs(type="RuntimeDefault"),
            ),
            containers=[container],
            volumes=[k8s.core.v1.VolumeArgs(name="shared", persistent_volume_claim=claim)],
        )
    )
