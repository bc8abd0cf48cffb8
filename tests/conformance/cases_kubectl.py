"""Cases of kubectl: the commands of everyday use, with the columns that users know."""

from __future__ import annotations

import json
import subprocess

from tests.conformance.bodies import KINDS, config, custom, definition, deployment, event, pod, training
from tests.conformance.cases_python_custom import define
from tests.conformance.catalogue import case
from tests.conformance.run import Run


def _columns(kind: str) -> None:
    _, _, namespaced, body = KINDS[kind]

    def play(run: Run) -> None:
        wanted = dict(body or event(ns=run.ns))
        if not namespaced:
            wanted["metadata"] = {**wanted["metadata"], "name": f"ku-{kind.lower()}"}
        group, version = {
            "AppsV1Api": ("apps", "v1"),
            "BatchV1Api": ("batch", "v1"),
            "CoordinationV1Api": ("coordination.k8s.io", "v1"),
            "SchedulingV1Api": ("scheduling.k8s.io", "v1"),
            "PolicyV1Api": ("policy", "v1"),
            "AutoscalingV2Api": ("autoscaling", "v2"),
            "DiscoveryV1Api": ("discovery.k8s.io", "v1"),
        }.get(KINDS[kind][0], ("", "v1"))
        wanted["apiVersion"] = f"{group}/{version}" if group else version
        run.kubectl("create", "-f", "-", stdin=json.dumps(wanted))
        name = wanted["metadata"]["name"]
        run.kubectl("get", wanted["kind"].lower(), name, "-o", "wide", "--show-labels")

    case("kubectl", f"columns-{kind.lower()}")(play)


for _kind in KINDS:
    _columns(_kind)


@case("kubectl", "apply-get-delete")
def apply(run: Run) -> None:
    run.kubectl("apply", "-f", "-", stdin=json.dumps(config()))
    run.kubectl("apply", "-f", "-", stdin=json.dumps(config()))
    run.kubectl("apply", "-f", "-", stdin=json.dumps(config(a="2", c="3")))
    run.kubectl("get", "configmap", "one", "-o", "json")
    run.kubectl("delete", "configmap", "one")
    run.kubectl("get", "configmap", "one")
    run.kubectl("get", "configmap")


@case("kubectl", "apply-server-side")
def server_side(run: Run) -> None:
    run.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(deployment()))
    run.kubectl("scale", "deployment", "one", "--replicas=5")
    run.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(deployment()))
    run.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(deployment()))
    run.kubectl("get", "deployment", "one", "-o", "json", "--show-managed-fields")


@case("kubectl", "apply-a-deployment")
def apply_deployment(run: Run) -> None:
    run.kubectl("apply", "-f", "-", stdin=json.dumps(deployment()))
    changed = deployment(replicas=4)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "none:2"
    run.kubectl("apply", "-f", "-", stdin=json.dumps(changed))
    run.kubectl("get", "deployment", "one", "-o", "json")
    run.kubectl("diff", "-f", "-", stdin=json.dumps(changed))


@case("kubectl", "apply-dry-run")
def dry_run(run: Run) -> None:
    run.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(config()))
    run.kubectl("get", "configmap", "one")
    run.kubectl("create", "configmap", "x", "--from-literal=a=b", "--dry-run=server", "-o", "json")


@case("kubectl", "trainingjob")
def trainingjob(run: Run) -> None:
    run.kubectl("apply", "-f", "-", stdin=json.dumps(training()))
    run.kubectl("get", "trainingjobs")
    run.kubectl("get", "tj", "one", "-o", "json")
    run.kubectl("patch", "tj", "one", "--type=merge", "-p", '{"spec":{"spares":1}}')
    run.kubectl("apply", "-f", "-", stdin=json.dumps(training(replicas=3)))
    run.kubectl("delete", "tj", "one")


@case("kubectl", "trainingjob-with-a-typo")
def typo(run: Run) -> None:
    body = training()
    body["spec"]["sparez"] = 1
    run.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    run.kubectl("apply", "--validate=false", "-f", "-", stdin=json.dumps(body))


