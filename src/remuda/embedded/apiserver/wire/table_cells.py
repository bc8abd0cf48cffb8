"""What the cells of a table show: ages, states of pods and nodes, ports, conditions. Pure; wire dict in, text out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from remuda.api.meta import JsonObject

NONE = "<none>"
UNKNOWN = "<unknown>"


def cell_field(body: Any, *path: str) -> Any:
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body


def age_cell(moment: Any, now: float) -> str:
    """How long ago, as kubectl writes it."""
    if not isinstance(moment, str) or not moment:
        return UNKNOWN
    try:
        seconds = now - datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return UNKNOWN
    return duration_cell_text(seconds)


def duration_cell_text(seconds: float) -> str:
    """Kubernetes' HumanDuration: the larger the span, the fewer the details."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(0, total)
    if total < 120:
        return f"{total}s"
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    years, rest = divmod(days, 365)
    return f"{years}y{rest}d" if years < 8 and rest else f"{years}y"


def created_cell(body: JsonObject, now: float) -> str:
    return age_cell(cell_field(body, "metadata", "creationTimestamp"), now)


def joined_cell(values: Iterable[Any], none: str = NONE) -> str:
    return ",".join(str(v) for v in values) or none


def labels_cell(labels: Any) -> str:
    return joined_cell(f"{k}={v}" for k, v in sorted((labels or {}).items()))


def selector_cell(given: Any) -> str:
    """A label selector as text; a plain map of labels reads the same."""
    if not isinstance(given, dict):
        return NONE
    if "matchLabels" not in given and "matchExpressions" not in given:
        return labels_cell(given)
    parts = [f"{k}={v}" for k, v in sorted((given.get("matchLabels") or {}).items())]
    for each in given.get("matchExpressions") or ():
        key, op, values = each.get("key"), each.get("operator"), ",".join(each.get("values") or ())
        parts.append({"Exists": f"{key}", "DoesNotExist": f"!{key}"}.get(op) or f"{key} {str(op).lower()} ({values})")
    return joined_cell(parts)


def condition_cell(body: JsonObject, type_: str) -> str:
    for each in cell_field(body, "status", "conditions") or ():
        if each.get("type") == type_:
            return str(each.get("status"))
    return ""


# Pods.


def pod_ready_cell(body: JsonObject, now: float) -> str:
    statuses = cell_field(body, "status", "containerStatuses") or ()
    ready = sum(1 for s in statuses if s.get("ready") and cell_field(s, "state", "running") is not None)
    return f"{ready}/{len(cell_field(body, 'spec', 'containers') or ())}"


