"""What a container's process gets: argv and environment. Pure.

Later wins: the machine's base environment, what the node says of the pod, the container's own `env`, which pod it is and the
agent's allocation (nobody may lie about pods and devices). `$(NAME)` in command, args and env values is replaced as Kubernetes
does: from variables defined before, `$$(NAME)` is a literal, an unknown name stays as it is.

References can double with every variable, so two kilobytes could ask for gigabytes. Nothing is put together that Linux would not
start a process with: 128 KiB for one string, and 2 MiB (of a stack of 8 MiB) for all of them.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping

from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.link.allocation_port import Allocation
from remuda.link.device_plugin_port import Mount

# What a local process needs from the machine it runs on; the rest of our own environment is none of its business.
INHERITED = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "LD_LIBRARY_PATH",
)
CONTAINER_ID = "REMUDA_CONTAINER_ID"

MAX_STRING = 128 * 1024 - 1  # characters, so bytes at least; with its end it is MAX_ARG_STRLEN
MAX_STRINGS = 2 * 1024 * 1024
ENVIRONMENT_TOO_LARGE = "EnvironmentTooLarge"

_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_.-][\w.-]*)\))")


class EnvironmentTooLarge(OSError):
    """No process can be started with that much. An OSError, because that is what starting it would raise."""

    reason = ENVIRONMENT_TOO_LARGE

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            errno.E2BIG,
            f"{what} takes more than {limit // 1024} KiB once its $(NAME) references are replaced; "
            "no process can be started with that. Shorten it, or refer to fewer variables.",
        )

    def __str__(self) -> str:
        return f"{self.reason}: {self.strerror}"


def base_process_environment(outer: Mapping[str, str], bin_directory: str) -> dict[str, str]:
    """From our own environment: the bin directory of this Python comes first on the PATH, so `python` is it."""
    env = {name: outer[name] for name in INHERITED if name in outer}
    path = outer.get("PATH") or "/usr/local/bin:/usr/bin:/bin"
    env["PATH"] = f"{bin_directory}:{path}"
    return env


def container_environment(
    pod: Pod, container: Container, allocation: Allocation, *, node: str, address: str, base: Mapping[str, str]
) -> dict[str, str]:
    grace = pod.spec.termination_grace_period_seconds
    own = {
        "REMUDA_POD_NAME": pod.name,
        "REMUDA_POD_UID": pod.uid,
        "REMUDA_NODE": node,
        # The launcher's own TERM-to-KILL must fit into the pod's, or its child is killed without having been asked.
        "REMUDA_STOP_GRACE": f"{max(0.0, min(5.0, grace * 0.8)):g}",
    }
    env = {
        **base,
        "HOSTNAME": pod.name,
        "POD_NAME": pod.name,
        "POD_NAMESPACE": pod.namespace,
        "POD_UID": pod.uid,
        "POD_IP": address,
        "NODE_NAME": node,
        **own,
    }
    size = _environment_size(env)
    for variable in container.env:
        try:
            value = expand_env_references(variable.value, env, MAX_STRING - len(variable.name) - 1)
        except EnvironmentTooLarge:
            raise EnvironmentTooLarge(f"Variable {variable.name[:63]}", MAX_STRING + 1) from None
        size += len(variable.name) + len(value)
        if size > MAX_STRINGS:
            raise EnvironmentTooLarge("The environment", MAX_STRINGS)
        env[variable.name] = value
    env.update(own)
    env.update(allocation.env)
    env[CONTAINER_ID] = f"{pod.uid}/{container.name}"
    return env


def container_environment_from_plugin(envs: Mapping[str, str], mounts: Iterable[Mount]) -> dict[str, str]:
    """A plugin's variables for a process without mounts: a path inside a mount is told as the path it stands for."""
    deepest_first = sorted(mounts, key=lambda mount: len(mount.container_path), reverse=True)

    def told(value: str) -> str:
        for mount in deepest_first:
            inside = mount.container_path.rstrip("/")
            if inside and (value == inside or value.startswith(f"{inside}/")):
                return mount.host_path.rstrip("/") + value[len(inside) :]
        return value

    return {name: told(value) for name, value in envs.items()}


def container_command_line(container: Container, env: Mapping[str, str]) -> list[str]:
    words: list[str] = []
    left = MAX_STRINGS
    for word in (*container.command, *container.args):
        words.append(expand_env_references(word, env))
        left -= len(words[-1])
        if left < 0:
            raise EnvironmentTooLarge("The command line", MAX_STRINGS)
    return words


def expand_env_references(text: str, env: Mapping[str, str], limit: int = MAX_STRING) -> str:
    """Raises EnvironmentTooLarge before anything longer than `limit` is put together."""
    parts: list[str] = []
    size, end = 0, 0
    for match in _REFERENCE.finditer(text):
        value = "$" if match[1] is None else env.get(match[1], match[0])
        parts += (text[end : match.start()], value)
        size += match.start() - end + len(value)
        end = match.end()
        if size > limit:
            break
    if size + len(text) - end > limit:
        raise EnvironmentTooLarge("A word of the command line", MAX_STRING + 1)
    return "".join((*parts, text[end:]))


def _environment_size(env: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in env.items())
