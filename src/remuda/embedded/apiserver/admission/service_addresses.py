"""Addresses of Services: each gets a cluster IP (and node ports) of its own, the lowest that is free.

On the embedded cluster nothing answers there; clients and manifests rely on the fields being filled and stable.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from remuda.api.meta import JsonObject, json_objects_in_api_list, wire_list_or_empty, wire_map_or_empty
from remuda.embedded.apiserver.admission.request import CREATE, UPDATE, AdmissionRequest, ReadObjects

SERVICE_RANGE = ipaddress.ip_network("10.96.0.0/16")
NODE_PORTS = range(30000, 32768)
_FIRST = 10  # the lowest few are by convention the API's and the DNS'


class ServiceAddresses:
    def __init__(self, read: ReadObjects) -> None:
        self._read = read

    def admit(self, request: AdmissionRequest, body: JsonObject) -> JsonObject:
        spec = body.get("spec")
        if not isinstance(spec, dict) or request.operation not in (CREATE, UPDATE):
            return body
        filled = dict(spec)
        if spec.get("type") == "ExternalName":
            for field in ("clusterIP", "clusterIPs") if request.operation == UPDATE else ():
                filled.pop(field, None)
        else:
            self._address(request, filled)
        if spec.get("type") in ("NodePort", "LoadBalancer"):
            self._ports(request, filled)
        return {**body, "spec": filled}

    def _address(self, request: AdmissionRequest, spec: JsonObject) -> None:
        old = (request.old or {}).get("spec") or {}
        if not spec.get("clusterIP"):
            given = spec.get("clusterIPs")
            first = given[0] if isinstance(given, list) and given else None
            spec["clusterIP"] = first or old.get("clusterIP") or self._free_address()
        spec["clusterIPs"] = [spec["clusterIP"]]
        family = "IPv6" if ":" in str(spec["clusterIP"]) else "IPv4"
        spec.setdefault("ipFamilies", [family])
        spec.setdefault("ipFamilyPolicy", "SingleStack")

    def _ports(self, request: AdmissionRequest, spec: JsonObject) -> None:
        ports = spec.get("ports")
        if not isinstance(ports, list):
            return
        before = json_objects_in_api_list(wire_map_or_empty((request.old or {}).get("spec")).get("ports"))
        old = {port.get("port"): port.get("nodePort") for port in before if isinstance(port.get("port"), int)}
        given = [*ports, *(port for service in self._services() for port in wire_list_or_empty(service.get("ports")))]
        taken = {n for port in json_objects_in_api_list(given) if isinstance(n := port.get("nodePort"), int)}
        spec["ports"] = [self._port(port, old, taken) for port in ports]

    def _port(self, port: Any, old: dict[Any, Any], taken: set[Any]) -> Any:
        if not isinstance(port, dict) or port.get("nodePort"):
            return port
        kept = old.get(port["port"]) if isinstance(port.get("port"), int) else None
        number = kept or next((n for n in NODE_PORTS if n not in taken), None)
        taken.add(number)
        return {**port, "nodePort": number} if number else port

    def _free_address(self) -> str:
        taken = {str(s.get("clusterIP")) for s in self._services()}
        for offset in range(_FIRST, SERVICE_RANGE.num_addresses - 1):
            address = str(SERVICE_RANGE[offset])
            if address not in taken:
                return address
        return "None"

    def _services(self) -> list[JsonObject]:
        return [wire_map_or_empty(s.get("spec")) for s in self._read.list("", "services")]
