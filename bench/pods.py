"""Pods as a busy GPU cluster has them, as wire JSON: about 5.8 KB each, a third of it managedFields nobody here reads."""

from __future__ import annotations

import json
import uuid
from random import Random
from typing import Any


def a_pod(number: int, random: Random) -> dict[str, Any]:
    job, rank = divmod(number, 64)
    name = f"pretrain-{job:05d}-worker-{rank}"
    uid = str(uuid.UUID(int=random.getrandbits(128), version=4))
    node = f"gpu-{random.randrange(5000):05d}"
    at = f"2026-10-{1 + number % 28:02d}T{number % 24:02d}:{number % 60:02d}:{rank % 60:02d}Z"
    labels = {
        "app.kubernetes.io/name": "pretrain",
        "app.kubernetes.io/managed-by": "remuda",
        "remuda.dev/gang": f"pretrain-{job:05d}",
        "remuda.dev/role": "worker",
        "remuda.dev/rank": str(rank),
        "team": f"team-{job % 40}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": f"team-{job % 40}",
            "uid": uid,
            "resourceVersion": str(10_000_000 + number * 7),
            "generation": 1,
            "creationTimestamp": at,
            "labels": labels,
            "annotations": {
                "remuda.dev/devices": ",".join(f"GPU-{random.getrandbits(64):016x}" for _ in range(8)),
                "remuda.dev/topology": f"rack-{random.randrange(160)}/leaf-{random.randrange(40)}",
                "prometheus.io/scrape": "true",
            },
            "ownerReferences": [
                {
                    "apiVersion": "remuda.dev/v1alpha1",
                    "kind": "TrainingJob",
                    "name": f"pretrain-{job:05d}",
                    "uid": str(uuid.UUID(int=job + 1)),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": _managed(labels, at),
        },
        "spec": _spec(name, node, rank),
        "status": _status(at, random),
    }


def _managed(labels: dict[str, str], at: str) -> list[dict[str, Any]]:
    container: dict[str, Any] = {
        ".": {},
        **{
            f"f:{field}": {}
            for field in "command env image imagePullPolicy name terminationMessagePath terminationMessagePolicy".split()
        },
        "f:resources": {
            ".": {},
            "f:limits": {".": {}, "f:nvidia.com/gpu": {}, "f:memory": {}},
            "f:requests": {".": {}, "f:cpu": {}, "f:memory": {}, "f:nvidia.com/gpu": {}},
        },
        "f:volumeMounts": {".": {}, 'k:{"mountPath":"/data"}': {".": {}, "f:mountPath": {}, "f:name": {}}},
    }
    made: dict[str, Any] = {
        "f:metadata": {
            "f:annotations": {".": {}, "f:prometheus.io/scrape": {}},
            "f:labels": {".": {}, **{f"f:{label}": {} for label in labels}},
            "f:ownerReferences": {".": {}, f'k:{{"uid":"{at}"}}': {}},
        },
        "f:spec": {
            "f:containers": {'k:{"name":"main"}': container},
            **{
                f"f:{field}": {}
                for field in "dnsPolicy enableServiceLinks restartPolicy schedulerName securityContext".split()
            },
        },
    }
    ran: dict[str, Any] = {
        "f:status": {
            "f:conditions": {
                ".": {},
                **{
                    f'k:{{"type":"{kind}"}}': {".": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}}
                    for kind in ("ContainersReady", "Initialized", "Ready")
                },
            },
            **{f"f:{field}": {} for field in "containerStatuses hostIP phase podIP podIPs startTime".split()},
        }
    }
    placed: dict[str, Any] = {
        "f:metadata": {"f:annotations": {"f:remuda.dev/devices": {}, "f:remuda.dev/topology": {}}}
    }
    writers = (("remuda-manager", "", made), ("remuda-scheduler", "", placed), ("kubelet", "status", ran))
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": at,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
            **({"subresource": part} if part else {}),
        }
        for manager, part, fields in writers
    ]


def _spec(name: str, node: str, rank: int) -> dict[str, Any]:
    amounts = {"cpu": "96", "memory": "1800Gi", "nvidia.com/gpu": "8"}
    return {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "datasets"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Gi"}},
            {
                "name": "kube-api-access-x7k2p",
                "projected": {
                    "sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}],
                    "defaultMode": 420,
                },
            },
        ],
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/research/pretrain:2026.10.3-cu128",
                "command": ["remuda-launch", "--", "python", "-m", "pretrain.main", "--config", "/etc/pretrain.yaml"],
                "env": [
                    {"name": "NCCL_DEBUG", "value": "WARN"},
                    {"name": "NCCL_IB_HCA", "value": "mlx5"},
                    {"name": "OMP_NUM_THREADS", "value": "8"},
                    {"name": "RANK_HINT", "value": str(rank)},
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
                ],
                "resources": {"limits": amounts, "requests": amounts},
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {
                        "name": "kube-api-access-x7k2p",
                        "readOnly": True,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                    },
                ],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "nodeName": node,
        "hostname": name,
        "securityContext": {},
        "schedulerName": "remuda",
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            *(
                {
                    "key": f"node.kubernetes.io/{trouble}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for trouble in ("not-ready", "unreachable")
            ),
        ],
        "priorityClassName": "training",
        "priority": 1000,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _status(at: str, random: Random) -> dict[str, Any]:
    ip = f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(256)}"
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": at}
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "hostIP": ip,
        "hostIPs": [{"ip": ip}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": at,
        "containerStatuses": [
            {
                "name": "main",
                "state": {"running": {"startedAt": at}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": "registry.example.com/research/pretrain:2026.10.3-cu128",
                "imageID": f"registry.example.com/research/pretrain@sha256:{random.getrandbits(256):064x}",
                "containerID": f"containerd://{random.getrandbits(256):064x}",
                "started": True,
                "allocatedResources": {"cpu": "96", "memory": "1800Gi", "nvidia.com/gpu": "8"},
            }
        ],
        "qosClass": "Guaranteed",
    }


def pod_bytes(number: int, random: Random) -> bytes:
    return json.dumps(a_pod(number, random), separators=(",", ":")).encode()
