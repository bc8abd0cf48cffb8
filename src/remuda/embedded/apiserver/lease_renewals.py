"""Which writes are renewals of a lease, and nothing else. Pure.

A renewal moves `spec.renewTime` of a lease that is held, and leaves its holder, its length and its transitions alone. Such a
write may stay in memory while the disk refuses it (`store.store` says why that is safe). One that gives a lease to somebody, or
makes or removes one, may not: whoever was told that he leads must lead after a restart, too.
"""

from __future__ import annotations

from remuda.api.kubernetes.core_v1 import Lease
from remuda.embedded.apiserver.store import StoreEvent

_MAY_MOVE = frozenset({"renewTime"})


def is_lease_renewal(event: StoreEvent) -> bool:
    if event.previous is None or not event.record.key.startswith(Lease.resource.prefix):
        return False
    before, after = event.previous.body, event.record.body
    old, new = before.get("spec"), after.get("spec")
    if not isinstance(old, dict) or not isinstance(new, dict) or not new.get("holderIdentity"):
        return False
    if any(old.get(name) != new.get(name) for name in {*old, *new} - _MAY_MOVE):
        return False
    return _settled_meta(before) == _settled_meta(after)


def _settled_meta(body: dict[str, object]) -> dict[str, object]:
    meta = body.get("metadata")
    moving = ("resourceVersion", "managedFields")
    return {name: value for name, value in meta.items() if name not in moving} if isinstance(meta, dict) else {}
