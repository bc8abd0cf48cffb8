"""From `Tls` to an `ssl.SSLContext`, rebuilt whenever one of its files changes.

It trusts what kubectl trusts: any certificate that is named is an anchor, also one that signed nothing (the certificate a
test server made for itself), and the formal rules that newer Pythons add by default are not applied, since cluster CAs in
the field break them and Go does not ask.

When a rotation is caught halfway (a certificate without its new key), the context that worked stays in use.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remuda.api.errors import Refusal
from remuda.kube.client.access import Tls
from remuda.kube.client.credentials import credential_file_mark


class TlsContexts:
    """`context()` before every connection: the same object as long as nothing has changed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._files = [path for path in (tls.ca_file, tls.cert_file, tls.key_file) if path is not None]
        self._built_of: object = None
        self._context: ssl.SSLContext | None = None

    def context(self, cert: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
        """`cert` and `key`: PEM from an exec plugin, instead of the configured ones."""
        made_of = ([credential_file_mark(path) for path in self._files], cert, key)
        if self._context is None or made_of != self._built_of:
            try:
                self._context = build_tls_context(self._tls, cert, key)
            except Refusal:
                if self._context is None:
                    raise
                return self._context  # and another try with the next request
            self._built_of = made_of
        return self._context


def build_tls_context(tls: Tls, cert: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
    if tls.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_data or tls.ca_file:
        _load_authority(context, tls)
    else:
        context.load_default_certs()
    cert, key = cert or tls.cert_data, key or tls.key_data
    if cert or tls.cert_file:
        _load_client_certificate(context, tls, cert, key)
    return context


def _load_authority(context: ssl.SSLContext, tls: Tls) -> None:
    source = "certificate-authority-data" if tls.ca_data else str(tls.ca_file)
    try:
        data = tls.ca_data if tls.ca_file is None or tls.ca_data else tls.ca_file.read_bytes()
        context.load_verify_locations(cadata=data.decode("ascii"))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        fix = "It must hold the CA's certificate as PEM text."
        raise Refusal("InvalidCertificate", f"{source} cannot be used: {_certificate_problem(error)}.", fix) from None


def _load_client_certificate(context: ssl.SSLContext, tls: Tls, cert: bytes, key: bytes) -> None:
    try:
        with _pem_as_file(cert, tls.cert_file) as cert_path, _pem_as_file(key, tls.key_file) as key_path:
            # Without a password given, an encrypted key would be asked for on the terminal.
            context.load_cert_chain(cert_path, key_path, password=lambda: "")
    except (OSError, ValueError) as error:
        source = "the client certificate and key" if cert or key else f"{tls.cert_file} with {tls.key_file}"
        fix = "They must be a PEM certificate and its own key, not encrypted."
        raise Refusal("InvalidCertificate", f"{source} cannot be used: {_certificate_problem(error)}.", fix) from None


def _certificate_problem(error: OSError | ValueError) -> str:
    return (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)).rstrip(".")


@contextmanager
def _pem_as_file(data: bytes, path: Path | None) -> Iterator[str]:
    """OpenSSL wants a path. Where the system can, the key stays in memory."""
    if not data and path is not None:
        yield str(path)
        return
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("remuda-key", os.MFD_CLOEXEC)
        try:
            os.write(handle, data)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile() as file:  # readable by its owner only
        file.write(data)
        file.flush()
        yield file.name
