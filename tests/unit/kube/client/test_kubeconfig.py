"""Kubeconfig files: which are read, what wins, and a refusal with the fix for everything that cannot work."""

from __future__ import annotations

import base64
import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from remuda.api.errors import Refusal
from remuda.kube.client.access import Access, ExecPlugin
from remuda.kube.client.kubeconfig import load_kubeconfig, service_account_access

CONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "main",
    "clusters": [{"name": "east", "cluster": {"server": "https://east:6443"}}],
    "users": [{"name": "ann", "user": {"token": "secret"}}],
    "contexts": [{"name": "main", "context": {"cluster": "east", "user": "ann", "namespace": "team"}}],
}


def write(path: Path, config: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return path


def changed(**parts: Any) -> dict[str, Any]:
    """CONFIG with fields of its one cluster, user or context replaced: `cluster={...}`, `user={...}`, `context={...}`."""
    config = copy.deepcopy(CONFIG)
    for part, fields in parts.items():
        config[f"{part}s"][0][part] |= fields
    return config


def load(path: Path, context: str = "") -> Access:
    return load_kubeconfig(path, context=context, environ={}, home=path.parent)


def refused(path: Path, reason: str, context: str = "") -> Refusal:
    with pytest.raises(Refusal) as caught:
        load(path, context)
    assert caught.value.reason == reason, caught.value
    assert caught.value.message.endswith(".")
    assert caught.value.fix
    return caught.value


# What is read.


def test_a_file_gives_server_user_and_namespace(tmp_path: Path) -> None:
    access = load(write(tmp_path / "config", CONFIG))
    assert (access.server, access.namespace, access.context, access.user) == (
        "https://east:6443",
        "team",
        "main",
        "ann",
    )
    assert access.auth.token == "secret"
    assert access.is_encrypted


def test_json_is_yaml(tmp_path: Path) -> None:
    assert load(write(tmp_path / "config", json.dumps(CONFIG, indent=2))).auth.token == "secret"


def test_another_context_can_be_named(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["contexts"].append({"name": "bare", "context": {"cluster": "east"}})
    access = load(write(tmp_path / "config", config), "bare")
    assert (access.user, access.auth.token, access.namespace) == ("", "", "")


def test_names_and_tokens_may_look_like_numbers_or_dates(tmp_path: Path) -> None:
    text = """
current-context: 2026-01-01
clusters: [{name: 12, cluster: {server: "https://x", insecure-skip-tls-verify: true}}]
users: [{name: on, user: {token: 0123, username: ~}}]
contexts: [{name: 2026-01-01, context: {cluster: 12, user: on, namespace: null}}]
"""
    access = load(write(tmp_path / "config", text))
    assert (access.context, access.user, access.auth.token) == ("2026-01-01", "on", "0123")
    assert access.tls.is_insecure


def test_data_is_decoded_and_beats_the_file(tmp_path: Path) -> None:
    encoded = base64.b64encode(b"PEM").decode()
    access = load(
        write(
            tmp_path / "config",
            changed(
                cluster={
                    "certificate-authority-data": encoded,
                    "certificate-authority": "/nowhere",
                    "tls-server-name": "kubernetes",
                    "disable-compression": True,
                },
                user={"client-certificate-data": encoded, "client-key-data": f"{encoded[:2]}\n{encoded[2:]}"},
            ),
        )
    )
    assert (access.tls.ca_data, access.tls.ca_file, access.tls.server_name) == (b"PEM", None, "kubernetes")
    assert (access.tls.cert_data, access.tls.key_data, access.can_compress) == (b"PEM", b"PEM", False)


def test_relative_paths_count_from_the_file_that_holds_them(tmp_path: Path) -> None:
    for name in ("ca.crt", "me.crt", "me.key", "token"):
        write(tmp_path / "one" / name, "x")
    path = write(
        tmp_path / "one" / "config",
        changed(
            cluster={"certificate-authority": "ca.crt"},
            user={"client-certificate": "me.crt", "client-key": "./me.key", "tokenFile": "../one/token"},
        ),
    )
    access = load(path)
    assert access.tls.ca_file == tmp_path / "one" / "ca.crt"
    assert access.tls.cert_file == tmp_path / "one" / "me.crt"
    assert access.auth.token_file is not None
    assert access.auth.token_file.resolve() == tmp_path / "one" / "token"


def test_an_exec_plugin_is_read(tmp_path: Path) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./bin/login",
        "args": ["--now"],
        "env": [{"name": "REGION", "value": "east"}],
        "installHint": "Run `get login`.",
        "provideClusterInfo": True,
        "interactiveMode": "IfAvailable",
    }
    access = load(write(tmp_path / "config", changed(user={"exec": plugin})))
    assert access.auth.plugin == ExecPlugin(
        command=str(tmp_path / "bin" / "login"),
        args=("--now",),
        env=(("REGION", "east"),),
        install_hint="Run `get login`.",
        wants_cluster=True,
    )


def test_impersonation_becomes_headers(tmp_path: Path) -> None:
    user = {"as": "bob", "as-groups": ["a", "b"], "as-uid": "7", "as-user-extra": {"reason": ["x", "y"]}}
    assert load(write(tmp_path / "config", changed(user=user))).auth.impersonate == (
        ("Impersonate-User", "bob"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-reason", "x"),
        ("Impersonate-Extra-reason", "y"),
    )


@pytest.mark.parametrize(
    ("server", "meant"),
    [
        ("https://host:6443/", "https://host:6443"),
        ("https://host/clusters/c1", "https://host/clusters/c1"),
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("host:8080", "http://host:8080"),
        ("https://[::1]:6443", "https://[::1]:6443"),
    ],
)
def test_servers(tmp_path: Path, server: str, meant: str) -> None:
    assert load(write(tmp_path / "config", changed(cluster={"server": server}))).server == meant


# Which files.


def test_the_first_file_to_say_something_wins(tmp_path: Path) -> None:
    first = {
        "users": [{"name": "ann", "user": {"username": "ann", "password": "p"}}],
        "contexts": [{"name": "other", "context": {"cluster": "east", "user": "ann"}}],
    }
    one, two = write(tmp_path / "one", first), write(tmp_path / "two", CONFIG)
    environ = {"KUBECONFIG": os.pathsep.join(["", str(tmp_path / "absent"), str(one), str(two)])}
    access = load_kubeconfig(environ=environ, home=tmp_path)
    assert access.context == "main"  # only the second says which is current
    assert (access.auth.username, access.auth.token) == ("ann", "")  # and the user is not mixed from both
    assert access.origin == str(one)
    assert load_kubeconfig(environ=environ, home=tmp_path, context="other").server == "https://east:6443"


def test_a_named_file_beats_the_variable_and_the_variable_beats_the_home(tmp_path: Path) -> None:
    def named(server: str) -> dict[str, Any]:
        return changed(cluster={"server": server})

    home = tmp_path / "home"
    write(home / ".kube" / "config", named("https://home"))
    variable, given = write(tmp_path / "v", named("https://variable")), write(tmp_path / "g", named("https://given"))
    environ = {"KUBECONFIG": str(variable), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert load_kubeconfig(given, environ=environ, home=home).server == "https://given"
    assert load_kubeconfig(environ=environ, home=home).server == "https://variable"
    assert load_kubeconfig(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, home=home).server == "https://home"


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_without_a_file_the_pod_speaks_as_its_service_account(tmp_path: Path, host: str, server: str) -> None:
    account = tmp_path / "account"
    for name, text in (("token", "t"), ("ca.crt", "c"), ("namespace", "mine\n")):
        write(account / name, text)
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    access = load_kubeconfig(environ=environ, home=tmp_path, service_account=account)
    assert (access.server, access.namespace) == (server, "mine")
    assert (access.auth.token_file, access.tls.ca_file) == (account / "token", account / "ca.crt")


# What is refused.


def test_nothing_anywhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"NoCluster: .*remuda up"):
        load_kubeconfig(environ={}, home=tmp_path)
    with pytest.raises(Refusal, match="KubeconfigNotFound") as caught:
        load_kubeconfig(environ={"KUBECONFIG": str(tmp_path / "absent")}, home=tmp_path)
    assert "absent" in caught.value.message
    with pytest.raises(Refusal, match=r"NoServiceAccount: .*automount"):
        service_account_access(environ={"KUBERNETES_SERVICE_HOST": "h"}, service_account=tmp_path)
    with pytest.raises(Refusal, match="NotInCluster"):
        service_account_access(environ={})


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "KubeconfigNotFound")
    refused(tmp_path, "KubeconfigUnreadable")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    refused(tmp_path / "binary", "KubeconfigUnreadable")
    assert "line 2" in refused(write(tmp_path / "bad", "a: b\n  c: [\n"), "InvalidKubeconfig").message
    assert "users" in refused(write(tmp_path / "typed", {"users": "ann"}), "InvalidKubeconfig").message
    refused(write(tmp_path / "list", "[]"), "InvalidKubeconfig")
    double = {**CONFIG, "users": CONFIG["users"] * 2}
    assert "`ann`" in refused(write(tmp_path / "double", double), "InvalidKubeconfig").message


@pytest.mark.parametrize(("kind", "words"), [("TrainingJob", "a TrainingJob"), ("Endpoints", "an Endpoints")])
def test_a_file_of_another_kind_is_refused_by_that_name(tmp_path: Path, kind: str, words: str) -> None:
    path = write(tmp_path / "job.yaml", {"apiVersion": "v1", "kind": kind, "metadata": {"name": "a"}})
    found = refused(path, "NotAKubeconfig")
    assert found.message == f"{path} holds {words}, not a kubeconfig."
    assert found.fix == "Name the file of a cluster after --kubeconfig or in $KUBECONFIG."


def test_a_name_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "config", CONFIG)
    assert refused(path, "ContextNotFound", "mian").fix == "Did you mean `main`?"
    assert refused(path, "ContextNotFound", "zzz").fix == "There is main."
    empty = write(tmp_path / "empty", "")
    assert "main" in load(write(tmp_path / "kindless", {**CONFIG, "kind": None})).context
    assert refused(empty, "NoCurrentContext").message == f"{empty} has no contexts."
    assert "(main)" in refused(write(tmp_path / "current", {**CONFIG, "current-context": ""}), "NoCurrentContext").fix
    assert "west" in refused(write(tmp_path / "c", changed(context={"cluster": "west"})), "ClusterNotFound").message
    assert "bob" in refused(write(tmp_path / "u", changed(context={"user": "bob"})), "UserNotFound").message
    refused(write(tmp_path / "n", changed(context={"cluster": None})), "ClusterNotFound")


