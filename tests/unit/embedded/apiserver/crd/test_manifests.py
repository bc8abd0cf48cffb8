"""The definitions of our kinds: what is committed is what the types say, and it is a good definition."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import yaml

from remuda.api.codec import to_wire
from remuda.api.crds import CRDS
from remuda.api.devices import NodeDevices, Observed, ObservedDevice
from remuda.api.drills import Drill, DrillKind, DrillSpec
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.api.training import Role, TrainingJob, TrainingJobSpec
from remuda.embedded.apiserver.crd.definition import custom_versions
from remuda.embedded.apiserver.crd.lifecycle import accept_crd
from remuda.embedded.apiserver.crd.structural_schema import crd_schema_misfits, prune_by_schema
from remuda.embedded.apiserver.kinds_served import KindRegistry

ROOT = Path(__file__).parents[5]


def test_the_committed_manifests_are_up_to_date() -> None:
    rendered = runpy.run_path(str(ROOT / "tools" / "render-crds"))["render"]()
    for name, text in rendered.items():
        assert (ROOT / "deploy" / "crds" / name).read_text(encoding="utf-8") == text, "run tools/render-crds"
    assert {p.name for p in (ROOT / "deploy" / "crds").glob("*.yaml")} == set(rendered)


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_they_are_accepted(crd: JsonObject) -> None:
    accept_crd(crd, None, KindRegistry(), 0.0)
    assert yaml.safe_load(yaml.safe_dump(crd)) == crd


@pytest.mark.parametrize(
    "obj",
    [
        TrainingJob(metadata=ObjectMeta(name="j"), spec=TrainingJobSpec(roles=[Role(replicas=2, gpus=8)], spares=1)),
        NodeDevices(metadata=ObjectMeta(name="n"), observed=Observed("m", [ObservedDevice("gpu-0", "H100")])),
        Drill(metadata=ObjectMeta(name="d"), spec=DrillSpec(DrillKind.NODE_LOST, node="n")),
    ],
)
def test_what_our_code_writes_fits_them(obj: TrainingJob | NodeDevices | Drill) -> None:
    crd = next(c for c in CRDS if c["spec"]["names"]["kind"] == obj.resource.kind)
    schema = next(custom_versions(crd)).schema
    unknown: list[str] = []
    body = to_wire(obj)
    assert prune_by_schema(body, schema, unknown) == body
    assert unknown == []
    assert crd_schema_misfits(body, schema) == []
