"""Takes the network from a process and its children: the kernel refuses every outgoing connection.

A seccomp filter and a Landlock domain on Linux (x86-64, arm64); no privilege is needed, and neither can be
undone. Elsewhere only an audit hook remains, which stops an accident and not an attack (see `unsupported`).
`program.py` runs this file by path: it imports the standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Any

MARK = "TRAINFLEET_ISOLATED"
"""The variable that tells the process of a policy pack that it has no network."""
HINT = "a rehearsed program has no network: use --network to allow it"
_SYSCALLS = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41,
            "connect": 42,
            "sendto": 44,
            "sendmsg": 46,
            "sendmmsg": 307,
            "ptrace": 101,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "pidfd_getfd": 438,
            "io_uring_setup": 425,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198,
            "connect": 203,
            "sendto": 206,
            "sendmsg": 211,
            "sendmmsg": 269,
            "ptrace": 117,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "pidfd_getfd": 438,
            "io_uring_setup": 425,
        },
    ),
}
"""Audit architecture and syscall numbers per machine (linux/audit.h, asm/unistd.h)."""
_FORBIDDEN = ("connect", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "io_uring_setup")
_X32 = 0x40000000
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | errno.EACCES
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_MSG_FASTOPEN = 0x20000000
_PR_SET_NO_NEW_PRIVS, _PR_GET_SECCOMP = 38, 21
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_MAKE_CHARACTER_DEVICE = 1 << 6
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_PRIVILEGES = (12, 13, 16, 17, 19, 21, 38, 39)
"""Root's ways around this: NET_ADMIN, NET_RAW, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, PERFMON, BPF."""
_CAPABILITIES_V3 = 0x20080522


def unsupported() -> str:
    """Return why the kernel cannot take the network from a process; empty if it can."""
    if sys.platform != "linux":
        return f"{sys.platform} has no seccomp"
    if platform.machine() not in _SYSCALLS:
        return f"no filter for {platform.machine()}"
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return "this kernel has no seccomp"
    return ""


def hide_other_processes() -> None:
    """Start a Landlock domain: from here on, memory and environment of processes outside it are unreadable.

    A kernel without Landlock (before 5.13) is not an error: there, only a process's own user can protect it.
    """
    if sys.platform != "linux" or platform.machine() not in _SYSCALLS:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _drop_privileges(libc)
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return
    scope = (0, _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS) if version >= 6 else ()
    rules = struct.pack(f"={1 + len(scope)}Q", _MAKE_CHARACTER_DEVICE, *scope)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    ruleset = libc.syscall(_LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    if ruleset < 0 or libc.syscall(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint32(0)) != 0:
        raise OSError(ctypes.get_errno(), "Landlock refused a domain")
    os.close(ruleset)


def _drop_privileges(libc: ctypes.CDLL) -> None:
    """Give up root's capabilities that defeat the domain or the filter; other users have none of them."""
    header = struct.pack("=Ii", _CAPABILITIES_V3, 0)
    held = ctypes.create_string_buffer(24)
    if libc.capget(header, held) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities of this process cannot be read")
    words = list(struct.unpack("=6I", held.raw))
    for number in _PRIVILEGES:
        for field in range(3):
            words[3 * (number // 32) + field] &= ~(1 << number % 32)
    if libc.capset(header, struct.pack("=6I", *words)) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities of this process cannot be dropped")


def without_network() -> None:
    """Refuse every later outgoing connection of this process, all its threads and its children.

    Connections that are open stay open, and the process may listen. Where the kernel cannot enforce it, only
    the audit hook is installed.

    Raises:
        OSError: the kernel has seccomp and refused the filter.
    """
    sys.addaudithook(_explain)
    if unsupported():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    code = _program(*_SYSCALLS[platform.machine()])
    text = ctypes.create_string_buffer(code, len(code))
    filters = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(text))
    all_threads = 1
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    number = _SECCOMP[platform.machine()]
    if libc.syscall(number, ctypes.c_uint(1), ctypes.c_uint(all_threads), filters) != 0:
        raise OSError(
            ctypes.get_errno(), "the kernel refused the seccomp filter; use --network to run without"
        )


def _explain(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise an error that names the flag, before the kernel refuses without a reason."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"):
        target = arguments[0] if event == "socket.getaddrinfo" else arguments[-1]
        if event != "socket.sendmsg" or target is not None:
            raise PermissionError(errno.EACCES, f"{HINT} ({event} {target!r})")


def _program(architecture: int, number: dict[str, int]) -> bytes:
    """Return the filter as BPF (linux/seccomp.h): one instruction is 8 bytes.

    Refused: connecting; sockets other than TCP over IP, which `sendmsg` could address without connecting; TCP
    fast open; io_uring, which does all of it without system calls; other processes; other system call tables.
    """
    low = _ARGUMENTS
    steps: list[tuple[int, int, str, str]] = []
    """Code, constant, target if true, target if false; an empty target is the next step."""
    labels: dict[str, int] = {}

    def add(code: int, constant: int, yes: str = "", no: str = "") -> None:
        steps.append((code, constant, yes, no))

    add(_LOAD, _ARCHITECTURE)
    add(_EQUAL, architecture, "", "deny")
    add(_LOAD, _NUMBER)
    add(_ABOVE, _X32, "deny", "")
    for name in _FORBIDDEN:
        add(_EQUAL, number[name], "deny", "")
    for name in ("socket", "sendto", "sendmsg", "sendmmsg"):
        add(_EQUAL, number[name], name, "")
    add(_EQUAL, 0xFFFFFFFF, "deny", "allow")
    labels["socket"] = len(steps)
    add(_LOAD, low)
    add(_EQUAL, 2, "stream", "")
    add(_EQUAL, 10, "stream", "deny")
    labels["stream"] = len(steps)
    add(_LOAD, low + 8)
    add(_AND, 0xF)
    add(_EQUAL, 1, "", "deny")
    add(_LOAD, low + 16)
    add(_EQUAL, 0, "allow", "")
    add(_EQUAL, 6, "allow", "deny")
    labels["sendto"] = len(steps)
    add(_LOAD, low + 32)
    add(_EQUAL, 0, "", "deny")
    add(_LOAD, low + 36)
    add(_EQUAL, 0, "", "deny")
    add(_LOAD, low + 24)
    add(_ANY_BIT, _MSG_FASTOPEN, "deny", "allow")
    labels["sendmsg"] = len(steps)
    add(_LOAD, low + 16)
    add(_ANY_BIT, _MSG_FASTOPEN, "deny", "allow")
    labels["sendmmsg"] = len(steps)
    add(_LOAD, low + 24)
    add(_ANY_BIT, _MSG_FASTOPEN, "deny", "allow")
    labels["allow"] = len(steps)
    add(_RETURN, _ALLOW)
    labels["deny"] = len(steps)
    add(_RETURN, _DENY)

    def jump(label: str, here: int) -> int:
        return labels[label] - here - 1 if label else 0

    return b"".join(
        struct.pack("HBBI", code, jump(yes, here), jump(no, here), constant)
        for here, (code, constant, yes, no) in enumerate(steps)
    )