@case("kubectl", "explain-trainingjob")
def explain(run: Run) -> None:
    run.kubectl("explain", "trainingjob", ok=True)
    run.kubectl("explain", "trainingjob.spec", ok=True)
    run.kubectl("explain", "trainingjob.spec.roles.replicas", ok=True)
    run.kubectl("explain", "trainingjob.spec.nosuch", ok=False)


@case("kubectl", "explain-pod")
def explain_pod(run: Run) -> None:
    run.kubectl("explain", "pod.spec.containers.image")


@case("kubectl", "labels-and-annotations")
def labels(run: Run) -> None:
    run.kubectl("create", "configmap", "one", "--from-literal=a=b")
    run.kubectl("label", "configmap", "one", "x=y", "z=w")
    run.kubectl("label", "configmap", "one", "x=other")
    run.kubectl("label", "configmap", "one", "x=other", "--overwrite")
    run.kubectl("label", "configmap", "one", "z-")
    run.kubectl("label", "configmap", "one", "bad=-value-")
    run.kubectl("annotate", "configmap", "one", "note=hello there")
    run.kubectl("get", "configmap", "-l", "x=other", "-o", "json")


@case("kubectl", "patch")
def patch(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(deployment()))
    side = '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"s"}]}}}}'
    run.kubectl("patch", "deployment", "one", "-p", side, "-o", "json")
    run.kubectl(
        "patch", "deployment", "one", "--type=json", "-p", '[{"op":"remove","path":"/spec/template/spec/containers/1"}]'
    )
    run.kubectl("patch", "deployment", "one", "--type=merge", "-p", '{"spec":{"replicas":9}}', "-o", "json")
    run.kubectl("patch", "deployment", "one", "--subresource=status", "-p", '{"status":{"replicas":9}}', "-o", "json")
    run.kubectl("patch", "deployment", "one", "-p", "{not json")


@case("kubectl", "scale")
def scale(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(deployment()))
    run.kubectl("scale", "deployment", "one", "--replicas=6")
    run.kubectl("scale", "deployment", "one", "--replicas=7", "--current-replicas=2")
    run.kubectl("get", "deployment", "one")
    run.kubectl("scale", "deployment", "nosuch", "--replicas=1")
    run.kubectl("autoscale", "deployment", "one", "--min=1", "--max=4")


@case("kubectl", "set-image-and-rollout-restart")
def set_image(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(deployment()))
    run.kubectl("set", "image", "deployment/one", "main=none:9")
    run.kubectl("rollout", "restart", "deployment/one")
    run.kubectl("get", "deployment", "one", "-o", "jsonpath={.spec.template.spec.containers[0].image}")


@case("kubectl", "describe")
def describe(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(pod()))
    run.kubectl("create", "-f", "-", stdin=json.dumps(event(about="one", ns=run.ns)))
    run.kubectl("describe", "pod", "one")
    run.kubectl("create", "-f", "-", stdin=json.dumps(deployment()))
    run.kubectl("describe", "deployment", "one")
    run.kubectl("describe", "namespace", run.ns)


@case("kubectl", "describe-a-trainingjob")
def describe_job(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(training()))
    run.kubectl("describe", "trainingjob", "one")


@case("kubectl", "wait")
def wait(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(deployment()))
    status = '{"status":{"conditions":[{"type":"Available","status":"True"}]}}'
    run.kubectl("patch", "deployment", "one", "--subresource=status", "-p", status)
    run.kubectl("wait", "deployment/one", "--for=condition=Available", "--timeout=10s", ok=True)
    run.kubectl("wait", "deployment/one", "--for=jsonpath={.spec.replicas}=2", "--timeout=10s", ok=True)
    run.kubectl("delete", "deployment", "one", "--wait=false")
    run.kubectl("wait", "deployment/one", "--for=delete", "--timeout=10s", ok=True)


