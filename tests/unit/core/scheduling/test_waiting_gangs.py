"""Whose turn it is among those that wait for a place."""

from __future__ import annotations

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_time
from remuda.core.scheduling.waiting_gangs import gather_waiting_gangs


def waiting(namespace: str, name: str, since: float) -> Pod:
    made = to_time(since).isoformat().replace("+00:00", "Z")
    meta = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "creationTimestamp": made}
    return from_wire(Pod, {"metadata": meta, "spec": {"containers": [{"name": "main"}]}})


def order(*pods: Pod) -> list[str]:
    asks = gather_waiting_gangs(pods, lambda pod: [], lambda node, key: None, 5000.0)
    return [ask.members[0].uid for ask in asks]


def test_the_oldest_comes_first() -> None:
    assert order(waiting("a", "late", 30), waiting("a", "first", 10), waiting("a", "second", 20)) == [
        "a-first",
        "a-second",
        "a-late",
    ]


def test_a_crowd_of_one_namespace_is_no_queue_before_another() -> None:
    crowd = [waiting("crowd", f"{n:04d}", 100 + n) for n in range(1000)]
    found = order(*crowd, waiting("alice", "one", 2000), waiting("alice", "two", 2001), waiting("bob", "job", 3000))
    assert found[:6] == ["crowd-0000", "alice-one", "bob-job", "crowd-0001", "alice-two", "crowd-0002"]
    assert len(found) == 1003
