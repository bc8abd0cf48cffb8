"""What happens to the memory of large blocks once they are freed.

Every TLS connection reads into 256 KiB, and bodies and answers may have megabytes. glibc begins to cut such blocks out of its
heap once the first one has been freed. Small things that live longer settle between them, and what a crowd of clients has left
then stays with the process although nobody uses it. With a fixed bound each large block is a mapping of its own: the kernel has
it back as soon as it is freed. It costs some page faults per large block.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 128 * 1024  # glibc's own bound, which it would raise


def give_freed_blocks_back() -> bool:
    """Of this process, from now on. False where the C library has no such switch; then nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))