@case("kubectl", "get-watch")
def get_watch(run: Run) -> None:
    """Two events and out: --output-watch-events shows both; the server ends the request after a second."""
    run.kubectl("create", "-f", "-", stdin=json.dumps(config()))
    watching = subprocess.Popen(
        [run.server.kubectl, "-n", run.ns, "get", "configmap", "-w", "--output-watch-events", "--no-headers"],
        stdout=subprocess.PIPE,
        text=True,
        env={"KUBECONFIG": str(run.server.kubeconfig), "HOME": str(run.server.home), "NO_PROXY": "*"},
    )
    assert watching.stdout is not None
    try:
        lines = [watching.stdout.readline().split()[:3]]
        run.server.must("POST", f"/api/v1/namespaces/{run.ns}/configmaps", config("two"))
        lines.append(watching.stdout.readline().split()[:3])
        run.server.must("DELETE", f"/api/v1/namespaces/{run.ns}/configmaps/two")
        lines.append(watching.stdout.readline().split()[:3])
    finally:
        watching.kill()
        watching.communicate()
    run.note("kubectl get -w", lines)


@case("kubectl", "delete-options")
def delete(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(pod(nodeName="ghost")))
    run.kubectl("delete", "pod", "one", "--wait=false", "--grace-period=9")
    run.kubectl("get", "pod", "one", "-o", "json")
    run.kubectl("delete", "pod", "one", "--force", "--grace-period=0")
    run.kubectl("get", "pod", "one")
    run.kubectl("create", "-f", "-", stdin=json.dumps(deployment()))
    run.kubectl("delete", "deployment", "one", "--cascade=orphan", "--wait=false")
    run.kubectl("delete", "pod", "nosuch")
    run.kubectl("delete", "pod", "nosuch", "--ignore-not-found")
    run.kubectl("delete", "configmap", "--all")


@case("kubectl", "api-resources")
def api_resources(run: Run) -> None:
    for group in ("remuda.dev", "apps", "batch", "policy"):
        run.kubectl("api-resources", f"--api-group={group}", "--no-headers", ok=True)


@case("kubectl", "auth")
def auth(run: Run) -> None:
    run.kubectl("auth", "can-i", "create", "pods", ok=True)
    run.kubectl("auth", "can-i", "delete", "trainingjobs.remuda.dev", ok=True)
    run.kubectl("auth", "can-i", "get", "/healthz", ok=True)


@case("kubectl", "whoami")
def whoami(run: Run) -> None:
    run.kubectl("auth", "whoami")


@case("kubectl", "get-forms")
def get_forms(run: Run) -> None:
    for name in ("a", "b", "c"):
        run.kubectl("create", "configmap", name, f"--from-literal=k={name}")
    run.kubectl("get", "cm", "-o", "name")
    run.kubectl("get", "cm", "--chunk-size=1", "-o", "name")
    run.kubectl("get", "cm", "-o", "custom-columns=NAME:.metadata.name,K:.data.k")
    run.kubectl("get", "cm", "--sort-by=.data.k", "--no-headers")
    run.kubectl("get", "cm", "--field-selector=metadata.name=b", "-o", "yaml")
    run.kubectl("get", "cm/a", "cm/b")
    run.kubectl("get", "cm", "nosuch")
    run.kubectl("get", "nosuchkind")
    run.kubectl("get", "cm", "-l", "a in (")
    run.kubectl("get", "pods,cm")


@case("kubectl", "get-all")
def get_all(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(pod()))
    run.kubectl("create", "-f", "-", stdin=json.dumps(deployment()))
    run.kubectl("get", "all")


@case("kubectl", "replace-and-edit")
def replace(run: Run) -> None:
    run.kubectl("create", "-f", "-", stdin=json.dumps(config()))
    run.kubectl("replace", "-f", "-", stdin=json.dumps(config(z="1")))
    stale = config(z="2")
    stale["metadata"]["resourceVersion"] = "1"
    run.kubectl("replace", "-f", "-", stdin=json.dumps(stale))
    run.kubectl("replace", "-f", "-", stdin=json.dumps(config("nosuch")))
    run.kubectl("create", "-f", "-", stdin=json.dumps(config()))


