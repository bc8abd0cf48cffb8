"""Which cluster a command means: one rule, whatever the machine has lying around."""

from __future__ import annotations

from pathlib import Path

import pytest

from remuda.api.errors import Refusal
from remuda.cli.app import main
from remuda.cli.session import Session
from remuda.runtime.state_dir import StateDir

CONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "https://{name}.example:6443"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts:
  - {{name: one, context: {{cluster: c, user: u, namespace: team-a}}}}
  - {{name: two, context: {{cluster: c, user: u}}}}
current-context: one
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("KUBECONFIG", "REMUDA_STATE", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(CONFIG.format(name="home"))
    (tmp_path / "named").write_text(CONFIG.format(name="named"))
    (tmp_path / "env").write_text(CONFIG.format(name="env"))
    return tmp_path


def server(session: Session) -> str:
    return session.access.server if session.access is not None else "embedded"


def test_without_a_word_it_is_the_cluster_of_this_user(home: Path) -> None:
    assert server(Session()) == "embedded", "~/.kube/config is nobody's word"


def test_a_kubeconfig_that_is_named_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(home / "env"))
    session = Session()
    session.choose(kubeconfig=home / "named")
    assert (server(session), session.namespace, session.is_embedded) == ("https://named.example:6443", "team-a", False)
    assert session.chosen_by == f"--kubeconfig {home / 'named'}"
    assert session.command_line("jobs") == f"remuda --kubeconfig {home / 'named'} jobs"


def test_a_context_is_one_of_the_files_that_kubectl_reads(home: Path) -> None:
    session = Session()
    session.choose(context="two")
    assert (server(session), session.namespace) == ("https://home.example:6443", "default")
    assert session.command_line("jobs") == "remuda --context two jobs"


def test_the_variable_counts_while_no_cluster_runs_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(home / "env"))
    session = Session()
    assert (server(session), session.chosen_by) == ("https://env.example:6443", "$KUBECONFIG")
    monkeypatch.setattr(StateDir, "holder", lambda self: 4711)
    assert server(Session()) == "embedded", "what `remuda up` runs is meant, as in its quickstart"


@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_state_directory_that_is_named_is_meant(home: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setenv("KUBECONFIG", str(home / "env"))
    session = Session()
    if way == "option":
        session.choose(state=home / "mine")
    else:
        monkeypatch.setenv("REMUDA_STATE", str(home / "mine"))
    assert (server(session), session.state.path) == ("embedded", home / "mine")


def test_two_clusters_at_once_are_refused(home: Path) -> None:
    session = Session()
    session.choose(state=home / "mine", context="two")
    with pytest.raises(Refusal, match="TwoClusters"):
        _ = session.access


def test_what_is_about_the_state_directory_refuses_a_kubeconfig(home: Path) -> None:
    session = Session()
    session.need_embedded("up")
    session.choose(kubeconfig=home / "named")
    with pytest.raises(Refusal, match="EmbeddedOnly"):
        session.need_embedded("up")


def test_a_file_that_is_not_there_is_named(home: Path) -> None:
    session = Session()
    session.choose(kubeconfig=home / "nowhere")
    with pytest.raises(Refusal, match="KubeconfigNotFound"):
        _ = session.access


def test_the_demo_is_not_played_on_a_cluster_that_is_named(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It makes one of its own, so the name would have been ignored."""
    assert main(["--kubeconfig", str(home / "named"), "demo"]) == 2
    assert "EmbeddedOnly: `remuda demo`" in capfd.readouterr().err
