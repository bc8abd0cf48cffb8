"""Texts that are times and quantities, and numbers that fit their type."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.embedded.apiserver.patching import builtin_kind_schema, find_patch_schema_faults


def found(api_version: str, kind: str, body: Any) -> list[str]:
    schema = builtin_kind_schema(api_version, kind)
    assert schema is not None
    return [f"{fault.path}: {fault.what}" for fault in find_patch_schema_faults(body, schema.root)]


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00Z", "2026-01-01T23:59:59.5+01:00", None])
def test_times(time: Any) -> None:
    assert found("v1", "ConfigMap", {"metadata": {"creationTimestamp": time}}) == []


@pytest.mark.parametrize("time", ["", "soon", "2026-01-01", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", 5, "٢"])
def test_what_is_no_time_is_named(time: Any) -> None:
    (said,) = found("v1", "ConfigMap", {"metadata": {"creationTimestamp": time}})
    assert said.startswith(".metadata.creationTimestamp: must be a time such as 2026-")


def test_a_lease_wants_six_digits() -> None:
    assert found("coordination.k8s.io/v1", "Lease", {"spec": {"renewTime": "2026-01-01T00:00:00.000001Z"}}) == []
    for time in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123Z", "2026-01-01T00:00:00.1234567Z"):
        assert found("coordination.k8s.io/v1", "Lease", {"spec": {"renewTime": time}})


@pytest.mark.parametrize(("amount", "is_one"), [("500m", True), (2, True), (1.5, True), ("lots", False), (True, False)])
def test_quantities(amount: Any, is_one: bool) -> None:
    assert (found("v1", "ResourceQuota", {"spec": {"hard": {"pods": amount}}}) == []) is is_one


@pytest.mark.parametrize(
    ("number", "fits"), [(2**31 - 1, True), (2**31, False), (-(2**31), True), (-(2**31) - 1, False)]
)
def test_numbers_fit_their_type(number: int, fits: bool) -> None:
    assert (found("apps/v1", "Deployment", {"spec": {"replicas": number}}) == []) is fits
