"""The DaemonSet that removes the agents' files: on every node that had one, with the agent's own image. Pure.

Each pod runs `remuda agent --uninstall` once, as an init container, and then waits: a DaemonSet's pods never end by themselves.
All of them ready means that every node is clean. It asks the API for nothing, so it works whatever has been deleted before.
"""

from __future__ import annotations

from typing import Any

from remuda.api.meta import JsonObject
from remuda.core.uninstall.installed_objects import APP, CLEAN

HOST = "/host"
_TAKEN_OVER = ("nodeSelector", "tolerations", "imagePullSecrets", "affinity", "priorityClassName")


def cleaning_daemon_set(agents: JsonObject, *, jobs_stay: bool) -> JsonObject:
    """`agents`: the spec of the agents' DaemonSet. `jobs_stay`: pods that run on need the launcher's directory."""
    pod = agents["template"]["spec"]
    agent = pod["containers"][0]
    above, _, root = _argument(agent, "--root", "/var/lib/remuda").rstrip("/").rpartition("/")
    kubelet = _argument(agent, "--kubelet-dir", "/var/lib/kubelet").rstrip("/")
    cdi = _argument(agent, "--cdi-dir", "")
    places = {
        "state": (above or "/", f"{HOST}/state"),
        "device-plugins": (f"{kubelet}/device-plugins", f"{HOST}/kubelet/device-plugins"),
        **({"cdi": (cdi, f"{HOST}/cdi")} if cdi else {}),
    }
    args = ["agent", "--uninstall", f"--root={HOST}/state/{root}", f"--kubelet-dir={HOST}/kubelet"]
    args += [f"--cdi-dir={HOST}/cdi"] if cdi else []
    args += ["--keep-launcher"] if jobs_stay else []
    image = {key: agent[key] for key in ("image", "imagePullPolicy") if key in agent}
    spec: JsonObject = {
        **{key: pod[key] for key in _TAKEN_OVER if key in pod},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "initContainers": [
            {
                "name": "clean",
                **image,
                "args": args,
                "securityContext": {"privileged": True},
                "volumeMounts": [{"name": name, "mountPath": path} for name, (_, path) in places.items()],
            }
        ],
        "containers": [
            {"name": "done", **image, "command": ["python3", "-c", "import signal; signal.pause()"]},
        ],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
            for name, (path, _) in places.items()
        ],
    }
    labels = {APP: CLEAN}
    return {
        "selector": {"matchLabels": labels},
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }


def _argument(container: JsonObject, name: str, default: str) -> str:
    """`--name=value` or `--name value`, the last one, as the program reads it."""
    words: list[Any] = [*(container.get("command") or ()), *(container.get("args") or ())]
    found = default
    for number, word in enumerate(map(str, words)):
        if word.startswith(f"{name}="):
            found = word.partition("=")[2]
        elif word == name and number + 1 < len(words):
            found = str(words[number + 1])
    return found
