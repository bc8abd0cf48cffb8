"""Work on large requests, off the event loop: decoding, patching, checking, encoding. The loop goes on in between.

What is handed over is pure: it reads what it was given and shares nothing that anybody changes. Few run at a time, because their
lanes have one seat each (`lanes`).

The interpreter takes turns between them and the loop. The loop gives its turn away with every call of the system, and every TLS
record that it reads or writes is one: 200 of them for a large body. So turns are short here, a tenth of what they usually are.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_THREADS = 3  # one for each lane of large requests
_TURN_S = 0.0005


class OffLoop:
    def __init__(self) -> None:
        sys.setswitchinterval(_TURN_S)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="api-large")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
