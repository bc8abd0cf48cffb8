"""Projections of PodDisruptionBudget, ResourceQuota, Service and EndpointSlice: what their small controllers read."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from remuda.api.meta import Condition, JsonObject, KObject, Resource


class DisruptionSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: JsonObject | None = None


class DisruptionStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    observed_generation: int = 0
    disrupted_pods: dict[str, Any] = {}
    conditions: list[Condition] = []


class PodDisruptionBudget(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", subresources=("status",), short=("pdb",)
    )

    spec: DisruptionSpec = DisruptionSpec()
    status: DisruptionStatus = DisruptionStatus()


class ResourceQuota(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "", "v1", "ResourceQuota", "resourcequotas", subresources=("status",), short=("quota",)
    )

    spec: JsonObject = {}
    status: JsonObject = {}


class ServicePort(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    port: int
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str | None = None


class ServiceSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    type: str = "ClusterIP"
    selector: dict[str, str] = {}
    ports: list[ServicePort] = []
    publish_not_ready_addresses: bool = False


class Service(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "Service", "services", subresources=("status",), short=("svc",))

    spec: ServiceSpec = ServiceSpec()


class EndpointSlice(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")

    address_type: str = "IPv4"
    endpoints: list[JsonObject] = []
    ports: list[JsonObject] = []
