"""Where a launcher and its child leave things for each other: progress.sock, progress.json, checkpoint-request.json.

On an embedded node that is the allocation's directory. On a kubelet's node it is mounted read-only: what a container could write
there, an agent that is root would have to be wary of. Then it is a directory of the launcher's own in the container's /tmp, or in
/dev/shm where the container's files are read-only or /tmp is a volume: the launcher may wait for no volume. It goes with the
container; the child may be another user than the launcher.
"""

import os

IN_MEMORY = "/dev/shm"
PLACES = ("/tmp", IN_MEMORY)


def launcher_work_directory(allocation: str, places: "tuple[str, ...]" = PLACES) -> str:
    """`allocation` itself when nothing can be written anywhere: then there are no progress reports, and the log says so."""
    if os.access(allocation, os.W_OK | os.X_OK):
        return allocation
    for place in sorted(places, key=_is_disk_volume):
        made = f"{place}/remuda-{os.getpid()}-{os.urandom(6).hex()}"
        try:
            os.mkdir(made, 0o700)  # fails for whatever is there already
            os.chmod(made, 0o777)
        except OSError:
            continue
        return made
    return allocation


def _is_disk_volume(place: str) -> bool:
    """Whether it may be on a file system that hangs: neither the container's own nor in memory."""
    try:
        return os.stat(place).st_dev != os.stat("/").st_dev and place != IN_MEMORY
    except OSError:
        return False  # not there


def remove_launcher_work_directory(directory: str, allocation: str) -> None:
    """At the launcher's end: /dev/shm outlives a container that its pod restarts."""
    if directory == allocation:
        return
    try:
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        os.rmdir(directory)
    except OSError:
        pass
