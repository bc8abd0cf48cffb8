"""`remuda agent --uninstall`: removes what an agent left on its node. Asks nobody; may be run again.

  <kubelet>/device-plugins/remuda-*.sock    sockets of ours; the kubelet's and other plugins' stay
  <cdi>/remuda.dev-gpu_*.json               CDI specs
  <root>/alloc, grants, bin, *.json, ...    what `node_agent` lists; then <root> itself, when nothing else is in it

Checkpoints (<root>/checkpoints) and copies of other nodes' (<root>/copies) are the users', and stay unless there are none; what
the agent notes beside them goes. An agent that still runs over the same directory is told to step aside first.
No link is followed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from remuda.agent.allocation.cdi_specs import CdiSpecs
from remuda.api.errors import Refusal
from remuda.link.untrusted_files import remove_untrusted_trees
from remuda.runtime.agent_post import LOOK_S, PLACE, AgentPost

LAUNCHER_TREE = "bin"
CHECKPOINTS = "checkpoints"
COPIES = "copies"
TREES = ("alloc", "grants", f"{CHECKPOINTS}/.remuda", f"{COPIES}/.incoming")


def remove_agent_files(
    state: str, kubelet_dir: str, cdi_dir: str, *, keep_launcher: bool, pause: Callable[[float], None] = time.sleep
) -> list[str]:
    """What was removed and what was left, a sentence each. `keep_launcher`: pods that run on need it, and the
    directories that they have mounted, with or without a checkpoint."""
    said = [*_remove_sockets(Path(kubelet_dir) / "device-plugins"), *_remove_cdi_specs(cdi_dir)]
    root = Path(state)
    if not root.is_dir():
        return said or ["Nothing of an agent is here."]
    if root.stat().st_mode & 0o002:
        raise Refusal(
            "DirectoryOpenToOthers",
            f"Everybody on this machine can write in {root}.",
            f"Look what is in it, and remove it yourself: rm -r {root}.",
            "root",
        )
    AgentPost(root).take()
    pause(2 * LOOK_S)
    for name in (*TREES, *(() if keep_launcher else (LAUNCHER_TREE,))):
        if _remove_tree(root / name):
            said.append(f"Removed {root / name}.")
    files = [entry for entry in root.iterdir() if _is_file(entry) and _is_agents(entry.name)]
    for entry in files:
        entry.unlink(missing_ok=True)
    if files:
        said.append(f"Removed {len(files)} small files in {root}.")
    _remove_unused_checkpoint_places(root / CHECKPOINTS, are_mounted=keep_launcher)
    _remove_empty_directories(root / COPIES)
    left = sorted(entry.name for entry in root.iterdir())
    if left:
        said.append(f"Left in {root}: {', '.join(left)}.")
    elif _remove_if_empty(root):
        said.append(f"Removed {root}.")
    return said


def _remove_sockets(directory: Path) -> Iterator[str]:
    for entry in _entries(directory):
        if entry.name.startswith("remuda-") and entry.name.endswith(".sock") and _is_socket(entry):
            entry.unlink(missing_ok=True)
            yield f"Removed {entry}."


def _remove_cdi_specs(directory: str) -> Iterator[str]:
    if directory and Path(directory).is_dir():
        CdiSpecs(directory, lambda device: ()).settle(())
        yield f"Removed our CDI specs in {directory}."


def _entries(directory: Path) -> Iterable[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove_tree(directory: Path) -> bool:
    """A directory that only the agent can write, whatever is in it."""
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            return False
    except FileNotFoundError:
        return False
    remove_untrusted_trees(directory)
    return _remove_if_empty(directory)


def _remove_unused_checkpoint_places(directory: Path, *, are_mounted: bool) -> None:
    """<namespace>/<job>: made by agents. What is below a job's is the job's own, and is not looked into."""
    for namespace in _entries(directory):
        if not namespace.is_symlink() and not are_mounted:
            for job in _entries(namespace):
                _remove_if_empty(job)
        _remove_if_empty(namespace)
    _remove_if_empty(directory)


def _remove_empty_directories(directory: Path) -> None:
    """Below a directory that only the agent can write; its files stay."""
    for below, _, _ in os.walk(directory, topdown=False):
        _remove_if_empty(Path(below))


def _remove_if_empty(directory: Path) -> bool:
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True


def _is_agents(name: str) -> bool:
    return name.endswith(".json") or name.startswith(PLACE.partition(".")[0] + ".")


def _is_file(entry: Path) -> bool:
    return stat.S_ISREG(os.lstat(entry).st_mode)


def _is_socket(entry: Path) -> bool:
    return stat.S_ISSOCK(os.lstat(entry).st_mode)
