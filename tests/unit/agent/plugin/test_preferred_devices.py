"""Which devices are preferred: those of the pod it must be for, else the best-linked; and always an answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.agent.allocation.device_choice import devices_in_order, wanted_allocations
from remuda.agent.plugin.preferred_devices import (
    PreferredAsk,
    PreferredChoice,
    choose_plugin_preferred_devices,
    plugin_lowest_devices,
)
from remuda.api.kubernetes.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from remuda.api.meta import ObjectMeta
from remuda.api.names import ANNOTATION_DEVICES, RESOURCE_GPU
from tests.unit.agent.scene import a_pod

GPUS = [f"gpu-{i}" for i in range(8)]
MIG = "nvidia.com/mig-3g.40gb"


def resource_of(device: str) -> str:
    return MIG if "3g" in device else RESOURCE_GPU if device.startswith("gpu-") else ""


def chosen(
    pods: Sequence[Pod], size: int, available: Sequence[str] = GPUS, must: Sequence[str] = (), have: Sequence[str] = ()
) -> PreferredChoice:
    ask = PreferredAsk(RESOURCE_GPU, tuple(available), tuple(must), size)
    return choose_plugin_preferred_devices(
        ask, pods, lambda uid, container: uid in have, resource_of, plugin_lowest_devices
    )


def test_the_scheduler_s_choice_for_the_pod_that_wants_so_many() -> None:
    pods = [a_pod("one", 1, "gpu-7"), a_pod("two", 2, "gpu-4,gpu-6")]
    assert chosen(pods, 2) == PreferredChoice(("gpu-4", "gpu-6"), "default/two")
    assert chosen(pods, 1) == PreferredChoice(("gpu-7",), "default/one")


def test_of_two_alike_the_oldest_that_has_not_got_its_own() -> None:
    pods = [a_pod("young", 1, "gpu-1", created=5), a_pod("old", 1, "gpu-5", created=1)]
    assert chosen(pods, 1).devices == ("gpu-5",)
    assert chosen(pods, 1, have=["uid-old"]).devices == ("gpu-1",)


def test_a_pod_whose_devices_cannot_be_had_does_not_stand_in_the_way() -> None:
    pods = [a_pod("old", 1, "gpu-0"), a_pod("young", 1, "gpu-3", created=5)]
    assert chosen(pods, 1, GPUS[1:]).devices == ("gpu-3",)


def test_without_a_match_what_was_chosen_for_others_is_left_alone_if_possible() -> None:
    pods = [a_pod("other", 2, "gpu-0,gpu-1")]
    assert chosen(pods, 1) == PreferredChoice(("gpu-2",))
    assert chosen(pods, 1, GPUS[:2]).devices == ("gpu-0",)


def test_what_must_be_in_it_is() -> None:
    pods = [a_pod("two", 2, "gpu-4,gpu-6")]
    assert chosen(pods, 2, must=["gpu-6"]).pod == "default/two"
    assert chosen(pods, 2, must=["gpu-5"]) == PreferredChoice(("gpu-0", "gpu-5"))


def test_a_finished_or_leaving_pod_waits_for_nothing() -> None:
    import msgspec

    pod = a_pod("done", 1, "gpu-5")
    done = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Failed"))
    assert chosen([done], 1) == PreferredChoice(("gpu-0",))


def test_a_shared_device_offers_any_free_share() -> None:
    shares = ["gpu-0::0", "gpu-0::1", "gpu-3::1", "gpu-3::2"]
    pods = [a_pod("one", 1, "gpu-3")]
    assert chosen(pods, 1, shares) == PreferredChoice(("gpu-3::1",), "default/one")
    assert chosen([], 2, shares).devices == ("gpu-0::0", "gpu-3::1")  # two devices rather than one shared with itself
    assert chosen([], 2, shares[1:]).devices == ("gpu-0::1", "gpu-3::1")


@pytest.mark.parametrize("annotation", ["gpu-0,gpu-1,gpu-2", "gpu-99", "§$%", ",,,", "gpu-0,gpu-0"])
def test_an_odd_annotation_is_not_believed(annotation: str) -> None:
    answer = chosen([a_pod("odd", 2, annotation)], 2)
    assert len(set(answer.devices)) == 2
    assert set(answer.devices) <= set(GPUS)


def test_a_table_that_cannot_answer_fails_nobody() -> None:
    """Row 18: a failing preference falls back to any valid set."""

    def broken(free: Sequence[str], size: int, must: Sequence[str]) -> Sequence[str]:
        raise ValueError("one device is lost")

    def wrong(free: Sequence[str], size: int, must: Sequence[str]) -> Sequence[str]:
        return ["gpu-9", "gpu-9"]

    for best in (broken, wrong):
        ask = PreferredAsk(RESOURCE_GPU, tuple(GPUS[3:]), ("gpu-6",), 2)
        assert choose_plugin_preferred_devices(ask, [], lambda uid, c: False, resource_of, best).devices == (
            "gpu-3",
            "gpu-6",
        )


@given(
    st.lists(st.sampled_from([*GPUS, *(f"gpu-{i}::{n}" for i in range(3) for n in range(3))]), unique=True),
    st.data(),
)
def test_there_is_always_a_valid_answer(available: list[str], data: st.DataObject) -> None:
    must = data.draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    size = data.draw(st.integers(len(must), len(available)))
    pods = [
        a_pod(f"p{i}", data.draw(st.integers(1, 4)), ",".join(data.draw(st.lists(st.sampled_from([*GPUS, "x"])))))
        for i in range(data.draw(st.integers(0, 3)))
    ]
    found = chosen(pods, size, available, must).devices
    assert len(found) == len(set(found)) == size
    assert set(must) <= set(found) <= set(available)


def test_the_pod_s_list_is_dealt_out_as_the_kubelet_asks() -> None:
    def container(name: str, **limits: int) -> Container:
        amounts: dict[str, int | str] = {
            {"gpu": RESOURCE_GPU, "mig": MIG, "cpu": "cpu"}[k]: v for k, v in limits.items()
        }
        return Container(name=name, resources=ResourceRequirements(limits=amounts))

    pod = Pod(
        metadata=ObjectMeta(name="p", annotations={ANNOTATION_DEVICES: "gpu-1,gpu-0-3g.40gb-0,gpu-2,gpu-3"}),
        spec=PodSpec(
            init_containers=[container("init", gpu=2)],
            containers=[container("a", gpu=1, cpu=4), container("b", mig=1, gpu=2), container("c", cpu=1)],
        ),
    )
    assert [(w.container, w.resource, w.chosen) for w in wanted_allocations(pod, resource_of)] == [
        ("init", RESOURCE_GPU, ("gpu-1", "gpu-2")),
        ("a", RESOURCE_GPU, ("gpu-1",)),
        ("b", MIG, ("gpu-0-3g.40gb-0",)),
        ("b", RESOURCE_GPU, ("gpu-2", "gpu-3")),
    ]


def test_ids_are_ordered_by_their_numbers() -> None:
    assert devices_in_order(["gpu-10", "gpu-2", "gpu-2::10", "gpu-2::9"]) == [
        "gpu-2",
        "gpu-2::9",
        "gpu-2::10",
        "gpu-10",
    ]
