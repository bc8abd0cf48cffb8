"""The kinds this build has types for."""

from __future__ import annotations

from remuda.api.core_v1 import Lease, Namespace, Node, Pod
from remuda.api.devices import NodeDevices
from remuda.api.drills import Drill
from remuda.api.meta import KObject
from remuda.api.training import TrainingJob

KINDS: tuple[type[KObject], ...] = (Namespace, Node, Pod, Lease, TrainingJob, NodeDevices, Drill)