def pod_status_cell(body: JsonObject, now: float) -> str:
    status = body.get("status") or {}
    reason = str(status.get("reason") or status.get("phase") or UNKNOWN)
    is_initializing, text = _initializing_cell(body)
    if is_initializing:
        reason = text
    else:
        has_running = False
        for each in reversed(status.get("containerStatuses") or ()):
            state = each.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting")
            if waiting and waiting.get("reason"):
                reason = waiting["reason"]
            elif ended is not None:
                reason = ended.get("reason") or _terminated_cell(ended)
            elif each.get("ready") and state.get("running") is not None:
                has_running = True
        if reason == "Completed" and has_running:
            reason = "Running" if condition_cell(body, "Ready") == "True" else "NotReady"
    if cell_field(body, "metadata", "deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    if reason == status.get("phase") == "Pending":
        for each in status.get("conditions") or ():
            if each.get("type") == "PodScheduled" and each.get("reason") == "SchedulingGated":
                return "SchedulingGated"
    return reason


def _initializing_cell(body: JsonObject) -> tuple[bool, str]:
    statuses = cell_field(body, "status", "initContainerStatuses") or ()
    total = len(cell_field(body, "spec", "initContainers") or ())
    for index, each in enumerate(statuses):
        state = each.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if each.get("started") and _is_restartable_init(body, each.get("name")):
            continue
        if ended is not None:
            return True, f"Init:{ended.get('reason') or _terminated_cell(ended)}"
        if waiting and waiting.get("reason") not in (None, "", "PodInitializing"):
            return True, f"Init:{waiting['reason']}"
        return True, f"Init:{index}/{total}"
    return False, ""


def _is_restartable_init(body: JsonObject, name: Any) -> bool:
    found = cell_field(body, "spec", "initContainers") or ()
    return any(c.get("name") == name and c.get("restartPolicy") == "Always" for c in found)


def _terminated_cell(ended: JsonObject) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def pod_restarts_cell(body: JsonObject, now: float) -> str:
    statuses = cell_field(body, "status", "containerStatuses") or ()
    count = sum(int(s.get("restartCount") or 0) for s in statuses)
    moments = [cell_field(s, "lastState", "terminated", "finishedAt") for s in statuses]
    last = max((m for m in moments if m), default="")
    return f"{count} ({age_cell(last, now)} ago)" if count and last else str(count)


# Nodes.


def node_status_cell(body: JsonObject, now: float) -> str:
    ready = condition_cell(body, "Ready")
    text = {"True": "Ready", "": "Unknown"}.get(ready, "NotReady")
    return f"{text},SchedulingDisabled" if cell_field(body, "spec", "unschedulable") else text


def node_roles_cell(body: JsonObject, now: float) -> str:
    roles = set()
    for key, value in (cell_field(body, "metadata", "labels") or {}).items():
        if key.startswith("node-role.kubernetes.io/"):
            roles.add(key.partition("/")[2])
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    return joined_cell(sorted(filter(None, roles)))


def node_address_cell(body: JsonObject, type_: str) -> str:
    for each in cell_field(body, "status", "addresses") or ():
        if each.get("type") == type_:
            return str(each.get("address"))
    return NONE


def node_info_cell(body: JsonObject, field: str) -> str:
    return str(cell_field(body, "status", "nodeInfo", field) or UNKNOWN)


# Services and endpoints.


def service_ports_cell(body: JsonObject, now: float) -> str:
    parts = []
    for port in cell_field(body, "spec", "ports") or ():
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        parts.append(f"{port.get('port')}{node}/{port.get('protocol') or 'TCP'}")
    return joined_cell(parts)


def service_external_cell(body: JsonObject, now: float) -> str:
    spec = body.get("spec") or {}
    external = list(spec.get("externalIPs") or ())
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName") or NONE)
    if spec.get("type") == "LoadBalancer":
        found = [i.get("ip") or i.get("hostname") for i in cell_field(body, "status", "loadBalancer", "ingress") or ()]
        return joined_cell([*filter(None, found), *external], "<pending>")
    return joined_cell(external)


def slice_endpoints_cell(body: JsonObject, now: float) -> str:
    found = [a for e in body.get("endpoints") or () for a in e.get("addresses") or ()]
    return _first_of_cell(found, 3)


def slice_ports_cell(body: JsonObject, now: float) -> str:
    return _first_of_cell([p.get("port") for p in body.get("ports") or ()], 3) if body.get("ports") else "<unset>"


def _first_of_cell(found: list[Any], count: int) -> str:
    if len(found) <= count:
        return joined_cell(found, "<unset>")
    return f"{joined_cell(found[:count])} + {len(found) - count} more..."


# Workloads.


def template_containers_cell(body: JsonObject, field: str) -> str:
    return joined_cell(c.get(field) for c in cell_field(body, "spec", "template", "spec", "containers") or ())


def job_status_cell(body: JsonObject, now: float) -> str:
    if cell_field(body, "metadata", "deletionTimestamp"):
        return "Terminating"
    for type_, text in (
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if condition_cell(body, type_) == "True":
            return text
    return "Running"


def job_completions_cell(body: JsonObject, now: float) -> str:
    spec, done = body.get("spec") or {}, cell_field(body, "status", "succeeded") or 0
    if spec.get("completions") is not None:
        return f"{done}/{spec['completions']}"
    parallelism = int(spec.get("parallelism") or 0)
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def job_duration_cell(body: JsonObject, now: float) -> str:
    started, ended = cell_field(body, "status", "startTime"), cell_field(body, "status", "completionTime")
    if not started:
        return ""
    end = datetime.fromisoformat(ended).timestamp() if ended else now
    return duration_cell_text(end - datetime.fromisoformat(started).timestamp())


# Policy.


def quota_cell(body: JsonObject, *, limits: bool) -> str:
    hard, used = (
        cell_field(body, "status", "hard") or cell_field(body, "spec", "hard") or {},
        cell_field(body, "status", "used") or {},
    )
    names = sorted(n for n in hard if n.startswith("limits.") is limits)
    return ", ".join(f"{n}: {used.get(n, 0)}/{hard[n]}" for n in names)


# Events.


def event_object_cell(body: JsonObject, now: float) -> str:
    kind, name = cell_field(body, "involvedObject", "kind") or "", cell_field(body, "involvedObject", "name") or ""
    return f"{kind.lower()}/{name}" if kind else str(name)


def event_source_cell(body: JsonObject, now: float) -> str:
    component = cell_field(body, "source", "component") or body.get("reportingComponent") or ""
    host = cell_field(body, "source", "host") or body.get("reportingInstance") or ""
    return f"{component}, {host}" if component and host else str(component)


def event_last_cell(body: JsonObject, now: float) -> str:
    first = (
        cell_field(body, "eventTime")
        or cell_field(body, "firstTimestamp")
        or cell_field(body, "metadata", "creationTimestamp")
    )
    last = cell_field(body, "series", "lastObservedTime") or cell_field(body, "lastTimestamp") or first
    return age_cell(last, now)


def event_first_cell(body: JsonObject, now: float) -> str:
    return age_cell(
        cell_field(body, "firstTimestamp")
        or cell_field(body, "eventTime")
        or cell_field(body, "metadata", "creationTimestamp"),
        now,
    )


def event_count_cell(body: JsonObject, now: float) -> int:
    return int(cell_field(body, "series", "count") or body.get("count") or 1)


# Autoscalers.


def hpa_targets_cell(body: JsonObject, now: float) -> str:
    current = cell_field(body, "status", "currentMetrics") or ()
    parts = []
    for index, metric in enumerate(cell_field(body, "spec", "metrics") or ()):
        source = str(metric.get("type") or "")
        inner = metric.get(source[:1].lower() + source[1:]) or {}
        target = inner.get("target") or {}
        seen = current[index].get(source[:1].lower() + source[1:]) if index < len(current) else None
        value = cell_field(seen, "current", "averageUtilization")
        now_text = f"{value}%" if value is not None else cell_field(seen, "current", "averageValue") or UNKNOWN
        if target.get("averageUtilization") is not None:
            wanted = f"{target['averageUtilization']}%"
        else:
            wanted = str(target.get("averageValue") or target.get("value") or "<auto>")
        name = cell_field(inner, "name")
        parts.append(f"{name}: {now_text}/{wanted}" if name else f"{now_text}/{wanted}")
    return ", ".join(parts) or NONE


def access_modes_cell(body: JsonObject) -> str:
    short = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
    found = cell_field(body, "status", "accessModes") or ()
    return ",".join(short.get(m, m) for m in found)
