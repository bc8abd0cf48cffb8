"""The embedded API server as a process of its own, with what stands behind kube-apiserver in these tests: nothing.

No controllers and no machines run (only etcd and kube-apiserver run on the other side), so what is compared is the API
alone. `python -m tests.conformance.embedded_plane DIR [LIMIT_S]` serves until its parent ends it; DIR/kubeconfig appears
when it answers. LIMIT_S: how long clients may take for a head, a body, or what was written to their watch.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
import time
import uuid
from pathlib import Path

from remuda import __version__
from remuda.api.kubernetes.core_v1 import Namespace, Pod
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.embedded.apiserver import asgi_server, watch_streams
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import ObjectStore
from remuda.embedded.apiserver.store.sqlite_journal import SqliteJournal
from remuda.embedded.apiserver.wire import http_exchange
from remuda.embedded.node.pod_logs import PodLogFiles
from remuda.runtime.api_endpoint import LOOPBACK, ApiEndpoint
from remuda.runtime.state_dir import StateDir

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
HISTORY = 64  # short, so that a case can outrun it
_PR_SET_PDEATHSIG = 1


async def _serve(directory: Path) -> None:
    state = StateDir(directory)
    store = ObjectStore(SqliteJournal(state.database), history=HISTORY)
    api = LocalCluster(store, clock=time.time, new_uid=lambda: str(uuid.uuid4()), admission=AdmissionChain)
    for name in NAMESPACES:
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name=name)))

    def find(namespace: str, name: str) -> JsonObject | None:
        record = store.get(Pod.resource.key(name, namespace))
        return None if record is None else record.body

    app = ApiServerApp(api, version=__version__, logs=PodLogFiles(state.logs, find))
    face = asyncio.create_task(ApiEndpoint(state, 0, LOOPBACK, time.time()).serve(app, asyncio.Event()))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, face.cancel)
    try:
        await face
    except asyncio.CancelledError:
        pass  # told to end
    finally:
        await store.close()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed test run leaves nothing behind
    if len(sys.argv) > 2:
        asgi_server.HEAD_WITHIN_S = http_exchange.BODY_WITHIN_S = watch_streams.STALLED_AFTER_S = float(sys.argv[2])
    if len(sys.argv) > 3:
        watch_streams.STALLED_AFTER_S = float(sys.argv[3])
    asyncio.run(_serve(Path(sys.argv[1])))
