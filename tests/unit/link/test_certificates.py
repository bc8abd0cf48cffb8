"""Certificates and tokens of a state directory."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
import yaml

from remuda.api.errors import Refusal
from remuda.embedded.apiserver.security.tokens import (
    apiserver_port_in_token_kubeconfig,
    load_security_token,
    write_token_kubeconfig,
)
from remuda.link.certificates import LinkCertificates

NOW = 1_750_000_000.0
YEAR_S = 365 * 86_400


def test_everything_is_its_owners_alone(tmp_path: Path) -> None:
    LinkCertificates(tmp_path / "pki").prepare([], NOW)
    load_security_token(tmp_path / "token")
    write_token_kubeconfig(tmp_path / "kubeconfig", server="https://127.0.0.1:1", ca=b"x", token="t")
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == 6
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700


def test_what_is_good_is_kept_and_what_is_not_is_made_anew(tmp_path: Path) -> None:
    pki = LinkCertificates(tmp_path)
    pki.prepare([], NOW)
    ca, first = pki.ca.read_bytes(), pki.certificate.read_bytes()
    pki.prepare([], NOW + 86_400)
    assert pki.certificate.read_bytes() == first
    pki.prepare(["10.1.2.3"], NOW)  # another address
    second = pki.certificate.read_bytes()
    assert second != first
    pki.prepare(["10.1.2.3"], NOW + YEAR_S)  # about to expire
    assert pki.certificate.read_bytes() != second
    pki.certificate.write_bytes(b"damaged")
    pki.prepare([], NOW)
    assert pki.ca.read_bytes() == ca
    pki.ca.unlink()
    pki.prepare([], NOW)  # a new CA signs a new certificate
    assert pki.ca.read_bytes() != ca


def test_a_client_that_trusts_the_ca_gets_through_and_others_do_not(tmp_path: Path) -> None:
    import time

    pki = LinkCertificates(tmp_path)
    context = pki.prepare([], time.time())
    for trust, works in ((str(pki.ca), True), (None, False)):
        ours, theirs = socket.socketpair()
        server = threading.Thread(target=_answer, args=(context, ours))
        server.start()
        client = ssl.create_default_context(cafile=trust)
        try:
            if works:
                with client.wrap_socket(theirs, server_hostname="127.0.0.1") as secure:
                    assert secure.recv(2) == b"ok"
            else:
                with pytest.raises(ssl.SSLCertVerificationError):
                    client.wrap_socket(theirs, server_hostname="127.0.0.1")
        finally:
            theirs.close()
            server.join()


def _answer(context: ssl.SSLContext, sock: socket.socket) -> None:
    try:
        with context.wrap_socket(sock, server_side=True) as secure:
            secure.sendall(b"ok")
    except (ssl.SSLError, OSError):
        sock.close()


def test_a_token_is_made_once_and_must_stay_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = load_security_token(path)
    assert len(token) >= 40
    assert load_security_token(path) == token
    path.chmod(0o644)
    with pytest.raises(Refusal) as caught:
        load_security_token(path)
    assert caught.value.reason == "TokenNotPrivate"


def test_the_port_of_last_time_is_found_in_the_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    assert apiserver_port_in_token_kubeconfig(path) == 0
    write_token_kubeconfig(path, server="https://127.0.0.1:4711", ca=b"ca", token="t")
    assert apiserver_port_in_token_kubeconfig(path) == 4711
    config = yaml.safe_load(path.read_text())
    assert config["users"][0]["user"] == {"token": "t"}
    for damage in (b"", b"{", b"a: b", b"[]"):
        path.write_bytes(damage)
        assert apiserver_port_in_token_kubeconfig(path) == 0


def test_parts_that_start_at_once_agree_on_a_token(tmp_path: Path) -> None:
    """Each part of a split cluster asks for the secret of the stream; whoever is first makes it."""
    path, together = tmp_path / "secret", threading.Barrier(8)
    found: list[str] = []

    def ask() -> None:
        together.wait()
        found.append(load_security_token(path))

    for _ in range(20):
        path.unlink(missing_ok=True)
        found.clear()
        asking = [threading.Thread(target=ask) for _ in range(8)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert found == [path.read_text()] * 8
        assert [p.name for p in tmp_path.iterdir()] == ["secret"]
