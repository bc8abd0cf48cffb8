"""Pod addresses: one of 127.0.0.0/8 per pod, unique in the cluster, so that every pod can listen on the same port.

127.0.x.y stays free for the machine's own services. Addresses are handed out in rotation rather than lowest first: a
connection of a dead pod that lingers in TIME_WAIT must not meet its successor. Clusters of one machine begin at places of their
own among the sixteen million, or the first pods of two of them would fight for one address and port.
"""

from __future__ import annotations

import zlib

from remuda.api.errors import Refusal

_FIRST = (1 << 16) + 1  # 127.1.0.1
_END = 255 << 16  # up to 127.254.255.255


class PodAddresses:
    """Shared by all nodes of one process. `share` (k, n): of n processes of one cluster this is the k-th, from 0, and hands out
    every n-th address, so that none is given twice. `cluster`: what tells it from others on this machine."""

    def __init__(self, share: tuple[int, int] = (0, 1), cluster: str = "") -> None:
        self._by_uid: dict[str, int] = {}
        self._taken: set[int] = set()
        self._next = _FIRST + (zlib.crc32(cluster.encode()) % (_END - _FIRST))
        self._share = share

    def assign(self, uid: str) -> str:
        """The pod's address; the same one when asked again."""
        number = self._by_uid.get(uid)
        if number is None:
            number = self._free()
            self._keep(uid, number)
        return _address_text(number)

    def recover(self, uid: str, address: str) -> str:
        """The pod had this address before the restart. A pod that lost a collision gets a new one."""
        number = _pod_address_number(address)
        if uid in self._by_uid or number is None or number in self._taken:
            return self.assign(uid)
        self._keep(uid, number)
        self._next = max(self._next, number + 1) if number + 1 < _END else self._next
        return address

    def release(self, uid: str) -> None:
        number = self._by_uid.pop(uid, None)
        if number is not None:
            self._taken.discard(number)

    def _keep(self, uid: str, number: int) -> None:
        self._by_uid[uid] = number
        self._taken.add(number)

    def _free(self) -> int:
        for _ in range(len(self._taken) + _END):
            number = self._next
            self._next = number + 1 if number + 1 < _END else _FIRST
            is_ours = number % self._share[1] == self._share[0]
            if is_ours and number not in self._taken and number & 0xFF not in (0, 255):
                return number
        raise Refusal("NoAddressLeft", "Every address of 127.0.0.0/8 is taken by a pod.", "Delete finished pods.")


def _address_text(number: int) -> str:
    return f"127.{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"


def _pod_address_number(address: str) -> int | None:
    parts = address.split(".")
    if len(parts) != 4 or parts[0] != "127" or not all(p.isdecimal() and int(p) < 256 for p in parts):
        return None
    number = int(parts[1]) << 16 | int(parts[2]) << 8 | int(parts[3])
    return number if _FIRST <= number < _END else None
