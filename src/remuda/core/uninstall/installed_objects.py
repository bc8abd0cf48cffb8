"""What deploy/ installs, and what the parts make beside it: by name, so that nothing of anybody else is ever deleted.

A test holds the table to the manifests.
"""

from __future__ import annotations

import msgspec

from remuda.api.kinds import OWN_KINDS
from remuda.api.kubernetes.apps_v1 import Deployment
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, ConfigMap, Lease, Namespace
from remuda.api.meta import Resource
from remuda.api.names import AGENT_APP, LABEL_APP, MANAGER_APP

SYSTEM = "remuda-system"
MANAGER, AGENT, CLEAN = MANAGER_APP, AGENT_APP, "remuda-clean"
APP = LABEL_APP

_RBAC, _POLICIES = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
DAEMON_SET = Resource("apps", "v1", "DaemonSet", "daemonsets")
ACCOUNT = Resource("", "v1", "ServiceAccount", "serviceaccounts")
ROLE, BINDING = (Resource(_RBAC, "v1", kind, f"{kind.lower()}s") for kind in ("Role", "RoleBinding"))
CLUSTER_ROLE, CLUSTER_BINDING = (
    Resource(_RBAC, "v1", kind, f"{kind.lower()}s", namespaced=False) for kind in ("ClusterRole", "ClusterRoleBinding")
)
POLICY, POLICY_BINDING = (
    Resource(_POLICIES, "v1", kind, plural, namespaced=False)
    for kind, plural in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    )
)
CRD = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)


class InstalledObject(msgspec.Struct, frozen=True):
    resource: Resource
    name: str
    namespace: str = ""


def workloads_to_uninstall(system: str) -> tuple[InstalledObject, InstalledObject, InstalledObject]:
    """Manager, agents, and what cleans nodes."""
    return (
        InstalledObject(Deployment.resource, MANAGER, system),
        InstalledObject(DAEMON_SET, AGENT, system),
        InstalledObject(DAEMON_SET, CLEAN, system),
    )


def installed_objects(system: str) -> tuple[InstalledObject, ...]:
    """The rest, in the order in which it goes: first what only serves the two, their rights, the namespace, the kinds last."""
    roles = ("remuda-view", "remuda-edit", "remuda-cluster-view", "remuda-operator", MANAGER, AGENT)
    return (
        InstalledObject(Lease.resource, MANAGER, system),
        InstalledObject(ConfigMap.resource, "remuda-link", system),
        *(InstalledObject(kind, MANAGER, system) for kind in (BINDING, ROLE)),
        *(InstalledObject(kind, AGENT, system) for kind in (BINDING, ROLE)),
        *(InstalledObject(kind, AGENT, NODE_LEASE_NAMESPACE) for kind in (BINDING, ROLE)),
        *(InstalledObject(CLUSTER_BINDING, name) for name in (MANAGER, AGENT)),
        *(InstalledObject(CLUSTER_ROLE, name) for name in roles),
        *(
            InstalledObject(kind, name)
            for name in ("remuda-manager-pods", "remuda-checkpoints", "remuda-agent-own-node")
            for kind in (POLICY_BINDING, POLICY)
        ),
        *(InstalledObject(ACCOUNT, name, system) for name in (MANAGER, AGENT)),
        *((InstalledObject(Namespace.resource, SYSTEM),) if system == SYSTEM else ()),
        *(InstalledObject(CRD, kind.resource.full_name) for kind in OWN_KINDS),
    )
