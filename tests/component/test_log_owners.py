"""The logs of a cluster's pods and jobs go with their objects, as the server itself sees them."""

from __future__ import annotations

import os
from pathlib import Path

from remuda.api.kubernetes.core_v1 import Namespace, Pod
from remuda.api.meta import ObjectMeta
from remuda.embedded.node.log_cleanup import clean_logs_once
from remuda.link.rank_logs import rank_log_path
from remuda.runtime.embedded_server import EmbeddedClusterServer
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import ClusterConfig
from tests.builders.pods import pod_wire

LONG_AFTER = 10_000.0


def written(root: Path, pod: Pod) -> Path:
    path = rank_log_path(root, pod, "main")
    path.parent.mkdir(parents=True)
    path.write_text("words\n")
    for place in (path, path.parent, path.parents[1]):
        os.utime(place, (1, 1))
    return path


async def test_a_deleted_pod_takes_its_logs_along_and_others_keep_theirs(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    server = EmbeddedClusterServer(ClusterConfig(nodes=1, racks=1, runtime="simulated"), state)
    api = server.cluster.api
    try:
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name="default")))
        stays, goes = [await api.create(Pod, pod_wire(name, image="words:1")) for name in ("stays", "goes")]
        kept, lost = written(state.logs, stays), written(state.logs, goes)
        await clean_logs_once(state.logs, server._log_owners, lambda: LONG_AFTER)
        assert kept.exists()
        assert lost.exists()
        await api.delete(Pod, "goes", "default", grace_s=0)
        await clean_logs_once(state.logs, server._log_owners, lambda: LONG_AFTER)
        assert kept.exists()
        assert not lost.parents[1].exists()
    finally:
        await server.cluster.store.close()
