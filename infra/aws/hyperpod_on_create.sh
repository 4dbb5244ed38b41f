#!/bin/bash
# Runs once on every new HyperPod node, before it joins the cluster: images, volumes and logs of pods go to the node's large disk.
# The folders are bind-mounted there, as EKS's own image does for instance storage (amazon-eks-ami, setup-local-disks).
# That needs no setting of containerd, whose configuration is in another place on each image, and nodeadm overwrites it.
# A node whose script fails is not used, so what cannot be done is logged and left.
set -uo pipefail

log=/var/log/provision/on_create.log
mkdir -p "$(dirname "$log")"
exec >>"$log" 2>&1
echo "$(date -u +%FT%TZ) on_create begins on $(hostname)"

# The instance storage first: it is faster than the volume.
disk=
for attempt in 1 2 3 4 5 6; do
  for each in /opt/dlami/nvme /opt/sagemaker; do
    if mountpoint -q "$each"; then
      disk=$each
      break 2
    fi
  done
  echo "no large disk is mounted yet (attempt $attempt)"
  sleep 10
done

# Copies a folder to the disk and mounts it in its place, now and after a reboot.
move() {
  local folder=$1 target unit
  target="$disk/$(basename "$folder")"
  unit="/etc/systemd/system/$(systemd-escape --path --suffix=mount "$folder")"
  mkdir -p "$folder" "$target" && cp -a "$folder/." "$target/" || return
  cat >"$unit" <<UNIT
[Unit]
Description=$folder on the large disk
RequiresMountsFor=$disk
After=dlami-nvme.service
# Without the disk, the folder on the root volume is used, as it was before.
ConditionPathIsMountPoint=$disk
Before=containerd.service kubelet.service
[Mount]
What=$target
Where=$folder
Type=none
Options=bind
[Install]
WantedBy=multi-user.target
UNIT
  systemctl daemon-reload
  systemctl enable --now "$(basename "$unit")" && echo "$folder is on $disk"
}

if [ -n "$disk" ]; then
  running=
  for service in kubelet containerd; do
    if systemctl is-active --quiet "$service"; then
      running="$service $running"
      systemctl stop "$service"
    fi
  done
  for folder in /var/lib/containerd /var/lib/kubelet /var/log/pods; do
    move "$folder" || echo "$folder stays on the root volume"
  done
  # In the order of the dependency: containerd, then the kubelet.
  for service in $running; do
    systemctl start "$service" || echo "$service did not start"
  done
fi

echo "$(date -u +%FT%TZ) on_create is done"
exit 0
