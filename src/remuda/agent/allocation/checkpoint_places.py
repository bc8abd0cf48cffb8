"""The directory that a job's checkpoints have on this node, mounted into the containers of its ranks.

`<root>/<namespace>/<job>-<uid>`. `root` is the agent's alone (0700): containers come by a mount, nobody else of the machine gets
here. The directory itself takes writes of whoever runs in the container. A kubelet that comes first makes it for root; so it is
opened for all when the pod is seen, before anything of the job runs. What is in it is the job's, and is neither read nor followed
here.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from remuda.core.gang.checkpoint_dirs import job_checkpoint_dir
from remuda.link.untrusted_files import untrusted_directory

_FOR_ALL = 0o777


def allocate_checkpoint_place(root: str, namespace: str, name: str, uid: str) -> str:
    """Made when it is missing; its path. OSError when it cannot be, or something else has the name."""
    path = Path(job_checkpoint_dir(root, namespace, name, uid))
    Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
    with untrusted_directory(root) as top:
        _make_below(top, namespace, 0o755)
    with untrusted_directory(root, namespace) as above:
        _make_below(above, path.name, _FOR_ALL)
    with untrusted_directory(root, f"{namespace}/{path.name}") as own:
        if stat.S_IMODE(os.fstat(own).st_mode) & _FOR_ALL != _FOR_ALL:
            os.fchmod(own, _FOR_ALL)
    return str(path)


def _make_below(fd: int, name: str, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=fd)
