"""Whose turn it is among those that wait for a place."""

from __future__ import annotations

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_time
from remuda.api.names import ANNOTATION_GANG_SIZE, ANNOTATION_SEGMENT, ANNOTATION_SEGMENT_SIZE, LABEL_GANG
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


# --- segments --------------------------------------------------------------------------------------------------------


def of_segment(name: str, segment: int, node: str = "") -> Pod:
    """Of a gang of four in segments of two."""
    marks = {ANNOTATION_GANG_SIZE: "4", ANNOTATION_SEGMENT: str(segment), ANNOTATION_SEGMENT_SIZE: "2"}
    meta = {"name": name, "namespace": "a", "uid": name, "annotations": marks, "labels": {LABEL_GANG: "job"}}
    return from_wire(Pod, {"metadata": meta, "spec": {"nodeName": node, "containers": [{"name": "main"}]}})


def missing(*pods: Pod) -> int:
    """Pods that the gang is still waited for."""
    waits = [pod for pod in pods if not pod.spec.node_name]
    [ask] = gather_waiting_gangs(waits, lambda pod: list(pods), lambda node, key: "rack-1")
    return ask.waiting_for


THERE = (of_segment("p0", 0, "node-01"), of_segment("p1", 0, "node-02"))


def test_a_segment_that_moves_is_waited_for_until_all_its_pods_are_there() -> None:
    assert missing(*THERE, of_segment("p2", 1)) == 1
    assert missing(*THERE, of_segment("p2", 1), of_segment("p3", 1)) == 0


def test_a_pod_of_a_segment_that_sits_somewhere_waits_for_nobody() -> None:
    assert missing(*THERE, of_segment("p2", 1, "node-03"), of_segment("p3", 1)) == 0
