"""Ids stay with their devices."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from remuda.agent.hardware.device_ids import (
    DeviceIdMap,
    SeenDevice,
    assign_device_ids,
    kernel_boot_id,
    load_device_ids,
    save_device_ids,
)


def a_device(serial: int, slot: int | None = None) -> SeenDevice:
    slot = serial if slot is None else slot
    return SeenDevice(f"GPU-{serial}", f"0000:{slot:02x}:00.0", "H100", 80)


EIGHT = assign_device_ids(DeviceIdMap(), [a_device(n) for n in range(8)]).ids


def uuids(ids: DeviceIdMap) -> dict[int, str]:
    return {n: seen.uuid for n, seen in ids.devices.items()}


def test_first_look_numbers_by_place() -> None:
    result = assign_device_ids(DeviceIdMap(), [a_device(7, slot=3), a_device(9, slot=1)])
    assert uuids(result.ids) == {0: "GPU-9", 1: "GPU-7"}
    assert result.missing == ()


def test_a_missing_device_shifts_nobody_and_keeps_its_id() -> None:
    gone = assign_device_ids(EIGHT, [a_device(n) for n in range(8) if n != 2])
    assert uuids(gone.ids) == uuids(EIGHT)
    assert gone.missing == (2,)
    back = assign_device_ids(gone.ids, [a_device(n) for n in range(8)])
    assert back.missing == ()
    assert back.replaced == frozenset()


def test_a_device_in_the_place_of_a_missing_one_replaces_it() -> None:
    result = assign_device_ids(EIGHT, [*(a_device(n) for n in range(8) if n != 2), a_device(99, slot=2)])
    assert uuids(result.ids) == {**uuids(EIGHT), 2: "GPU-99"}
    assert result.replaced == {2}
    assert 2 in result.present


def test_of_two_missing_the_one_in_whose_place_it_is_was_replaced() -> None:
    result = assign_device_ids(EIGHT, [*(a_device(n) for n in range(8) if n not in (2, 5)), a_device(99, slot=5)])
    assert uuids(result.ids) == {**uuids(EIGHT), 5: "GPU-99"}
    assert result.missing == (2,)


def test_a_replacement_in_a_moved_place_takes_the_missing_id() -> None:
    result = assign_device_ids(EIGHT, [*(a_device(n) for n in range(8) if n != 2), a_device(99, slot=40)])
    assert uuids(result.ids)[2] == "GPU-99"


def test_an_added_device_takes_a_new_number() -> None:
    result = assign_device_ids(EIGHT, [*(a_device(n) for n in range(7)), a_device(98, slot=40), a_device(99, slot=41)])
    assert uuids(result.ids) == {**uuids(EIGHT), 8: "GPU-98", 9: "GPU-99"}
    assert result.missing == (7,)


def test_devices_that_moved_keep_their_ids() -> None:
    moved = assign_device_ids(EIGHT, [a_device(n, slot=100 - n) for n in range(8)])
    assert uuids(moved.ids) == uuids(EIGHT)
    assert moved.ids.devices[0].pci == "0000:64:00.0"


def test_a_driver_that_comes_and_goes_replaces_nothing() -> None:
    bare = [SeenDevice("", f"0000:{n:02x}:00.0", "10de-2330") for n in range(8)]
    without = assign_device_ids(EIGHT, bare)
    assert without.ids == EIGHT
    assert (without.replaced, without.missing) == (frozenset(), ())
    first = assign_device_ids(DeviceIdMap(), bare)
    later = assign_device_ids(first.ids, [a_device(n) for n in range(8)])
    assert later.ids == EIGHT
    assert later.replaced == frozenset()


@given(st.lists(st.sets(st.integers(0, 20), max_size=12), max_size=8))
def test_over_any_history_a_device_seen_before_keeps_its_id_while_it_is_remembered(
    looks: list[set[int]],
) -> None:
    ids = DeviceIdMap()
    for look in looks:
        before = {seen.uuid: n for n, seen in ids.devices.items()}
        result = assign_device_ids(ids, [a_device(n) for n in look])
        numbers = {seen.uuid: n for n, seen in result.ids.devices.items()}
        assert len(numbers) == len(result.ids.devices), "one id, one device"
        assert set(ids.devices) <= set(result.ids.devices), "an id is never taken away"
        for n in look:
            assert numbers[f"GPU-{n}"] == before.get(f"GPU-{n}", numbers[f"GPU-{n}"])
        assert {result.ids.devices[n].uuid for n in result.present} == {f"GPU-{n}" for n in look}
        ids = result.ids


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "devices.json"
    assert load_device_ids(path) == DeviceIdMap()
    save_device_ids(path, EIGHT)
    assert load_device_ids(path) == EIGHT
    path.write_bytes(b'{"devices": {"0": ')
    assert load_device_ids(path) == DeviceIdMap()
    assert not path.exists()
    assert path.with_suffix(".unreadable").exists()
    assert load_device_ids(None) == DeviceIdMap()


def test_boot_id(tmp_path: Path) -> None:
    assert kernel_boot_id(tmp_path / "none") == ""
    (tmp_path / "boot_id").write_text("abc\n", encoding="ascii")
    assert kernel_boot_id(tmp_path / "boot_id") == "abc"
