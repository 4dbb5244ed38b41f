"""Lines of public NCCL logs: those with facts about the network. Long host names are shortened."""

from __future__ import annotations

# https://github.com/NVIDIA/nccl/issues/1597
EFA = """\
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Support for global registrations: true
8h200-2:6831:6840 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so.
8h200-2:6831:6840 [0] NCCL INFO Using network Libfabric
8h200-3:6310:6318 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
"""
# https://github.com/aws/aws-ofi-nccl/issues/715
EFA_CHANNELS = """\
algo-1:18059:20782 [2] NCCL INFO Channel 04/1 : 15[7] -> 2[2] [receive] via NET/AWS Libfabric/1/GDRDMA/Shared
2024-12-04T05:27:48.125Z
algo-1:18059:20782 [2] NCCL INFO Channel 00/1 : 2[2] -> 5[5] via P2P/CUMEM/read
algo-1:18058:20779 [1] NCCL INFO Channel 04/1 : 14[6] -> 1[1] [receive] via NET/AWS Libfabric/0/GDRDMA/Shared
"""
# https://github.com/aws/aws-ofi-nccl/issues/1020 (NCCL 2.27.7: the container lacked /dev/infiniband)
EFA_WITHOUT_DEVICES = """\
[2025-10-16 22:16:08] ip-172-31-3-90:1929:1937 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI \
fi_getinfo() call failed: No data available
"""
# https://github.com/NVIDIA/nccl/issues/1052
ROCE_2_18 = """\
NCCL version 2.18.5+cuda12.0
node2:14159:14168 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB enp24s0np0:10.10.10.1<0>
node2:14159:14168 [0] NCCL INFO Using network IB
"""
# https://github.com/NVIDIA/nccl-tests/issues/185
ROCE_2_19 = """\
dgxh100-4:460770:460770 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: \
No such file or directory No plugin found (libnccl-net.so), using internal implementation
NCCL version 2.19.3+cuda12.3
dgxh100-4:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
dgxh100-4:460770:460842 [0] NCCL INFO Using network IB
dgxh100-3:2152176:2152299 [0] NCCL INFO Using network IB
"""
# https://github.com/NVIDIA/nccl/issues/1538 (NCCL 2.22.3)
IBEXT = """\
job-3bb823c0-6d27-4312-8094-1c5910bf9b51-worker-0:5665:5733 [2] NCCL INFO Using network IBext_v8
job-3bb823c0-6d27-4312-8094-1c5910bf9b51-worker-0:5666:5728 [3] NCCL INFO Using network IBext_v8
"""
# https://github.com/NVIDIA/nccl/issues/1925 (a version with GIN plugins: 2.28 or newer)
IB_2_28 = """\
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.25.30.42<0>
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Initialized NET plugin IB
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Assigned GIN plugin GIN_IB_GDAKI to comm
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Using network IB
nccl-sleep-c7d759db6-cgz82:3769901:3769901 [1] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
"""
# NCCL's documentation, "Logging", Example Output: the lines of NCCL_DEBUG=VERSION and NCCL_DEBUG=WARN
WITHOUT_NETWORK_2_30 = """\
NCCL version 2.30.3+cuda13.0
[2026-05-05 06:16:47] node-01:189884:189884 [3] plugin/net.cc:334 NCCL WARN Failed to initialize any NET plugin
"""
# https://github.com/autoscriptlabs/nccl-mesh-plugin/issues/56 (host names removed by the author)
IB_WITHOUT_GPUDIRECT = """\
:22901:22901 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/4
:22901:22901 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0
"""
# https://github.com/NVIDIA/nccl/issues/1267
SOCKETS = """\
instance-8g-96c-3:2744870:2744870 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). \
ncclNetPlugin symbols v4 and lower are not supported.
NCCL version 2.19.3+cuda12.3
instance-8g-96c-3:2744870:2745046 [0] NCCL INFO NET/IB : No device found.
instance-8g-96c-3:2744870:2745046 [0] NCCL INFO NET/Socket : Using [0]ens7:10.128.0.32<0>
instance-8g-96c-3:2744870:2745046 [0] NCCL INFO Using network Socket
"""
# Google Cloud's documentation of NCCL/gIB, "Collect and understand NCCL logs"
GIB = """\
a3ultra-vm-0:606:642 [ 6 ] NCCL INFO Using network gIB
a3ultra-vm-0:606:642 [ 6 ] NCCL INFO NET/gIB : Initializing gIB v1.0.2
"""
# https://github.com/AI-Hypercomputer/gpu-recipes/issues/5 (the image's C library was too old for the plugin)
GIB_MISSING = """\
serving-79gp:562:562 [5] net.cc:579 NCCL WARN Error: network gIB not found.
serving-79gp:565:565 [7] NCCL INFO NET/Plugin: Plugin load returned 2 : /lib/x86_64-linux-gnu/libc.so.6: \
version `GLIBC_2.32' not found (required by /usr/local/nvidia/lib64/libnccl-net.so) : when loading libnccl-net.so
"""
