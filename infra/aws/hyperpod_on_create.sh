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

# EFA locks the memory of its buffers, and containers inherit containerd's limit.
mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\nLimitMEMLOCK=infinity\n' > /etc/systemd/system/containerd.service.d/50-memlock.conf
systemctl daemon-reload
pid=$(systemctl show --property MainPID --value containerd)
if [ "${pid:-0}" != 0 ]; then
  prlimit --memlock=unlimited:unlimited --pid "$pid"
fi

echo "$(date -u +%FT%TZ) on_create is done"
exit 0
