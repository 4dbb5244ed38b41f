#!/bin/bash
# Runs once on every new HyperPod node, before it joins the cluster: images and their layers go to the node's large disk.
# A node whose script fails is not used, so what cannot be done is said and left.
set -uo pipefail

log=/var/log/provision/on_create.log
mkdir -p "$(dirname "$log")"
exec >>"$log" 2>&1
echo "$(date -u +%FT%TZ) on_create begins on $(hostname)"

config=/etc/eks/containerd/containerd-config.toml
for disk in /opt/dlami/nvme /opt/sagemaker; do
  if mountpoint -q "$disk" && [ -f "$config" ]; then
    mkdir -p "$disk/containerd"
    sed -i "s|^[#[:space:]]*root[[:space:]]*=.*|root = \"$disk/containerd\"|" "$config"
    echo "containerd keeps its data on $disk"
    break
  fi
done

echo "$(date -u +%FT%TZ) on_create is done"
exit 0
