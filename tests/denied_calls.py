"""System calls that a process and its children are denied, as in containers."""

import ctypes
import platform
import struct

# Numbers of <linux/filter.h>, <linux/seccomp.h>, and of the call on each machine.
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def forbid_memfd():
    """From here on memfd_create fails with EPERM, in this process and everything it starts."""

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    machine = platform.machine()
    steps = [
        (LOAD, 0, 0, 4),  # the architecture
        (JUMP_IF_EQUAL, 0, 3, AUDIT_ARCH[machine]),
        (LOAD, 0, 0, 0),  # the call's number
        (JUMP_IF_EQUAL, 0, 1, MEMFD_CREATE[machine]),
        (RETURN, 0, 0, ERRNO | 1),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(steps), code)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "seccomp filters are not permitted")
