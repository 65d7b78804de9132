"""A system call filter for sandboxed commands, as the classic BPF program that bwrap loads.

Namespaces already keep a command away from the host's files, processes and network. The filter takes away the parts of
the kernel that sandbox escapes start from and that no build, test or shell tool needs: new namespaces and mounts,
kernel keyrings, BPF, io_uring, tracing of other processes, and sockets other than local and internet ones.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_LOAD_WORD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000
_KILL: Final = 0x80000000
_OFFSET_NUMBER: Final = 0
_OFFSET_ARCHITECTURE: Final = 4
_OFFSET_FIRST_ARGUMENT: Final = 16
# x86-64 processes may enter the kernel with this bit set and would get other numbers for the same calls.
_X32_BIT: Final = 0x40000000
_LOCAL_AND_INTERNET_FAMILIES: Final = (1, 2, 10)


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    socket: int
    refused: Mapping[str, int]


_MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(
        audit=0xC000003E,
        socket=41,
        refused={
            "ptrace": 101, "pivot_root": 155, "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169,
            "init_module": 175, "delete_module": 176, "kexec_load": 246, "add_key": 248, "request_key": 249,
            "keyctl": 250, "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311, "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
            "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
            "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442,
        },
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        socket=198,
        refused={
            "umount2": 39, "mount": 40, "pivot_root": 41, "unshare": 97, "kexec_load": 104, "init_module": 105,
            "delete_module": 106, "ptrace": 117, "reboot": 142, "add_key": 217, "request_key": 218, "keyctl": 219,
            "swapon": 224, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
            "process_vm_writev": 271, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
            "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
            "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442,
        },
    ),
}  # fmt: skip


def program(machine: str | None = None) -> bytes | None:
    """The filter for a machine type (default: this one); None where its call numbers are not known.

    A refused call fails with EPERM, so that programs that merely try go on.
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    refuse = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    code: list[tuple[int, int, int, int]] = [
        (_LOAD_WORD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, known.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD_WORD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        refuse,
    ]
    for number in sorted(known.refused.values()):
        code += [(_JUMP_EQUAL, 0, 1, number), refuse]
    code += [
        (_JUMP_EQUAL, 1, 0, known.socket),
        allow,
        (_LOAD_WORD, 0, 0, _OFFSET_FIRST_ARGUMENT),
        *[(_JUMP_EQUAL, len(_LOCAL_AND_INTERNET_FAMILIES) - index, 0, family)
          for index, family in enumerate(_LOCAL_AND_INTERNET_FAMILIES)],
        refuse,
        allow,
    ]  # fmt: skip
    return _assemble(code)


def _assemble(code: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
