"""What /livez, /readyz and /healthz answer. Pure.

`/livez`: should somebody restart this process? A disk that takes no writes is not mended by that, and reads, watches and pods go
on, so it stays ok. `/readyz` and `/healthz` are ready for *all* requests, writes included, and say which check failed, as
kube-apiserver does: code 500 and a line for each check. The storage's reason is told (kube-apiserver withholds it): it names no
secret, and `remuda status` shows it.
"""

from __future__ import annotations

import msgspec

from remuda.api.errors import ApiError

LIVE, READY, HEALTHY = "/livez", "/readyz", "/healthz"
HEALTH_PATHS = frozenset((LIVE, READY, HEALTHY))
_STORAGE_FAILED = "[-]storage failed: "


class HealthAnswer(msgspec.Struct, frozen=True):
    code: int
    text: str


def apiserver_health_answer(path: str, trouble: ApiError | None, *, verbose: bool = False) -> HealthAnswer:
    name = path.removeprefix("/")
    if trouble is None or path == LIVE:
        lines = ["[+]ping ok", *([] if path == LIVE else ["[+]storage ok"]), f"{name} check passed", ""]
        return HealthAnswer(200, "\n".join(lines) if verbose else "ok")
    lines = ["[+]ping ok", f"{_STORAGE_FAILED}{trouble.reason}: {trouble.message}", f"{name} check failed", ""]
    return HealthAnswer(500, "\n".join(lines))


def storage_trouble_in_health_answer(text: str) -> str:
    """`Reason: sentence` out of such an answer; "" when the storage is well."""
    found = (line for line in text.splitlines() if line.startswith(_STORAGE_FAILED))
    return next(found, "").removeprefix(_STORAGE_FAILED)
