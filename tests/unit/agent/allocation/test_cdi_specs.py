"""CDI specs as a runtime reads them: there, whole, and only those of devices that are."""

from pathlib import Path

import msgspec
import pytest

from remuda.agent.allocation.cdi_specs import CdiSpecs, cdi_name, cdi_spec
from remuda.embedded.node.devices.cdi import runtime_known_cdi_devices, unresolvable_cdi_devices

SLICE = "gpu-1-3g.40gb-4"


def specs(directory: Path) -> CdiSpecs:
    return CdiSpecs(str(directory / "cdi"), lambda device: [f"/dev/{device}"] if device == "gpu-0" else [])


def test_what_is_made_can_be_resolved(tmp_path: Path) -> None:
    made = specs(tmp_path)
    assert made.settle(["gpu-0", SLICE]) == ["gpu-0", SLICE]
    where = (str(tmp_path / "cdi"),)
    assert runtime_known_cdi_devices(where) == {"remuda.dev/gpu=gpu-0", f"remuda.dev/gpu={SLICE}"}
    assert unresolvable_cdi_devices([cdi_name("gpu-0"), cdi_name("gpu-3")], where) == ["remuda.dev/gpu=gpu-3"]


def test_only_what_is_missing_or_wrong_is_written(tmp_path: Path) -> None:
    made = specs(tmp_path)
    made.settle(["gpu-0", "gpu-1", "gpu-2"])
    assert made.settle(["gpu-0", "gpu-1", "gpu-2"]) == []
    (tmp_path / "cdi" / "remuda.dev-gpu_gpu-1.json").write_text("{")
    (tmp_path / "cdi" / "remuda.dev-gpu_gpu-2.json").unlink()
    assert made.ensure(["gpu-0", "gpu-1", "gpu-2"]) == ["gpu-1", "gpu-2"]


def test_specs_of_slices_that_are_gone_go_and_others_stay(tmp_path: Path) -> None:
    made = specs(tmp_path)
    made.settle(["gpu-0", SLICE])
    other = tmp_path / "cdi" / "vendor.json"
    other.write_text('{"kind": "vendor.com/nic", "devices": [{"name": "nic0"}]}')
    made.settle(["gpu-0", "gpu-1"])
    assert runtime_known_cdi_devices((str(tmp_path / "cdi"),)) == {
        "remuda.dev/gpu=gpu-0",
        "remuda.dev/gpu=gpu-1",
        "vendor.com/nic=nic0",
    }


def test_no_spec_is_without_edits() -> None:
    [device] = cdi_spec(SLICE, [])["devices"]
    assert device == {"name": SLICE, "containerEdits": {"env": [f"REMUDA_CDI_GPU_1_3G_40GB_4={SLICE}"]}}
    [device] = cdi_spec("gpu-0", ["/dev/nvidia0"])["devices"]
    assert [node["path"] for node in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"kind": 1, "devices": 3}', b"\xff", b'{"devices": [{}]}'])
def test_a_file_that_is_no_spec_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    (tmp_path / "b.json").write_bytes(msgspec.json.encode(cdi_spec("gpu-0", [])))
    assert runtime_known_cdi_devices((str(tmp_path), str(tmp_path / "nowhere"))) == {"remuda.dev/gpu=gpu-0"}
