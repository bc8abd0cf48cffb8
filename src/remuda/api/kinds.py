"""The kinds this build has types for."""

from __future__ import annotations

from remuda.api.devices import NodeDevices
from remuda.api.drills import Drill
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import Lease, Namespace, Node, Pod
from remuda.api.meta import KObject
from remuda.api.remedies import RemedyPolicy
from remuda.api.rollouts import NodeRollout
from remuda.api.training import TrainingJob

OWN_KINDS: tuple[type[KObject], ...] = (TrainingJob, NodeDevices, Drill, Incident, RemedyPolicy, NodeRollout)
KINDS: tuple[type[KObject], ...] = (Namespace, Node, Pod, Lease, *OWN_KINDS)
