"""Who we are to the API: tokens that are rotated, plugins that are run no more often than needed, certificates."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from remuda.api.errors import Refusal
from remuda.kube.client.access import Access, Auth, ExecPlugin, Tls
from remuda.kube.client.credentials import (
    NOBODY,
    Credentials,
    Identity,
    PluginOutput,
    ReloadedFile,
    plugin_exec_info,
    run_exec_plugin,
)
from remuda.kube.client.tls import TlsContexts, build_tls_context
from tests.builders.certificates import Authority
from tests.builders.waiting import PATIENCE_S

V1 = "client.authentication.k8s.io/v1"
NOW = 1_700_000_000.0


def access(server: str = "https://host", **auth: Any) -> Access:
    return Access(server=server, user="ann", auth=Auth(**auth))


def bearer(token: str) -> Identity:
    return Identity((("Authorization", f"Bearer {token}"),))


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


class Plugin:
    """A plugin that answers as told, and counts."""

    def __init__(self, **status: Any) -> None:
        self.status = status
        self.ran: list[tuple[list[str], dict[str, str]]] = []
        self.code = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, command: list[str], env: dict[str, str]) -> PluginOutput:
        self.ran.append((command, env))
        await self.gate.wait()
        status = {"token": f"t{len(self.ran)}", **self.status}
        body = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
        return PluginOutput(self.code, json.dumps(body).encode(), b"log in\nfirst")


def with_plugin(plugin: Plugin, clock: Clock | None = None, **fields: Any) -> Credentials:
    return Credentials(access(plugin=ExecPlugin(command="login", **fields)), clock=clock or Clock(), run=plugin)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def replace_file(path: Path, text: str) -> None:
    """As a secret volume does it: another file under the name."""
    other = path.with_name(path.name + ".new")
    other.write_text(text)
    os.replace(other, path)


# Tokens and passwords.


async def test_a_token_is_a_bearer_header_and_others_come_with_it() -> None:
    extra = (("Impersonate-User", "bob"),)
    credentials = Credentials(access(token="s", impersonate=extra), clock=Clock())
    assert await credentials.current() == Identity((("Authorization", "Bearer s"), *extra))
    assert not await credentials.has_other(await credentials.current())


async def test_a_password_is_basic() -> None:
    identity = await Credentials(access(username="ann", password="pass"), clock=Clock()).current()
    assert identity.headers == (("Authorization", "Basic YW5uOnBhc3M="),)


async def test_nothing_secret_goes_unencrypted() -> None:
    plugin = Plugin()
    for auth in ({"token": "s"}, {"username": "a", "password": "b"}, {"plugin": ExecPlugin(command="x")}):
        assert await Credentials(access("http://host", **auth), clock=Clock(), run=plugin).current() == NOBODY
    assert plugin.ran == []


async def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    credentials = Credentials(access(token_file=path, token="fallback"), clock=Clock())
    first = await credentials.current()
    assert first == bearer("one")
    assert not await credentials.has_other(first)
    replace_file(path, "two\n")
    assert await credentials.has_other(first)
    assert await credentials.current() == bearer("two")
    path.unlink()  # caught between two versions
    assert await credentials.current() == bearer("two")


async def test_an_empty_token_file_is_refused_unless_there_is_a_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n")
    assert await Credentials(access(token_file=path, token="t"), clock=Clock()).current() == bearer("t")
    with pytest.raises(Refusal, match="NoToken"):
        await Credentials(access(token_file=path), clock=Clock()).current()


async def test_a_token_that_would_break_the_header_is_refused() -> None:
    for token in ("a\r\nX-Evil: 1", "ü"):
        with pytest.raises(Refusal, match="InvalidToken"):
            await Credentials(access(token=token), clock=Clock()).current()


def test_a_file_is_read_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = ReloadedFile(path)
    assert file.read() == b""
    path.write_bytes(b"one")
    assert file.read() == b"one"
    first = file.read()
    assert file.read() is first
    path.write_bytes(b"")  # a writer that truncates first
    assert file.read() == b"one"
    path.write_bytes(b"other")
    assert file.read() == b"other"


# Plugins.


async def test_a_plugin_is_run_once_however_many_ask() -> None:
    plugin = Plugin()
    plugin.gate.clear()
    credentials = with_plugin(plugin)
    asking = [asyncio.create_task(credentials.current()) for _ in range(20)]
    await asyncio.wait(asking, timeout=0)
    plugin.gate.set()
    assert set(await asyncio.gather(*asking)) == {bearer("t1")}
    assert len(plugin.ran) == 1


async def test_a_plugin_is_run_again_before_its_credential_runs_out() -> None:
    clock = Clock()
    plugin = Plugin(expirationTimestamp=stamp(NOW + 3600))
    credentials = with_plugin(plugin, clock)
    await credentials.current()
    clock.now = NOW + 3589
    assert await credentials.current() == bearer("t1")
    clock.now = NOW + 3590
    plugin.status["expirationTimestamp"] = stamp(NOW + 3590 + 20)  # a short life
    assert await credentials.current() == bearer("t2")
    clock.now += 17.9
    assert await credentials.current() == bearer("t2")
    clock.now += 0.2
    assert await credentials.current() == bearer("t3")


async def test_a_refused_credential_makes_the_plugin_run_but_not_all_the_time() -> None:
    clock = Clock()
    plugin = Plugin()
    credentials = with_plugin(plugin, clock)
    first = await credentials.current()
    assert not await credentials.has_other(first)  # it was made this moment
    clock.now += 60
    assert await credentials.has_other(first)
    second = await credentials.current()
    assert second == bearer("t2")
    assert await credentials.has_other(first)  # a slower request, refused with the old one
    assert len(plugin.ran) == 2


async def test_a_plugin_can_give_a_certificate() -> None:
    plugin = Plugin(token="", clientCertificateData="CERT", clientKeyData="KEY")
    assert await with_plugin(plugin).current() == Identity((), b"CERT", b"KEY")


async def test_a_plugin_is_told_what_it_wants_to_know(tmp_path: Path) -> None:
    plugin = Plugin()
    await with_plugin(plugin, args=("--a",), env=(("REGION", "east"),)).current()
    command, env = plugin.ran[0]
    assert command == ["login", "--a"]
    assert env["REGION"] == "east"
    assert env["PATH"] == os.environ["PATH"]
    told = json.loads(env["KUBERNETES_EXEC_INFO"])
    assert told == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}
    (tmp_path / "ca").write_bytes(b"PEM")
    where = Access(server="https://host", tls=Tls(ca_file=tmp_path / "ca", server_name="kube"))
    info = json.loads(plugin_exec_info(ExecPlugin(command="x", wants_cluster=True), where))
    assert info["spec"]["cluster"] == {
        "server": "https://host",
        "tls-server-name": "kube",
        "certificate-authority-data": "UEVN",
    }


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (b"Please log in:", "printed no ExecCredential"),
        (b"{}", "printed no ExecCredential"),
        (json.dumps({"apiVersion": f"{V1}beta1", "kind": "ExecCredential"}).encode(), "v1beta1"),
        (json.dumps({"apiVersion": V1, "kind": "Pod"}).encode(), "a Pod"),
        (json.dumps({"apiVersion": V1, "kind": "ExecCredential"}).encode(), "neither a token nor a certificate"),
        (
            json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"clientCertificateData": "x"}}).encode(),
            "without the other",
        ),
        (
            json.dumps(
                {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "t", "expirationTimestamp": "soon"}}
            ).encode(),
            "printed no ExecCredential",
        ),
    ],
)
async def test_what_a_plugin_may_not_print_is_refused(output: bytes, said: str) -> None:
    async def run(command: list[str], env: dict[str, str]) -> PluginOutput:
        return PluginOutput(0, output, b"")

    credentials = Credentials(access(plugin=ExecPlugin(command="login")), clock=Clock(), run=run)
    with pytest.raises(Refusal, match="ExecPluginFailed") as caught:
        await credentials.current()
    assert said in caught.value.message
    assert caught.value.fix


async def test_a_plugin_that_fails_speaks_for_itself() -> None:
    plugin = Plugin()
    plugin.code = 3
    with pytest.raises(Refusal) as caught:
        await with_plugin(plugin).current()
    assert "ended with 3: log in first" in caught.value.message
    assert "`login` of user `ann`" in caught.value.message


async def test_a_real_program_is_run_without_a_terminal(tmp_path: Path) -> None:
    program = tmp_path / "login"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "assert sys.stdin.read() == ''\n"
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "asked['status'] = {'token': '-'.join(sys.argv[1:])}\n"
        "print(json.dumps(asked))\n"
    )
    program.chmod(0o700)
    plugin = ExecPlugin(command=str(program), args=("a", "b"))
    assert await Credentials(access(plugin=plugin), clock=Clock()).current() == bearer("a-b")
    absent = ExecPlugin(command=str(tmp_path / "absent"), install_hint="Install it with `get login`.\n")
    with pytest.raises(Refusal) as caught:
        await Credentials(access(plugin=absent), clock=Clock()).current()
    assert (caught.value.reason, caught.value.fix) == ("ExecPluginFailed", "Install it with `get login`.")
    program.chmod(0o600)
    with pytest.raises(Refusal, match="cannot be run"):
        await Credentials(access(plugin=plugin), clock=Clock()).current()


async def test_a_plugin_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.kube.client.credentials.PLUGIN_TIMEOUT_S", 0.2)
    mark = tmp_path / "pid"
    plugin = ExecPlugin(command="sh", args=("-c", f"echo $$ > {mark}; exec sleep 600"))
    with pytest.raises(Refusal, match="did not finish"):
        await Credentials(access(plugin=plugin), clock=Clock()).current()
    if mark.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)


async def test_a_cancelled_request_leaves_no_plugin_behind(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    task = asyncio.create_task(run_exec_plugin(["sh", "-c", f"echo $$ > {mark}; exec sleep 600"], dict(os.environ)))
    async with asyncio.timeout(PATIENCE_S):
        while not (mark.exists() and mark.read_text().strip()):  # noqa: ASYNC110 - the file is all there is
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


# TLS.


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def test_a_context_is_built_once_and_again_when_a_file_changes(tmp_path: Path, authority: Authority) -> None:
    pair = authority.sign("ann")
    for name, data in (("ca", authority.pem), ("cert", pair.cert), ("key", pair.key)):
        (tmp_path / name).write_bytes(data)
    contexts = TlsContexts(Tls(ca_file=tmp_path / "ca", cert_file=tmp_path / "cert", key_file=tmp_path / "key"))
    first = contexts.context()
    assert contexts.context() is first
    assert first.verify_mode == ssl.CERT_REQUIRED
    assert first.check_hostname
    replace_file(tmp_path / "ca", Authority("other").pem.decode())
    second = contexts.context()
    assert second is not first
    replace_file(tmp_path / "cert", authority.sign("bob").cert.decode())  # its key has not come yet
    assert contexts.context() is second
    replace_file(tmp_path / "cert", pair.cert.decode())
    assert contexts.context() is not second


def test_a_plugins_certificate_takes_the_place_of_the_configured_one(authority: Authority) -> None:
    pair, other = authority.sign("ann"), authority.sign("bob")
    contexts = TlsContexts(Tls(ca_data=authority.pem))
    plain = contexts.context()
    with_cert = contexts.context(pair.cert, pair.key)
    assert with_cert is not plain
    assert contexts.context(pair.cert, pair.key) is with_cert
    assert contexts.context(other.cert, other.key) is not with_cert


def test_not_verifying_has_to_be_asked_for() -> None:
    assert build_tls_context(Tls()).verify_mode == ssl.CERT_REQUIRED
    insecure = build_tls_context(Tls(is_insecure=True))
    assert (insecure.verify_mode, insecure.check_hostname) == (ssl.CERT_NONE, False)


def test_what_is_no_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    pair = authority.sign("ann")
    (tmp_path / "junk").write_bytes(b"\xffnonsense")
    for tls, said in (
        (Tls(ca_data=b"nonsense"), "certificate-authority-data"),
        (Tls(ca_file=tmp_path / "junk"), str(tmp_path / "junk")),
        (Tls(ca_file=tmp_path / "absent"), "No such file"),
        (Tls(cert_data=pair.cert, key_data=authority.sign("bob").key), "client certificate and key"),
        (Tls(cert_data=b"x", key_data=pair.key), "client certificate and key"),
        (Tls(cert_file=tmp_path / "junk", key_file=tmp_path / "junk"), "junk"),
    ):
        with pytest.raises(Refusal, match="InvalidCertificate") as caught:
            build_tls_context(tls)
        assert said in caught.value.message
        assert "PEM" in caught.value.fix


def test_an_encrypted_key_is_refused_and_not_asked_for(tmp_path: Path, authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization

    pair = authority.sign("ann")
    key = serialization.load_pem_private_key(pair.key, None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(Refusal, match="not encrypted"):
        build_tls_context(Tls(cert_data=pair.cert, key_data=locked))
