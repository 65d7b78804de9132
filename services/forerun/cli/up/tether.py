"""Becomes another program that ends when its parent does: `tether.py PARENT_PID PROGRAM ARGUMENT...`.

A platform that was killed leaves nothing behind, because the kernel tells its children. Run as a script of its own,
with nothing imported from us, so that it costs a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have ended before the line above took effect.
    if os.getppid() != int(sys.argv[1]):
        sys.exit(0)
    os.execv(sys.argv[2], sys.argv[2:])
