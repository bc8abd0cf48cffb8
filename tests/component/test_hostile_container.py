"""What a container of another user can do to the agent, which is root, through the directory of its allocation: nothing.

The agent is a real process; the container is a process of uid 65534 behind the mount that the device plugin named.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import RESOURCE_GPU
from remuda.link.device_plugin_port import Mount
from tests.builders.waiting import until
from tests.component.agent_process import NOBODY, RealSite, a_real_site, alloc_mount, in_container
from tests.unit.agent.scene import short_directory

SECRET = "root's own\n"
FIT_BYTES = 400 << 20  # of memory; an agent has about 80 MB


@pytest_asyncio.fixture
async def site() -> AsyncIterator[RealSite]:
    with short_directory() as base:
        async with a_real_site(base) as made:
            yield made


@pytest.fixture
def victim(site: RealSite) -> Path:
    """A file of root's that nobody else may read or write, on a path that others can reach."""
    site.base.chmod(0o755)
    path = site.base / "victim"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def check_untouched(victim: Path) -> None:
    assert victim.read_text() == SECRET
    assert victim.stat().st_mode & 0o777 == 0o600


ATTACKS = {
    "links": "for f in allocation.json allocation.json.new agent.sock.new; do ln -sf {victim} $f; done",
    "fifos": "for f in allocation.json allocation.json.new agent.sock.new; do rm -f $f; mkfifo $f; done",
    "endless": "for f in allocation.json allocation.json.new; do ln -sf /dev/zero $f; done",
    "huge": "rm -f allocation.json; truncate -s 8G allocation.json",
}


async def test_what_a_container_is_shown_is_a_door_and_nothing_it_can_change(site: RealSite) -> None:
    pod = await site.bind("a", "gpu-0")
    async with site.agent():
        mount = alloc_mount(await site.kubelet.allocate("gpu-0"))
        site.listed(pod, "gpu-0")
        assert os.listdir(mount.host_path) == ["agent.sock"]
        for user in (0, NOBODY):
            said = in_container(mount, "rm -f agent.sock; ln -s x allocation.json; touch new; mv agent.sock old", user)
            assert said.returncode != 0
            assert said.stderr.count("Read-only file system") == 4, said.stderr
            assert os.listdir(mount.host_path) == ["agent.sock"]
        dial = (
            'import socket as s; c = s.socket(s.AF_UNIX); c.connect("agent.sock"); c.sendall(b"hello"); print("heard")'
        )
        said = in_container(mount, f"python3 -c '{dial}'")  # connecting writes nothing
        assert said.stdout == "heard\n", said.stderr


async def test_a_launcher_behind_the_door_keeps_its_progress_in_its_own_container(site: RealSite) -> None:
    site.base.chmod(0o755)
    async with site.agent():
        mount = alloc_mount(await site.kubelet.allocate("gpu-0"))
        ask = (
            f'import sys; sys.path.insert(0, "{site.state}/bin/remuda-launch.pyz"); '
            "from remuda.launch.work_directory import launcher_work_directory as made; "
            'path = made("."); open(path + "/progress.json", "w").close(); print(path)'
        )
        said = in_container(mount, f"python3 -I -S -c '{ask}'")
        assert said.stdout.startswith("/tmp/remuda-"), said.stderr
        shutil.rmtree(said.stdout.strip())


async def test_what_the_agent_believes_is_its_own(site: RealSite) -> None:
    async with site.agent():
        await site.kubelet.allocate("gpu-0")
        for name in ("alloc", "grants"):
            found = (site.state / name).stat()
            assert (found.st_uid, found.st_mode & 0o777) == (0, 0o700)


# What a container of an earlier agent may have left in its directory, which it could write. The agent that comes next meets all
# of it at once. Of gpu-6 the launcher is honest.
OLD = {
    "gpu-0": "rm -f allocation.json; ln -s {victim} allocation.json; ln -s {victim} allocation.json.new",
    "gpu-1": "rm -f allocation.json; mkfifo allocation.json agent.sock agent.sock.new",
    "gpu-2": "rm -f allocation.json; ln -s /dev/zero allocation.json",
    "gpu-3": "rm -f allocation.json; truncate -s 8G allocation.json",
    "gpu-4": "rm -f allocation.json; mkdir -p agent.sock/full allocation.json",
    "gpu-5": 'sed -i "s/old-5/old-6/; s/old-5/old-6/" allocation.json; ln -s {victim} agent.sock',
    "gpu-6": "touch progress.json",
}


async def test_an_upgrade_over_directories_that_containers_could_write(site: RealSite, victim: Path) -> None:
    pods = {}
    for number, device in enumerate(OLD):
        pod = pods[device] = await site.bind(f"old-{number}", device)
        old_allocation(site, pod, device)
        in_container(Mount("", str(site.state / "alloc" / device)), OLD[device].format(victim=victim))
        site.listed(pod, device)
    os.link(victim, site.state / "alloc" / "gpu-0" / "progress.json")
    async with site.agent() as agent:
        launchers = [await site.launch(pod, site.state / "alloc" / device) for device, pod in pods.items()]
        for pod in pods.values():
            await site.heard_of(pod)  # each by its own name, whatever its marker said
        assert (site.state / "alloc" / "gpu-6" / "progress.json").exists()
        assert agent.peak_bytes() < FIT_BYTES
        for launcher in launchers:
            launcher.close()
        site.resources.rows.clear()
        for pod in pods.values():
            await site.cluster.delete(Pod, pod.name, pod.namespace, grace_s=0)
        for device in OLD:
            await until(f"{device} to be free", lambda device=device: site.can_be_had(device))  # type: ignore[misc]
            assert os.listdir(site.state / "alloc" / device) == ["agent.sock"]
    check_untouched(victim)


def old_allocation(site: RealSite, pod: Pod, device: str) -> None:
    """As an agent before this one made it."""
    directory = site.state / "alloc" / device
    directory.mkdir(parents=True)
    directory.parent.chmod(0o700)
    marker = {"devices": [device], "uid": pod.uid, "pod": f"default/{pod.name}", "resource": RESOURCE_GPU}
    (directory / "allocation.json").write_text(json.dumps({**marker, "container": "main", "at": 1.0}))
    (directory / "allocation.json").chmod(0o666)
    directory.chmod(0o777)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_container_cannot_lead_the_agent_astray_through_its_own_directory(
    site: RealSite, victim: Path, attack: str
) -> None:
    hostile, honest = await site.bind("hostile", "gpu-0"), await site.bind("honest", "gpu-1")
    async with site.agent() as agent:
        mount = alloc_mount(await site.kubelet.allocate("gpu-0"))
        in_container(mount, ATTACKS[attack].format(victim=victim))
        site.listed(hostile, "gpu-0")
        launcher = await site.launch(hostile, Path(mount.host_path))
        await site.heard_of(hostile)
        door = alloc_mount(await site.kubelet.allocate("gpu-1"))  # and the others are served as ever
        site.listed(honest, "gpu-1")
        other = await site.launch(honest, Path(door.host_path))
        await site.heard_of(honest)
        assert agent.peak_bytes() < FIT_BYTES
        for writer in (launcher, other):
            writer.close()
    check_untouched(victim)
