"""Projections of Deployment and ReplicaSet. Pod templates stay wire dicts: whatever they say goes to the pods word for word."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from remuda.api.meta import Condition, JsonObject, KObject, Resource

REVISION = "deployment.kubernetes.io/revision"
TEMPLATE_HASH = "pod-template-hash"
REPLICA_FAILURE = "ReplicaFailure"  # the condition of a set whose pods are refused


class ReplicaSetSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    replicas: int = 1
    min_ready_seconds: int = 0
    selector: JsonObject = {}
    template: JsonObject = {}


class ReplicaSetStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int = 0
    observed_generation: int = 0
    conditions: list[Condition] = []


class ReplicaSet(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "apps", "v1", "ReplicaSet", "replicasets", subresources=("status", "scale"), short=("rs",)
    )

    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class RollingUpdate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    max_surge: int | str = "25%"
    max_unavailable: int | str = "25%"


class DeploymentStrategy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate = RollingUpdate()


class DeploymentSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    replicas: int = 1
    min_ready_seconds: int = 0
    selector: JsonObject = {}
    template: JsonObject = {}
    strategy: DeploymentStrategy = DeploymentStrategy()
    revision_history_limit: int = 10
    progress_deadline_seconds: int = 600
    paused: bool = False


class DeploymentStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int = 0
    observed_generation: int = 0
    collision_count: int = 0
    conditions: list[Condition] = []


class Deployment(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "apps", "v1", "Deployment", "deployments", subresources=("status", "scale"), short=("deploy",)
    )

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()
