"""TLS streams that stay open and say little: what each of them keeps between two messages.

asyncio gives every TLS connection a read buffer of 256 KiB and writes zeros into all of it. A manager has one stream for each
node, so 5,000 nodes are 1.25 GiB for messages of a few hundred bytes. A TLS record is 16 KiB at most, and so is the buffer here.

There is no public way to say so: asyncio makes the buffer itself for every TLS transport, and neither servers, connections nor
`start_tls` take its size. What is public is to do TLS here, with `ssl.MemoryBIO` under a plain transport: handshake, shutdown
and flow control written a second time for the sake of one number, and wrong in their own ways. So three fields are set, after
a look whether they are there. Where this Python has other names for them, streams stay as they are: larger, and right.
"""

from __future__ import annotations

import asyncio
from typing import Any

BUFFER = 16 * 1024


def slim(writer: asyncio.StreamWriter) -> bool:
    """Whether the stream has a small buffer now. Not to be called from within its callbacks: the buffer is empty between them."""
    protocol: Any = getattr(writer.transport, "_ssl_protocol", None)
    if not all(hasattr(protocol, name) for name in ("max_size", "_ssl_buffer", "_ssl_buffer_view")):
        return False
    protocol.max_size = BUFFER
    protocol._ssl_buffer = bytearray(BUFFER)
    protocol._ssl_buffer_view = memoryview(protocol._ssl_buffer)
    return True
