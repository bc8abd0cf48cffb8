"""Label, annotation and resource names that cross process borders. Written once so that no two layers spell one twice."""

from __future__ import annotations

GROUP = "remuda.dev"
VERSION = "v1alpha1"
SCHEDULER = "remuda"

LABEL_GANG = "remuda.dev/gang"  # the gang a pod belongs to: the TrainingJob's name
LABEL_ROLE = "remuda.dev/role"
LABEL_INDEX = "remuda.dev/pod-index"  # n-th pod ever made for the role; never reused, says nothing about rank
LABEL_NODE = "kubernetes.io/hostname"

ANNOTATION_DEVICES = "remuda.dev/devices"  # chosen device ids, comma separated; copied from the Binding
ANNOTATION_GANG_SIZE = "remuda.dev/gang-size"  # members that must be placed together, spares not counted
ANNOTATION_TOPOLOGY_REQUIRED = "remuda.dev/topology-required"  # node label whose value all pods of the gang share
ANNOTATION_DOMAIN = "remuda.dev/domain"  # that label's value when the gang already sits somewhere
ANNOTATION_SPARE = "remuda.dev/spare"  # "true": parked, placed after the members and never instead of them
ANNOTATION_TOLERATE_DEGRADED = "remuda.dev/tolerate-degraded"  # "true": Degraded devices will do, after Healthy ones
ANNOTATION_SEGMENT = "remuda.dev/segment"  # of a gang in segments: the number of the one a pod was made for
ANNOTATION_SEGMENT_SIZE = "remuda.dev/segment-size"  # pods of that segment, which are placed together
ANNOTATION_OPTIONAL = "remuda.dev/optional"  # "true": its gang may be placed without it when there is no room for all
ANNOTATION_PREFER_NODE = "remuda.dev/prefer-node"  # where the pod it replaces sat, when that place is well
ANNOTATION_LOST_NODE = "remuda.dev/lost-node"  # where the pod it replaces was lost: the rest is kept for it a while
ANNOTATION_HAS_RUN = "remuda.dev/has-run"  # "true": of a gang that has trained already: freed room is its own first
ANNOTATION_MIN_DRIVER = "remuda.dev/min-driver"  # "550.54": the driver that the pod's node must have at least
ANNOTATION_PREEMPTIBLE = "remuda.dev/preemptible"  # "true": may be ended whenever its devices are needed elsewhere
ANNOTATION_TEMPLATE = "remuda.dev/template"  # digest of the template that a gang's pod was made from
ANNOTATION_LAUNCH = "remuda.dev/launch"  # "true": run the container's command under remuda-launch
IN_CONTAINER = "container"  # its value on a kubelet: the container's own command is the launcher

RESOURCE_GPU = "nvidia.com/gpu"

# On a Node, while a remedy needs it. One incident has a node at a time; what another actor did to it is left alone.
ANNOTATION_REMEDY_BY = "remuda.dev/remedy-by"  # the incident whose remedy has the node
ANNOTATION_CORDONED_BY = (
    "remuda.dev/cordoned-by"  # the incident that cordoned it; a cordon without it is somebody else's
)
# "<incident>/<RFC 3339>": the node is to be empty. Until then gangs may write a checkpoint and move by themselves; after it their
# pods are evicted like all others. See core.remedies.
ANNOTATION_DRAIN_REQUESTED = "remuda.dev/drain-requested"

LABEL_APP = "app.kubernetes.io/name"  # of our own pods: which of them it is
MANAGER_APP, AGENT_APP = "remuda-manager", "remuda-agent"  # also the names of their service accounts
LABEL_AGENT = "remuda.dev/agent"  # of a node: "true": an agent runs there (deploy/agent.yaml)
ANNOTATION_WRITTEN_LABELS = "remuda.dev/written-labels"  # of a node: the labels that its agent wrote, comma separated
LABEL_RESERVATION = "remuda.dev/reservation"  # of a node: whose it is
LABEL_CLIQUE = "nvidia.com/gpu.clique"  # of a node: its multi-node NVLink domain, "<cluster uuid>.<clique>"

# On pods of workloads that are not ours (say in a Deployment's or a Job's template). See core.foreign.
ANNOTATION_DEVICE_FAILED = "remuda.dev/device-failed"  # ignore | delete | restart | gang | fail
ANNOTATION_RETRY_ADMISSION = "remuda.dev/retry-admission"  # "true": a pod that its node refuses may be tried again
ANNOTATION_RETRY_OF = "remuda.dev/retry-of"  # the pod that it is made again for
ANNOTATION_REJECTIONS = "remuda.dev/rejections"  # of a refused pod: how many of its owner's in a row, this one included
ANNOTATION_FORGIVEN = "remuda.dev/forgiven-rejections"  # of a Job: uids of refused pods its backoffLimit was raised for
ANNOTATION_FAILED_BECAUSE = "remuda.dev/failed-because"  # of a Job that was failed with its device: why
ANNOTATION_GIVEN_UP = "remuda.dev/given-up"  # of a silent node: when an operator said that it is gone for good
ANNOTATION_REPLACE_UNREACHABLE = "remuda.dev/replace-unreachable-after"  # seconds; see core.foreign
