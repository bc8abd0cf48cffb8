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
ANNOTATION_LAUNCH = "remuda.dev/launch"  # "true": run the container's command under remuda-launch

RESOURCE_GPU = "nvidia.com/gpu"