@pytest.mark.parametrize(
    ("fields", "reason", "said"),
    [
        ({"cluster": {"server": None}}, "InvalidServer", "no server"),
        ({"cluster": {"server": "ftp://host"}}, "InvalidServer", "ftp://host"),
        ({"cluster": {"server": "https://"}}, "InvalidServer", "not a server address"),
        ({"cluster": {"server": "https://host:port"}}, "InvalidServer", "not a server address"),
        ({"cluster": {"proxy-url": "http://proxy:3128"}}, "ProxyNotSupported", "http://proxy:3128"),
        ({"cluster": {"certificate-authority-data": "???"}}, "InvalidCertificateData", "cluster `east`"),
        ({"cluster": {"certificate-authority": "none.crt"}}, "FileMissing", "none.crt"),
        (
            {"cluster": {"certificate-authority-data": "UEVN", "insecure-skip-tls-verify": True}},
            "InsecureWithAuthority",
            "both",
        ),
        ({"user": {"client-certificate-data": "UEVN"}}, "IncompleteCertificate", "client-key"),
        ({"user": {"client-key-data": "UEVN"}}, "IncompleteCertificate", "client-certificate"),
        ({"user": {"tokenFile": "/none/token"}}, "FileMissing", "/none/token"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "AuthProviderNotSupported", "gcp"),
        ({"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}}, "InvalidExecPlugin", "no command"),
        (
            {"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}},
            "InvalidExecPlugin",
            "v1alpha1",
        ),
        (
            {
                "user": {
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": "x",
                        "interactiveMode": "Always",
                    }
                }
            },
            "ExecPluginNeedsTerminal",
            "ask questions",
        ),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, fields: dict[str, Any], reason: str, said: str) -> None:
    assert said in refused(write(tmp_path / "config", changed(**fields)), reason).message


def test_a_file_without_end_or_bottom_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("[" * 100_000)
    assert "nested too deeply" in refused(path, "InvalidKubeconfig").message
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "MiB" in refused(path, "KubeconfigUnreadable").message
