"""The device manager's state machine: every line of what a kubelet does by event, flaws included."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from remuda.api.errors import Refusal
from remuda.embedded.node.devices.device_ledger import (
    GRACE_S,
    NO_NUMA,
    DeviceRequest,
    KubeletDeviceGrant,
    KubeletDeviceLedger,
    LedgerMemory,
)
from remuda.link.device_plugin_port import ContainerAllocation, PluginDevice, PluginOptions

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
ANSWER = ContainerAllocation(envs={"A": "1"})


def devices(*healthy: str, bad: tuple[str, ...] = ()) -> tuple[PluginDevice, ...]:
    return (*(PluginDevice(d) for d in healthy), *(PluginDevice(d, "Unhealthy") for d in bad))


def a_ledger(count: int = 4, *, preferred: bool = False) -> KubeletDeviceLedger:
    ledger = KubeletDeviceLedger()
    ledger.connect(GPU, "a.sock", PluginOptions(preferred_allocation_available=preferred))
    ledger.receive(GPU, devices(*(f"gpu-{n}" for n in range(count))))
    return ledger


def give(
    ledger: KubeletDeviceLedger, uid: str, count: int = 1, container: str = "main", resource: str = GPU
) -> tuple[str, ...]:
    request = DeviceRequest(uid, container, resource, count)
    choice = ledger.choose(request)
    if choice is None:
        found = ledger.grant(uid, container, resource)
        assert found is not None
        return found.devices
    return ledger.give(request, ledger.settle(choice), ANSWER).devices


def refusal(ledger: KubeletDeviceLedger, uid: str = "b", count: int = 1, resource: str = GPU) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ledger.choose(DeviceRequest(uid, "main", resource, count))
    return caught.value


def amounts(ledger: KubeletDeviceLedger, resource: str = GPU) -> tuple[int, int]:
    counts = ledger.counts()
    return counts.capacity[resource], counts.allocatable[resource]


# --- what happens to devices and plugins --------------------------------------------------------------------------------

Change = Callable[[KubeletDeviceLedger], object]
LESS = devices("gpu-0", "gpu-1", "gpu-2", bad=("gpu-3",))


@pytest.mark.parametrize(
    ("change", "capacity", "allocatable"),
    [
        pytest.param(lambda ledger: None, 4, 4, id="all healthy"),
        pytest.param(
            lambda ledger: ledger.receive(GPU, LESS), 4, 3, id="one Unhealthy: allocatable falls, capacity not"
        ),
        pytest.param(lambda ledger: ledger.receive(GPU, devices("gpu-0")), 1, 1, id="dropped from the list: both fall"),
        pytest.param(
            lambda ledger: ledger.receive(GPU, (PluginDevice("gpu-0", "Degraded"),)),
            1,
            0,
            id="any other word is unhealthy",
        ),
        pytest.param(
            lambda ledger: ledger.receive(GPU, (PluginDevice("gpu-0", "Unhealthy"), PluginDevice("gpu-0"))),
            1,
            1,
            id="of duplicates the last counts",
        ),
        pytest.param(lambda ledger: ledger.receive(GPU, ()), 0, 0, id="an empty list"),
        pytest.param(lambda ledger: ledger.disconnect(GPU, "a.sock", 10.0), 4, 0, id="plugin gone: all unhealthy"),
        pytest.param(
            lambda ledger: (ledger.disconnect(GPU, "a.sock", 10.0), ledger.expire(10.0 + GRACE_S - 1)),
            4,
            0,
            id="within the grace: capacity stays",
        ),
        pytest.param(
            lambda ledger: (ledger.disconnect(GPU, "a.sock", 10.0), ledger.expire(10.0 + GRACE_S)),
            0,
            0,
            id="grace over: both 0 and the key kept",
        ),
        pytest.param(
            lambda ledger: ledger.disconnect(GPU, "other.sock", 10.0), 4, 4, id="a stranger's end changes nothing"
        ),
    ],
)
def test_counts(change: Change, capacity: int, allocatable: int) -> None:
    ledger = a_ledger()
    held = give(ledger, "a", 2)
    change(ledger)
    assert amounts(ledger) == (capacity, allocatable)
    grant = ledger.grant("a", "main", GPU)
    assert grant is not None  # whatever happens, the holder keeps its devices
    assert grant.devices == held


def test_a_plugin_back_within_the_grace_restores_everything() -> None:
    ledger = a_ledger()
    held = give(ledger, "a", 4)
    ledger.disconnect(GPU, "a.sock", 10.0)
    ledger.connect(GPU, "a.sock", PluginOptions())
    assert amounts(ledger) == (4, 0)  # until it has said what it has
    assert ledger.receive(GPU, devices(*held)) == frozenset()
    assert amounts(ledger) == (4, 4)
    assert ledger.expire(1e9) == ()


def test_a_dropped_resource_comes_back_with_its_plugin() -> None:
    ledger = a_ledger()
    ledger.disconnect(GPU, "a.sock", 0.0)
    assert ledger.expires_at() == GRACE_S
    assert ledger.expire(GRACE_S) == (GPU,)
    assert ledger.expire(GRACE_S) == ()
    assert not ledger.serves(GPU)
    ledger.connect(GPU, "b.sock", PluginOptions())
    ledger.receive(GPU, devices("gpu-0"))
    assert amounts(ledger) == (1, 1)


def test_row_14_two_instances_overlap_and_either_may_go() -> None:
    for first_to_go in ("a.sock", "b.sock"):
        ledger = a_ledger()
        ledger.connect(GPU, "b.sock", PluginOptions())
        endpoint = ledger.endpoint(GPU)
        assert endpoint is not None
        assert endpoint.key == "b.sock"  # the newest is asked
        assert amounts(ledger) == (4, 4)
        ledger.receive(GPU, devices(*(f"gpu-{n}" for n in range(4))))
        ledger.disconnect(GPU, first_to_go, 10.0)
        assert amounts(ledger) == (4, 4)
        left = ledger.endpoint(GPU)
        assert left is not None
        assert (left.key, left.stopped_at) == ("a.sock" if first_to_go == "b.sock" else "b.sock", None)
        ledger.disconnect(GPU, left.key, 20.0)
        assert amounts(ledger) == (4, 0)


def test_the_same_socket_twice_is_refused() -> None:
    ledger = a_ledger()
    with pytest.raises(Refusal, match=r"device plugin already connected: a\.sock"):
        ledger.connect(GPU, "a.sock", PluginOptions())
    assert len(ledger.instances(GPU)) == 1


# --- health texts ---------------------------------------------------------------------------------------------------------


def is_healthy(ledger: KubeletDeviceLedger, uid: str, resource: str = GPU) -> list[bool]:
    return [h.healthy for h in ledger.health(uid, "main") if h.resource == resource]


def test_row_30_a_holder_is_told_of_its_devices_health() -> None:
    ledger = a_ledger()
    give(ledger, "a", 2)
    give(ledger, "b", 1)
    assert ledger.receive(GPU, devices("gpu-1", "gpu-2", "gpu-3", bad=("gpu-0",))) == {"a"}
    assert is_healthy(ledger, "a") == [False, True]
    assert ledger.receive(GPU, devices("gpu-1", "gpu-2", "gpu-3", bad=("gpu-0",))) == frozenset()
    assert ledger.receive(GPU, devices("gpu-0", "gpu-1", "gpu-2", "gpu-3")) == {"a"}
    assert is_healthy(ledger, "a") == [True, True]


def test_a_device_that_left_the_list_is_called_healthy_and_nobody_is_told() -> None:
    ledger = a_ledger()
    give(ledger, "a")
    ledger.receive(GPU, devices("gpu-1", bad=("gpu-0",)))
    assert is_healthy(ledger, "a") == [False]
    assert ledger.receive(GPU, devices("gpu-1")) == frozenset()
    assert is_healthy(ledger, "a") == [True]
    assert ledger.receive(GPU, devices("gpu-0", "gpu-1")) == {"a"}  # back: told, whatever it was before


def test_the_end_of_the_plugin_changes_no_health_text() -> None:
    ledger = a_ledger()
    give(ledger, "a")
    ledger.receive(GPU, devices("gpu-1", bad=("gpu-0",)))
    give(ledger, "b")
    ledger.disconnect(GPU, "a.sock", 10.0)
    ledger.expire(1e9)
    assert (is_healthy(ledger, "a"), is_healthy(ledger, "b")) == ([False], [True])


def test_row_28_the_same_id_of_two_resources_is_two_devices() -> None:
    ledger = a_ledger()
    ledger.connect(MIG, "mig.sock", PluginOptions())
    ledger.receive(MIG, devices("gpu-0"))
    give(ledger, "a")
    give(ledger, "b", resource=MIG)
    assert ledger.receive(MIG, devices(bad=("gpu-0",))) == {"b"}
    assert (is_healthy(ledger, "a"), is_healthy(ledger, "b", MIG)) == ([True], [False])


# --- choosing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "count", "words"),
    [
        pytest.param(
            lambda ledger: None, 5, "unavailable for nvidia.com/gpu. Requested: 5, Available: 4", id="too many"
        ),
        pytest.param(
            lambda ledger: give(ledger, "a", 3),
            2,
            "unavailable for nvidia.com/gpu. Requested: 2, Available: 1",
            id="held",
        ),
        pytest.param(
            lambda ledger: ledger.disconnect(GPU, "a.sock", 1.0),
            1,
            "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu",
            id="plugin stopped",
        ),
        pytest.param(
            lambda ledger: ledger.receive(GPU, devices(bad=("gpu-0",))),
            1,
            "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu",
            id="all unhealthy",
        ),
        pytest.param(
            lambda ledger: (give(ledger, "a"), ledger.disconnect(GPU, "a.sock", 0.0), ledger.expire(GRACE_S)),
            1,
            "cannot allocate unregistered device nvidia.com/gpu",
            id="resource dropped while somebody holds one",
        ),
    ],
)
def test_refusals(change: Change, count: int, words: str) -> None:
    ledger = a_ledger()
    change(ledger)
    assert ledger.serves(GPU)
    assert words in refusal(ledger, count=count).message


def test_row_27_a_resource_nobody_serves_is_not_ours_to_refuse() -> None:
    assert not a_ledger().serves("example.com/none")


def test_held_and_unhealthy_devices_are_not_counted_twice() -> None:
    ledger = a_ledger()
    give(ledger, "a", 2)
    ledger.receive(GPU, devices("gpu-1", "gpu-2", "gpu-3", bad=("gpu-0",)))
    choice = ledger.choose(DeviceRequest("b", "main", GPU, 2))
    assert choice is not None
    assert choice.available == ("gpu-2", "gpu-3")


@pytest.mark.parametrize(
    ("preferred", "chosen"),
    [
        pytest.param(("gpu-3", "gpu-1"), ("gpu-3", "gpu-1"), id="as preferred"),
        pytest.param(("gpu-3",), ("gpu-3", "gpu-1"), id="too few: filled up"),
        pytest.param(("gpu-9", "gpu-0", "gpu-2"), ("gpu-2", "gpu-1"), id="unknown and held ones are passed over"),
        pytest.param(("gpu-3", "gpu-3"), ("gpu-3", "gpu-1"), id="the same twice"),
        pytest.param(("gpu-3", "gpu-2", "gpu-1"), ("gpu-3", "gpu-2"), id="too many"),
        pytest.param((), ("gpu-1", "gpu-2"), id="none"),
    ],
)
def test_preference_is_advice(preferred: tuple[str, ...], chosen: tuple[str, ...]) -> None:
    ledger = a_ledger(preferred=True)
    give(ledger, "a")
    choice = ledger.choose(DeviceRequest("b", "main", GPU, 2))
    assert choice is not None
    assert choice.asks
    assert ledger.settle(choice, preferred) == chosen


def test_a_plugin_that_offers_no_preference_is_not_asked() -> None:
    choice = a_ledger().choose(DeviceRequest("b", "main", GPU, 2))
    assert choice is not None
    assert not choice.asks


def test_set_aside_devices_are_taken_and_a_failed_allocate_gives_them_back() -> None:
    ledger = a_ledger()
    choice = ledger.choose(DeviceRequest("a", "main", GPU, 3))
    assert choice is not None
    ledger.settle(choice)
    assert "Available: 1" in refusal(ledger, count=2).message
    ledger.take_back(GPU)
    assert len(give(ledger, "b", 4)) == 4


def test_a_container_keeps_what_it_has_and_may_not_ask_for_more() -> None:
    ledger = a_ledger()
    held = give(ledger, "a", 2)
    assert give(ledger, "a", 2) == held
    assert refusal(ledger, "a", 3).reason == "RequestChanged"


def test_row_50_init_devices_are_reused_and_sidecars_keep_theirs() -> None:
    ledger = a_ledger(6)
    reusable: dict[str, tuple[str, ...]] = {}
    plan = [("init-1", 1, True), ("sidecar", 1, False), ("init-2", 2, True), ("main", 3, False), ("second", 1, False)]
    found: dict[str, tuple[str, ...]] = {}
    for name, count, passes_on in plan:
        request = DeviceRequest("a", name, GPU, count)
        choice = ledger.choose(request, reusable.get(GPU, ()))
        assert choice is not None
        found[name] = ledger.give(request, ledger.settle(choice), ANSWER).devices
        reusable = ledger.reuse("a", name, reusable, passes_on=passes_on)
    # init-1 passes gpu-0 on to the sidecar, which keeps it; init-2 gets two others, which main takes over with a third.
    assert found["init-1"] == found["sidecar"] == ("gpu-0",)
    assert found["init-2"] == ("gpu-1", "gpu-2")
    assert found["main"] == ("gpu-1", "gpu-2", "gpu-3")
    assert found["second"] == ("gpu-4",)


# --- ended pods -----------------------------------------------------------------------------------------------------------


def test_devices_of_ended_pods_are_freed_at_the_next_look_only() -> None:
    ledger = a_ledger()
    give(ledger, "a", 4)
    assert refusal(ledger).reason == "DevicesUnavailable"  # "a" has ended, and nobody has looked
    assert ledger.free({"b"})
    assert not ledger.free({"b"})
    assert give(ledger, "b", 4) == ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
    assert ledger.holders(GPU) == {f"gpu-{n}": ("b",) for n in range(4)}


# --- another life ---------------------------------------------------------------------------------------------------------


def restarted(ledger: KubeletDeviceLedger, now: float = 100.0) -> KubeletDeviceLedger:
    return KubeletDeviceLedger(ledger.memory(), now)


def test_after_a_restart_resources_are_at_zero_with_a_stopped_plugin() -> None:
    ledger = a_ledger()
    held = give(ledger, "a", 2)
    ledger = restarted(ledger)
    assert amounts(ledger) == (0, 0)
    endpoint = ledger.endpoint(GPU)
    assert endpoint is not None
    assert endpoint.stopped_at == 100.0
    assert ledger.expires_at() == 100.0 + GRACE_S
    assert "no healthy devices present" in refusal(ledger).message  # a new pod
    assert "no healthy devices present" in refusal(ledger, "a", 2).message  # node reboot: its containers are gone
    assert ledger.choose(DeviceRequest("a", "main", GPU, 2), running=True) is None  # kubelet restart: it runs
    ledger.connect(GPU, "new.sock", PluginOptions())
    ledger.receive(GPU, devices("gpu-0", "gpu-1", "gpu-2", "gpu-3"))
    assert give(ledger, "a", 2) == held
    assert give(ledger, "b", 2) == ("gpu-2", "gpu-3")
    assert amounts(ledger) == (4, 4)


def test_a_device_that_failed_meanwhile_fails_the_readmission() -> None:
    ledger = a_ledger()
    give(ledger, "a", 2)
    ledger = restarted(ledger)
    ledger.connect(GPU, "new.sock", PluginOptions())
    ledger.receive(GPU, devices("gpu-1", "gpu-2", bad=("gpu-0",)))
    assert "previously allocated devices are no longer healthy" in refusal(ledger, "a", 2).message
    assert ledger.choose(DeviceRequest("a", "main", GPU, 2), running=True) is None


def test_a_resource_that_was_dropped_is_not_remembered_but_its_grants_are() -> None:
    ledger = a_ledger()
    give(ledger, "a", 2)
    ledger.disconnect(GPU, "a.sock", 0.0)
    ledger.expire(GRACE_S)
    ledger = restarted(ledger)
    assert ledger.counts().capacity == {}
    assert ledger.serves(GPU)
    assert len(ledger.grants("a")) == 1


def test_devices_are_remembered_by_numa_node() -> None:
    ledger = KubeletDeviceLedger()
    ledger.connect(GPU, "a", PluginOptions())
    ledger.receive(GPU, (PluginDevice("x", numa=(1,)), PluginDevice("y"), PluginDevice("z", numa=(0, 1))))
    give(ledger, "a", 3)
    (grant,) = ledger.memory().grants
    assert grant.numa == {1: ("x", "z"), NO_NUMA: ("y",), 0: ("z",)}


def test_nothing_is_ever_given_to_two_live_pods() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        ledger = a_ledger(8, preferred=True)
        live: set[str] = set()
        for number in itertools.count():
            if number > 200:
                break
            move = chance.random()
            if move < 0.5:
                uid = f"pod-{number}"
                try:
                    live.add(uid)
                    give(ledger, uid, chance.randint(1, 4))
                except Refusal:
                    live.discard(uid)
            elif move < 0.7 and live:
                live.discard(chance.choice(sorted(live)))
            elif move < 0.8:
                ledger.free(live)
            elif move < 0.9:
                bad = tuple(f"gpu-{n}" for n in range(8) if chance.random() < 0.2)
                ledger.receive(GPU, devices(*(f"gpu-{n}" for n in range(8) if f"gpu-{n}" not in bad), bad=bad))
            else:
                ledger = restarted(ledger)
                ledger.connect(GPU, f"sock-{number}", PluginOptions(preferred_allocation_available=True))
                ledger.receive(GPU, devices(*(f"gpu-{n}" for n in range(8))))
            holders = ledger.holders(GPU)
            for device, uids in holders.items():
                assert len(uids) == 1, f"seed {seed}, move {number}: {device} has {uids}"
            capacity, allocatable = amounts(ledger)
            assert 0 <= allocatable <= capacity <= 8, f"seed {seed}, move {number}"


def test_memory_is_a_value() -> None:
    grant = KubeletDeviceGrant("a", "main", GPU, ("gpu-0",), ANSWER, {NO_NUMA: ("gpu-0",)})
    memory = LedgerMemory((grant,), {GPU: ("gpu-0",)})
    assert KubeletDeviceLedger(memory).memory().grants == (grant,)
