"""Whether NCCL used the network that the platform's outputs require. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from trainfleet.training.launch.remote.nccl_log import NcclLog

SOCKET = "Socket"
LIBFABRIC = "Libfabric"
NEEDS_A_LOG = "run with NCCL_DEBUG=INFO, and keep INIT and NET in NCCL_DEBUG_SUBSYS"
NEEDS_A_PLUGIN = "use an image with this network's libraries (the targets of images/Dockerfile)"
NEEDS_NO_FABRIC = "remove NCCL_NET from the run, or declare the pool's fabric in the platform spec"


@dataclass(frozen=True)
class FabricUse:
    """Whether the required network was used, why not, and what to do."""

    used: bool
    reason: str
    fix: str = ""


def fabric_use(log: NcclLog, required: str, processes: int) -> FabricUse:
    """Compare the log with the platform's outputs.

    Args:
        log: of all processes of the run.
        required: the pool's NCCL_NET; empty for a pool without a fabric, whose runs use sockets.
        processes: how many processes the run had.
    """
    expected = required or SOCKET
    found = log.processes.values()
    wrong = {name for one in found for name in one.networks if _network(name) != _network(expected)}
    if wrong:
        names = ", ".join(sorted(wrong))
        return FabricUse(False, _because(f"NCCL used {names} instead of {expected}", log), _fix(required))
    silent = processes - sum(bool(one.networks) for one in found)
    if silent > 0:
        what = f"{silent} of {processes} processes name no network in NCCL's log"
        return FabricUse(False, _because(what, log), _fix(required) if log.failures else NEEDS_A_LOG)
    return FabricUse(True, f"all {processes} processes used {expected}")


def _fix(required: str) -> str:
    return NEEDS_A_PLUGIN if required else NEEDS_NO_FABRIC


def _because(what: str, log: NcclLog) -> str:
    return ": ".join(filter(None, [what, "; ".join(log.failures)]))


def _network(name: str) -> str:
    """One name per network. aws-ofi-nccl up to 1.11 is AWS Libfabric, newer ones Libfabric, and take either
    or OFI in NCCL_NET (nccl_ofi_interface_nvidia, nvidia_plugin_name_fixup). NVIDIA's plugin is
    IBext_v8 (NVIDIA/nccl#1538) and uses the same adapters as IB. NCCL ignores case.
    """
    folded = name.casefold()
    if folded in {"aws libfabric", "ofi"}:
        return LIBFABRIC.casefold()
    return "ib" if folded.startswith("ibext") else folded
