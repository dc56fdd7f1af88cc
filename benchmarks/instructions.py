"""Instructions that a stretch of this process retires, in user mode: a count that neighbours do not disturb."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SYSCALLS = {"x86_64": 298, "aarch64": 241}  # perf_event_open
HARDWARE, COUNT_INSTRUCTIONS = 0, 1
EXCLUDE_KERNEL_AND_HYPERVISOR = 0b1100000  # bits 5 and 6 of perf_event_attr's flags
ATTR_SIZE = 112


class Counter:
    """Counts from when it is made; `read` may be called at any time. Linux, where perf_event_paranoid allows."""

    def __init__(self) -> None:
        """Start counting; OSError, with the reason, where instructions cannot be counted."""
        number = SYSCALLS.get(platform.machine())
        if number is None or platform.system() != "Linux":
            raise OSError("instructions are counted on Linux only (x86_64, aarch64)")
        attr = bytearray(ATTR_SIZE)
        struct.pack_into("<IIQ", attr, 0, HARDWARE, ATTR_SIZE, COUNT_INSTRUCTIONS)
        struct.pack_into("<Q", attr, 40, EXCLUDE_KERNEL_AND_HYPERVISOR)
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = (ctypes.c_char * ATTR_SIZE).from_buffer(attr)
        self._fd = libc.syscall(number, buffer, 0, -1, -1, 0)
        if self._fd < 0:
            reason = os.strerror(ctypes.get_errno())
            raise OSError(f"instructions cannot be counted here: {reason} (perf_event_open)")

    def read(self) -> int:
        """Return the instructions of this thread since the counter was made."""
        count: int = struct.unpack("<Q", os.read(self._fd, 8))[0]
        return count

    def close(self) -> None:
        """Give the counter back."""
        os.close(self._fd)