@case("kubectl", "generators")
def generators(run: Run) -> None:
    run.kubectl("create", "deployment", "web", "--image=none:1", "-o", "json")
    run.kubectl("expose", "deployment", "web", "--port=80", "-o", "json")
    run.kubectl("create", "secret", "generic", "s", "--from-literal=a=b", "-o", "json")
    run.kubectl("create", "job", "j", "--image=none:1", "-o", "json")
    run.kubectl("create", "quota", "q", "--hard=pods=3", "-o", "json")
    run.kubectl("create", "poddisruptionbudget", "p", "--selector=app=web", "--min-available=1", "-o", "json")
    run.kubectl("create", "serviceaccount", "robot", "-o", "json")


@case("kubectl", "cordon-and-taint")
def cordon(run: Run) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "ku-cordoned"}}
    run.kubectl("create", "-f", "-", stdin=json.dumps(node))
    run.kubectl("cordon", "ku-cordoned")
    run.kubectl("get", "node", "ku-cordoned")
    run.kubectl("uncordon", "ku-cordoned")
    run.kubectl("taint", "node", "ku-cordoned", "k=v:NoSchedule")
    run.kubectl("describe", "node", "ku-cordoned")


@case("kubectl", "custom-kind")
def custom_kind(run: Run) -> None:
    define(run, definition("hops", "Hop"))
    run.kubectl("apply", "-f", "-", stdin=json.dumps(custom("Hop", size=3)))
    run.kubectl("get", "hops")
    run.kubectl("apply", "-f", "-", stdin=json.dumps(custom("Hop", size=30)))
    run.kubectl("scale", "hop", "one", "--replicas=4")
    run.kubectl("get", "crd", "hops.suite.example")
    run.kubectl("explain", "hop.spec")
    run.kubectl("delete", "crd", "hops.suite.example")


@case("kubectl", "bad-files")
def bad_files(run: Run) -> None:
    run.kubectl("apply", "-f", "-", stdin="{ not json")
    run.kubectl("apply", "-f", "-", stdin=json.dumps({**config(), "kind": "NoSuch"}))
    run.kubectl("apply", "-f", "-", stdin=json.dumps({**config(), "apiVersion": "nosuch/v1"}))
    run.kubectl("apply", "-f", "-", stdin=json.dumps({**config(), "dataa": {}}))
    run.kubectl("create", "-f", "-", stdin=json.dumps(pod(containers=[])))
    run.kubectl("create", "-f", "-", stdin=json.dumps(pod(replicas=3)))


@case("kubectl", "raw")
def raw(run: Run) -> None:
    run.kubectl("get", "--raw", "/healthz", raw=True, ok=True)
    run.kubectl("get", "--raw", "/apis/remuda.dev", raw=True, ok=True)
    run.kubectl("get", "--raw", "/nosuch", raw=True, ok=False)


@case("kubectl", "logs-without-a-node")
def logs_without_a_node(run: Run) -> None:
    """What is answered before a kubelet is asked."""
    run.kubectl("logs", "nosuch", ok=False)
    run.kubectl("create", "-f", "-", stdin=json.dumps(pod()))
    run.kubectl("logs", "one", ok=True)  # it has no node yet: nothing was written
    run.kubectl("logs", "one", "--since=5s", "--timestamps", ok=True)
    run.kubectl("logs", "one", "-c", "nosuch", ok=False)
    for query in (
        "sinceSeconds=0",
        "sinceSeconds=-1",
        "limitBytes=0",
        "tailLines=-1",
        "sinceSeconds=1&sinceTime=2027-01-15T08:00:00Z",
        "sinceSeconds=soon",
        "sinceTime=yesterday",
    ):
        run.kubectl("get", "--raw", f"/api/v1/namespaces/{run.ns}/pods/one/log?{query}", raw=True, ok=False)
