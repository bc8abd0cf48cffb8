"""Required node affinity: which nodes a pod may go to, by their labels and their name. Pure; Kubernetes' rules.

A pod may go where one of its terms holds, and a term holds when all its requirements do. A term without any holds nowhere, and
so does one that makes no sense (an unknown operator, a bound that is no number): where somebody wanted something that cannot be
understood, nowhere is better than anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from remuda.api.kubernetes.core_v1 import NodeSelectorRequirement, NodeSelectorTerm, PodSpec
from remuda.api.selectors import Requirement

NODE_NAME_FIELD = "metadata.name"
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent", "Gt": ">", "Lt": "<"}


class NodeTerm(msgspec.Struct, frozen=True):
    """Requirements of a node's labels and of its name. `is_possible`: False for one that holds nowhere."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    is_possible: bool = True


NodeTerms = tuple[NodeTerm, ...] | None  # None: anywhere


def required_node_terms(spec: PodSpec) -> NodeTerms:
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    return None if required is None else tuple(_node_term(term) for term in required.node_selector_terms)


def is_node_in_terms(terms: NodeTerms, name: str, labels: Mapping[str, str]) -> bool:
    return terms is None or any(_holds(term, name, labels) for term in terms)


def _holds(term: NodeTerm, name: str, labels: Mapping[str, str]) -> bool:
    return (
        term.is_possible
        and all(requirement.matches(labels) for requirement in term.labels)
        and all(requirement.matches({NODE_NAME_FIELD: name}) for requirement in term.fields)
    )


def _node_term(term: NodeSelectorTerm) -> NodeTerm:
    labels, fields = _requirements(term.match_expressions), _requirements(term.match_fields)
    if (
        not (labels or fields)
        or None in labels
        or None in fields
        or any(f and f.key != NODE_NAME_FIELD for f in fields)
    ):
        return NodeTerm(is_possible=False)
    return NodeTerm(tuple(filter(None, labels)), tuple(filter(None, fields)))


def _requirements(given: Iterable[NodeSelectorRequirement]) -> list[Requirement | None]:
    return [_requirement(each) for each in given]


def _requirement(given: NodeSelectorRequirement) -> Requirement | None:
    operator = _OPERATORS.get(given.operator)
    values = tuple(given.values)
    if operator in (">", "<"):
        is_sound = len(values) == 1 and values[0].removeprefix("-").isdecimal() and len(values[0]) < 20
    else:
        is_sound = bool(values) == (operator in ("in", "notin"))
    return Requirement(given.key, operator, values) if operator is not None and is_sound else None
