"""The benchmark of a fleet of agents runs from end to end in small, and a fleet that does not run passes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.agents_fleet import RENEWALS_PER_MINUTE, check_fleet_ran, count_requests
from bench.marks import Broken
from tests.kube.control_plane import binaries_dir

ROOT = Path(__file__).parents[2]
IDLE, STORM = "8 agents with nothing to do, 15 s, kube-apiserver", "a device of each of the 8 nodes fails at once"


@pytest.mark.slow
def test_bench_agents_measures_an_idle_fleet_and_a_storm(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.agents", "--quick", "--json", str(result)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    if not binaries_dir().is_dir():
        assert ended.returncode == 1
        assert "PASS" not in ended.stdout
        return
    assert ended.returncode == 0, ended.stdout + ended.stderr
    of = {(bar["group"], bar["name"]): bar["median"] for bar in json.loads(result.read_text())["bars"]}
    assert of[IDLE, "requests a minute and agent"] > 0
    assert of[STORM, "  POST incidents"] == 1
    assert (
        of[STORM, "API calls of the manager"] >= 3 * 8
    )  # an incident, what is done about it, and a verdict for each node


@pytest.mark.parametrize("renewals", [0.0, RENEWALS_PER_MINUTE / 2])
def test_a_fleet_that_does_not_run_is_no_measurement(renewals: float) -> None:
    with pytest.raises(Broken, match="they did not run"):
        check_fleet_ran(renewals, 120.0)
    check_fleet_ran(RENEWALS_PER_MINUTE, 120.0)
    check_fleet_ran(RENEWALS_PER_MINUTE - 2, 15.0)  # one of them just after the end


METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",subresource="",verb="PATCH"} 12
apiserver_request_total{code="409",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",subresource="",verb="PATCH"} 3
apiserver_request_total{code="200",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",subresource="",verb="PUT"} 5
apiserver_request_total{code="200",component="apiserver",dry_run="",group="remuda.dev",resource="incidents",subresource="status",verb="PATCH"} 1e+06
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="namespaces",subresource="",verb="GET"} 7
"""  # noqa: E501 - as a server says it


def test_the_servers_own_requests_are_not_the_fleets() -> None:
    requests, conflicts = count_requests(METRICS)
    assert requests == {("PATCH", "leases"): 15, ("PATCH", "incidents/status"): 1_000_000}
    assert conflicts == 3
