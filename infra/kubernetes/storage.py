"""Storage: the encrypted default storage class, and the shared filesystem as a claim in the training
namespace.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import STORAGE_CLASS
from trainfleet.infra.platform import SHARED_CLAIM, TRAINING_NAMESPACE, Platform, SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec


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
        k8s.core.v1.PersistentVolumeClaim(
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
