"""A second tenant that means harm: one abuse, from a process of its own, for so long. Bounded in count and time.

    python -m bench.hostile_abuses KUBECONFIG NAMESPACE ABUSE SECONDS

Each abuse goes on whatever it is answered; the last line says how often each code came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from bench.hostile_targets import Target, open_target

YAML, JSON = "application/yaml", "application/json"
JSON_PATCH = "application/json-patch+json"
WORKERS = 4
CONNECTIONS, WATCHES = 1_500, 6_000


class Tenant:
    def __init__(self, target: Target, namespace: str, seconds: float) -> None:
        self.target = target
        self.namespace = namespace
        self.ends = time.monotonic() + seconds
        self.codes: Counter[str] = Counter()

    @property
    def core(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    @property
    def jobs(self) -> str:
        return f"/apis/remuda.dev/v1alpha1/namespaces/{self.namespace}/trainingjobs"

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.ends

    async def until_the_end(self) -> None:
        await asyncio.sleep(max(0.0, self.ends - time.monotonic()))

    async def ask(self, method: str, path: str, body: bytes = b"", media: str = JSON) -> None:
        try:
            async with self.target.session.request(
                method, path, data=body, headers={"Content-Type": media}, timeout=aiohttp.ClientTimeout(120)
            ) as answer:
                await answer.read()
                self.codes[str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.codes[type(error).__name__] += 1
            await asyncio.sleep(0.05)

    async def repeat(self, once: Callable[[int], Awaitable[None]]) -> None:
        """From several workers at a time, until the time is over."""

        async def work(number: int) -> None:
            while self.goes_on:
                await once(number)

        await asyncio.gather(*(work(number) for number in range(WORKERS)))


async def yaml_bodies(tenant: Tenant) -> None:
    """1.1 MB of small values."""
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\ndata:\n" + b"".join(
        b"  k%d: v\n" % n for n in range(90_000)
    )
    await tenant.repeat(lambda _: tenant.ask("POST", f"{tenant.core}/configmaps?dryRun=All", body, YAML))


async def odd_bodies(tenant: Tenant) -> None:
    """Tags, aliases, depth: each was a 500 or a stall."""
    bodies = [
        (YAML, b"a: !!bool foo\n"),
        (YAML, b"a: " + b"[" * 100_000),
        (YAML, b"a: &a [x]\nb: [" + b"*a," * 50_000 + b"]"),
        (JSON, b'{"a":' * 100_000),
        (
            JSON,
            b'{"metadata":{"name":"x"},"'
            + b"x" * 1_400_000
            + b'":{'
            + b",".join(b'"k%d":{}' % n for n in range(90_000))
            + b"}}",
        ),
    ]
    chance = random.Random(0)

    async def once(_: int) -> None:
        media, body = chance.choice(bodies)
        await tenant.ask("POST", f"{tenant.core}/configmaps?dryRun=All", body, media)

    await tenant.repeat(once)


async def moves(tenant: Tenant) -> None:
    """A patch of 400 moves of an object of 300 KB."""
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "moves"}}
    data["data"] = {f"k{n}": "v" * 6 for n in range(17_000)}
    await tenant.ask("POST", f"{tenant.core}/configmaps", json.dumps(data).encode())
    there_and_back = [{"op": "move", "from": "/data", "path": "/x"}, {"op": "move", "from": "/x", "path": "/data"}]
    patch = json.dumps(there_and_back * 200).encode()
    await tenant.repeat(lambda _: tenant.ask("PATCH", f"{tenant.core}/configmaps/moves?dryRun=All", patch, JSON_PATCH))


async def patterns(tenant: Tenant) -> None:
    """Definitions whose patterns take long to compile, and values that take long to match."""

    def definition(plural: str, *given: str) -> bytes:
        properties = {f"p{n}": {"type": "string", "pattern": each} for n, each in enumerate(given)}
        spec = {"type": "object", "properties": properties}
        schema = {"type": "object", "properties": {"spec": spec}}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": plural, "kind": plural.capitalize()}
        body = {"group": "hostile.test", "scope": "Namespaced", "names": names, "versions": [version]}
        return json.dumps({"metadata": {"name": f"{plural}.hostile.test"}, "spec": body}).encode()

    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await tenant.ask("POST", crds, definition("hards", "^(a+)+$", "[ab]*a[ab]{1000}[cd]"))
    value = {"apiVersion": "hostile.test/v1", "kind": "Hards", "metadata": {"name": "x"}}
    value["spec"] = {"p0": "a" * 100_000 + "!", "p1": "ab" * 400_000}
    hard = json.dumps(value).encode()
    slow = definition("slows", *(r"\d{1,1000}" * 3 + str(n) for n in range(2_000)))

    async def once(number: int) -> None:
        if number % 2:
            await tenant.ask("POST", f"{crds}?dryRun=All", slow)
        else:
            await tenant.ask("POST", f"/apis/hostile.test/v1/namespaces/{tenant.namespace}/hards?dryRun=All", hard)

    await tenant.repeat(once)


async def large_bodies(tenant: Tenant) -> None:
    """3 MB of JSON with as many values as there may be."""
    env = [{"name": f"v{n}", "value": "x" * 20} for n in range(60_000)]
    pod = {"metadata": {"name": "large"}, "spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}
    body = json.dumps(pod, separators=(",", ":")).encode()
    await tenant.repeat(lambda _: tenant.ask("POST", f"{tenant.core}/pods?dryRun=All&fieldValidation=Strict", body))


async def lists(tenant: Tenant) -> None:
    """2,000 objects, listed as tables and by selectors of many terms."""
    for number in range(2_000):
        if not tenant.goes_on:
            break
        body = {"metadata": {"name": f"l{number}", "labels": {"a": str(number)}}, "data": {"a": "x" * 2_000}}
        await tenant.ask("POST", f"{tenant.core}/configmaps", json.dumps(body).encode())
    terms = ",".join(f"k{n}!=v" for n in range(450))

    async def once(number: int) -> None:
        query = "" if number % 2 else f"?labelSelector={terms}"
        await tenant.ask("GET", f"{tenant.core}/configmaps{query}")

    await tenant.repeat(once)


async def watches(tenant: Tenant) -> None:
    """As many watches as there are places, and changes for all of them to see."""
    target = tenant.target
    head = f"GET {tenant.core}/configmaps?watch=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {target.token}\r\n\r\n".encode()
    open_: list[asyncio.StreamWriter] = []
    tried = 0

    async def watch() -> None:
        nonlocal tried
        while tenant.goes_on and tried < WATCHES:
            tried += 1
            try:
                async with asyncio.timeout(20):
                    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
                    writer.write(head)
                    line = await reader.readline()
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                tenant.codes[type(error).__name__] += 1
                await asyncio.sleep(0.1)
                continue
            tenant.codes[line.split()[1].decode() if len(line.split()) > 1 else "closed"] += 1
            if b" 200 " in line:
                open_.append(writer)
                tenant.target.keep(asyncio.create_task(_drain(reader)))
            else:
                writer.transport.abort()

    async def write(number: int) -> None:
        body = json.dumps({"metadata": {"name": f"w{number}"}, "data": {"t": str(time.monotonic())}}).encode()
        await tenant.ask("PUT", f"{tenant.core}/configmaps/w{number}", body)

    await write_all(tenant, "w")
    await asyncio.gather(*(watch() for _ in range(8)), tenant.repeat(write))
    for writer in open_:
        writer.transport.abort()


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65_536):
            pass


async def write_all(tenant: Tenant, prefix: str) -> None:
    for number in range(WORKERS):
        await tenant.ask(
            "POST", f"{tenant.core}/configmaps", json.dumps({"metadata": {"name": f"{prefix}{number}"}}).encode()
        )


async def bare_connections(tenant: Tenant) -> None:
    """1,500 connections that say nothing, opened again when they are closed."""
    loop = asyncio.get_running_loop()

    async def hold() -> None:
        while tenant.goes_on:
            with socket.socket() as sock:
                sock.setblocking(False)
                try:
                    async with asyncio.timeout(max(0.1, tenant.ends - time.monotonic())):
                        await loop.sock_connect(sock, (tenant.target.host, tenant.target.port))
                        tenant.codes["opened"] += 1
                        await loop.sock_recv(sock, 1)
                except (OSError, TimeoutError) as error:
                    tenant.codes[type(error).__name__] += 1
            await asyncio.sleep(0.2)

    await asyncio.gather(*(hold() for _ in range(CONNECTIONS)))


async def slow_bodies(tenant: Tenant) -> None:
    """Large bodies that come a byte at a time."""
    target = tenant.target
    head = f"POST {tenant.core}/configmaps HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n"
    head += f"authorization: Bearer {target.token}\r\n\r\n"

    async def send() -> None:
        while tenant.goes_on:
            try:
                async with asyncio.timeout(max(0.1, tenant.ends - time.monotonic())):
                    _, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
                    writer.write(head.encode() + b" " * 100_000)
                    tenant.codes["begun"] += 1
                    while not writer.is_closing():
                        writer.write(b" ")
                        await asyncio.sleep(1)
            except (OSError, TimeoutError) as error:
                tenant.codes[type(error).__name__] += 1
                await asyncio.sleep(0.2)

    await asyncio.gather(*(send() for _ in range(100)))


def job(name: str, command: list[str], replicas: int = 1, gpus: int = 1) -> bytes:
    template = {"spec": {"containers": [{"name": "main", "command": command}]}}
    role = {"replicas": replicas, "gpus": gpus, "template": template}
    return json.dumps({"metadata": {"name": name}, "spec": {"roles": [role]}}).encode()


async def impossible_steps(tenant: Tenant) -> None:
    """Jobs that say they are at step 1 of 2**62."""
    script = (
        "import os, time\n"
        "while True:\n"
        "    open(os.environ['REMUDA_PROGRESS_FILE'], 'w').write('{\"step\": 1, \"totalSteps\": %d}' % 2**62)\n"
        "    time.sleep(0.2)\n"
    )
    for number in range(3):
        await tenant.ask("POST", tenant.jobs, job(f"steps-{number}", [sys.executable, "-c", script]))
    await tenant.until_the_end()
    for number in range(3):
        await tenant.ask("DELETE", f"{tenant.jobs}/steps-{number}")


async def doubling_environment(tenant: Tenant) -> None:
    """2 KB of variables, each twice the one before."""
    env = [{"name": "V0", "value": "x" * 64}]
    env += [{"name": f"V{n}", "value": f"$(V{n - 1})$(V{n - 1})"} for n in range(1, 26)]
    pod = {
        "metadata": {"name": "doubling"},
        "spec": {"containers": [{"name": "c", "image": "none", "command": ["sleep", "60"], "env": env}]},
    }
    await tenant.ask("POST", f"{tenant.core}/pods", json.dumps(pod).encode())
    await tenant.until_the_end()
    await tenant.ask("DELETE", f"{tenant.core}/pods/doubling")


async def giant_gang(tenant: Tenant) -> None:
    """A job of 100,000 replicas on a few devices."""
    await tenant.ask("POST", tenant.jobs, job("giant", ["sleep", "60"], replicas=100_000))
    await tenant.until_the_end()
    await tenant.ask("DELETE", f"{tenant.jobs}/giant")


ABUSES: dict[str, Callable[[Tenant], Awaitable[None]]] = {
    "yaml": yaml_bodies,
    "odd": odd_bodies,
    "moves": moves,
    "patterns": patterns,
    "large": large_bodies,
    "lists": lists,
    "watches": watches,
    "connections": bare_connections,
    "slow": slow_bodies,
    "steps": impossible_steps,
    "environment": doubling_environment,
    "giant": giant_gang,
}


async def run(kubeconfig: Path, namespace: str, abuse: str, seconds: float) -> dict[str, Any]:
    async with open_target(kubeconfig) as target:
        tenant = Tenant(target, namespace, seconds)
        await ABUSES[abuse](tenant)
        return dict(tenant.codes)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])))))
