"""Emptying nodes: whose they are, who has to go and when, and what is never undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from remuda.api.codec import from_wire, merge_patch, to_wire
from remuda.api.kubernetes.core_v1 import Node, NodeSpec, Pod, Taint
from remuda.api.meta import ObjectMeta, OwnerReference, to_time
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, LABEL_CLIQUE, LABEL_GANG
from remuda.api.remedies import Drain
from remuda.core.remedies.drain import (
    GONE_S,
    DrainRequest,
    domain_recycled_by_remedy,
    has_to_be_drained,
    node_drain_patch_for_remedy,
    other_actor_on_node,
    plan_drain,
)
from tests.builders.remedies import T0, a_pod, ledger, machine

DEPLOY = Path(__file__).parents[4] / "deploy"
DRAIN = Drain(checkpoint_seconds=60.0, deadline_seconds=300.0)


def patched(node: Node, **wanted: Any) -> Node:
    options = {"hold": False, "cordon": False, "request": None, **wanted}
    return from_wire(Node, merge_patch(to_wire(node), node_drain_patch_for_remedy(node, "inc", **options)))


def cordoned(**annotations: str) -> Node:
    return Node(metadata=ObjectMeta(name="n1", annotations=annotations), spec=NodeSpec(unschedulable=True))


def test_what_we_take_we_give_back_as_it_was() -> None:
    before = machine("n1", rack="r1")
    taken = patched(before, hold=True, cordon=True, request=DrainRequest("inc", T0))
    assert taken.spec.unschedulable
    assert taken.annotations[ANNOTATION_DRAIN_REQUESTED] == DrainRequest("inc", T0).render()
    assert patched(taken, hold=True, cordon=True, request=DrainRequest("inc", T0)) == taken
    assert patched(taken) == before


def test_another_actors_cordon_is_never_undone() -> None:
    before = cordoned()
    taken = patched(before, hold=True, cordon=True)
    assert ANNOTATION_CORDONED_BY not in taken.annotations
    assert patched(taken) == before


def test_a_cordon_taken_back_by_hand_stays_taken_back() -> None:
    taken = patched(machine(), hold=True, cordon=True)
    by_hand = msgspec.structs.replace(taken, spec=NodeSpec())
    assert not patched(by_hand).spec.unschedulable
    assert ANNOTATION_CORDONED_BY not in patched(by_hand).annotations


def test_the_mark_of_a_closed_incident_is_taken_over_with_its_cordon() -> None:
    taken = patched(cordoned(**{ANNOTATION_CORDONED_BY: "old"}), hold=True, cordon=True)
    assert taken.annotations[ANNOTATION_CORDONED_BY] == "inc"


def test_who_else_is_at_work() -> None:
    assert other_actor_on_node(machine()) == ""
    assert "somebody else" in other_actor_on_node(cordoned())
    assert other_actor_on_node(cordoned(), take_over=True) == ""
    assert other_actor_on_node(cordoned(**{ANNOTATION_CORDONED_BY: "inc-7"})) == ""
    assert "NVSentinel" in other_actor_on_node(cordoned(quarantineHealthEventIsCordoned="True"))
    taken = Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(taints=[Taint("karpenter.sh/disrupted", "NoSchedule")]))
    assert "Karpenter" in other_actor_on_node(taken, take_over=True)


# --- pods -------------------------------------------------------------------------------------------------------------


def owned(kind: str) -> Pod:
    return a_pod(kind, owner_references=[OwnerReference("apps/v1", kind, "x", "u", controller=True)])


def test_pods_of_daemonsets_and_of_the_kubelet_stay() -> None:
    assert not has_to_be_drained(owned("DaemonSet"))
    assert has_to_be_drained(owned("ReplicaSet"))
    mirror = a_pod("static")
    meta = msgspec.structs.replace(mirror.metadata, annotations={"kubernetes.io/config.mirror": "x"})
    assert not has_to_be_drained(msgspec.structs.replace(mirror, metadata=meta))


def test_our_own_managers_stay() -> None:
    """On a cluster with no other node for them nobody would be left to open this one again."""
    templates = [d for d in yaml.safe_load_all((DEPLOY / "manager.yaml").read_text()) if d["kind"] == "Deployment"]
    (template,) = (body["spec"]["template"] for body in templates)
    metadata = {"name": "remuda-manager-5b7d", "namespace": "remuda-system", **template["metadata"]}
    manager = from_wire(Pod, {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Running"}})
    assert not has_to_be_drained(manager)
    only_called_so = from_wire(Pod, {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": "Running"}})
    assert has_to_be_drained(only_called_so)


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [p.name for p in pods]


def test_gangs_may_save_first_others_are_evicted_at_once_and_the_deadline_ends_it() -> None:
    gang, other = a_pod("gang-0", labels={LABEL_GANG: "gang"}), a_pod("web")
    pods = {"n1": [gang], "n2": [other, owned("DaemonSet")]}
    first = plan_drain(pods, DRAIN, T0, T0)
    assert (names(first.evict), names(first.delete), first.is_done) == (["web"], [], False)
    later = plan_drain(pods, DRAIN, T0, T0 + 60)
    assert names(later.evict) == ["gang-0", "web"]
    end = plan_drain(pods, DRAIN, T0, T0 + 300)
    assert (names(end.evict), names(end.delete)) == ([], ["gang-0", "web"])
    assert plan_drain({"n1": [], "n2": [owned("DaemonSet")]}, DRAIN, T0, T0).is_done


def test_a_pod_that_is_gone_but_for_its_word_is_not_waited_for_for_ever() -> None:
    leaving = {"n1": [a_pod("web", deletion_timestamp=to_time(T0))]}
    plan = plan_drain(leaving, DRAIN, T0, T0 + 299)
    assert (plan.evict, plan.delete, plan.is_done) == ((), (), False)
    assert not plan_drain(leaving, DRAIN, T0, T0 + 300 + GONE_S - 1).is_done
    assert plan_drain(leaving, DRAIN, T0, T0 + 300 + GONE_S).is_done


# --- domains ----------------------------------------------------------------------------------------------------------


def test_a_domain_is_known_by_its_label_and_by_its_machine() -> None:
    trays = [machine(f"n{i}", **{LABEL_CLIQUE: "c.1"}) for i in range(3)]
    other = machine("x", **{LABEL_CLIQUE: "c.2"})
    whole = domain_recycled_by_remedy(trays[0], ledger("n0", model="dgx-h100"), [*trays, other])
    assert (whole.name, whole.nodes, whole.missing) == ("nvlink/c.1", ("n0", "n1", "n2"), 0)
    part = domain_recycled_by_remedy(trays[0], ledger("n0", model="gb200-nvl72-tray"), trays)
    assert (part.nodes, part.missing) == (("n0", "n1", "n2"), 15)
    alone = domain_recycled_by_remedy(machine("y"), ledger("y", model="dgx-h100"), trays)
    assert (alone.name, alone.nodes) == ("", ("y",))
    unlabelled = domain_recycled_by_remedy(machine("y"), ledger("y", model="gb200-nvl72-tray"), trays)
    assert unlabelled.name
    assert unlabelled.missing == 17
