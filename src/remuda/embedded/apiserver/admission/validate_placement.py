"""Where a pod may go and when: required node affinity and scheduling gates."""

from __future__ import annotations

from remuda.embedded.apiserver.admission import name_syntax
from remuda.embedded.apiserver.admission.field_errors import AdmissionField

_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")
_NUMBERS = ("Gt", "Lt")
_NODE_NAME = "metadata.name"


def validate_placement(spec: AdmissionField) -> None:
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    if required.is_set:
        terms = required["nodeSelectorTerms"]
        if not terms.items():
            terms.required("must have at least one node selector term")
        for term in terms.each():
            for expression in term["matchExpressions"].each():
                _validate_expression(expression)
            for field in term["matchFields"].each():
                _validate_node_field(field)
    names: set[str] = set()
    for gate in spec["schedulingGates"].each():
        name = gate["name"]
        if not name_syntax.is_qualified_name(name.text()):
            name.invalid("a gate is a qualified name")
        if name.text() in names:
            gate.duplicate(name.text())
        names.add(name.text())
    if names and spec["nodeName"].text():
        spec["nodeName"].forbidden("cannot be set until all schedulingGates have been cleared")


def _validate_expression(at: AdmissionField) -> None:
    operator, values = at["operator"], at["values"]
    if operator.text() in _WITH_VALUES:
        if not values.items():
            values.required("must be specified when `operator` is 'In' or 'NotIn'")
    elif operator.text() in _WITHOUT_VALUES:
        if values.items():
            values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif operator.text() in _NUMBERS:
        if len(values.items()) != 1:
            values.required("must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        operator.invalid("not a valid selector operator")
    if not name_syntax.is_qualified_name(at["key"].text()):
        at["key"].invalid("name part must be a qualified name")


def _validate_node_field(at: AdmissionField) -> None:
    if at["operator"].text() not in _WITH_VALUES:
        at["operator"].invalid("not a valid selector operator")
    elif len(at["values"].items()) != 1:
        at["values"].required("must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
    if at["key"].text() != _NODE_NAME:
        at["key"].invalid("not a valid field selector key")
