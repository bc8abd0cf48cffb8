"""Server-side apply and the owners that other writes leave behind, rule by rule."""

import copy
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.patching import (
    ApplyConflict,
    builtin_kind_schema,
    custom_kind_patch_schema,
    manager_name,
    server_side_apply,
    track_field_owners,
)
from remuda.embedded.apiserver.patching.field_owners import MAX_UPDATERS
from tests.builders.patches import GADGET_SCHEMA

CONFIG_MAP = builtin_kind_schema("v1", "ConfigMap")
POD = builtin_kind_schema("v1", "Pod")
assert CONFIG_MAP is not None
assert POD is not None
GADGET = custom_kind_patch_schema(GADGET_SCHEMA, has_status=True)
NOW = 1_700_000_000.0
STAMP = "2023-11-14T22:13:20Z"

Body = dict[str, Any]


def cm(data: Any = None, **meta: Any) -> Body:
    body: Body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **meta}}
    return body if data is None else {**body, "data": data}


def gadget(**spec: Any) -> Body:
    return {"apiVersion": "patching.remuda.dev/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": spec}


def applied(live: Body | None, body: Body, manager: str = "anna", *, force: bool = False, now: float = NOW) -> Body:
    before = copy.deepcopy([live, body])
    schema = GADGET if body["kind"] == "Gadget" else CONFIG_MAP
    assert schema is not None
    result = server_side_apply(live, body, manager, force, schema, now)
    assert [live, body] == before
    return result


def updated(old: Body | None, new: Body, manager: str = "bert", *, now: float = NOW, subresource: str = "") -> Body:
    before = copy.deepcopy([old, new])
    schema = GADGET if new["kind"] == "Gadget" else CONFIG_MAP
    assert schema is not None
    result = track_field_owners(old, new, manager, schema, now, subresource)
    assert [old, new] == before
    return result


def owned(body: Body) -> dict[str, Any]:
    """Fields by owner, "anna/Apply"."""
    entries = body["metadata"].get("managedFields", [])
    return {f"{entry['manager']}/{entry['operation']}": entry["fieldsV1"] for entry in entries}


def stored(body: Body) -> Body:
    return {**body, "metadata": {**body["metadata"], "uid": "u"}}


# Applying.


def test_an_applier_owns_the_leaves_she_names() -> None:
    body = applied(None, cm({"a": "1"}, labels={"x": "1"}))
    assert body["data"] == {"a": "1"}
    assert body["metadata"]["managedFields"] == [
        {
            "manager": "anna",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": STAMP,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}}, "f:metadata": {"f:labels": {"f:x": {}}}},
        }
    ]


def test_applying_the_same_again_is_no_write() -> None:
    live = applied(None, cm({"a": "1"}))
    assert applied(live, cm({"a": "1"}), now=NOW + 9) is live
    assert applied(live, cm({"a": "1"}, labels=None), now=NOW + 9) is not live


def test_what_is_given_up_goes_unless_another_has_it() -> None:
    live = applied(applied(None, cm({"a": "1", "b": "1"})), cm({"a": "1"}), "carl")
    live = applied(live, cm())
    assert live["data"] == {"a": "1"}
    assert owned(live) == {"carl/Apply": {"f:data": {"f:a": {}}}}
    live = applied(live, cm(), "carl")
    assert "data" not in live
    assert owned(live) == {}


def test_what_nobody_owns_stays_beside_what_somebody_does() -> None:
    live = applied(applied(None, cm({"a": "1"})), cm({"b": "1"}), "carl")
    live = {**live, "data": {**live["data"], "unowned": "1"}}
    live = applied(live, cm())
    assert live["data"] == {"b": "1", "unowned": "1"}
    assert "data" not in applied(live, cm(), "carl")


def test_a_changed_value_of_another_conflicts_and_names_every_field() -> None:
    live = updated(applied(None, cm({"a": "1"})), cm({"a": "1", "b": "1"}), "bert")
    with pytest.raises(ApplyConflict) as error:
        applied(live, cm({"a": "2", "b": "2"}), "carl")
    assert (error.value.code, error.value.reason) == (409, "Conflict")
    causes = [(cause.reason, cause.message, cause.field) for cause in error.value.causes]
    assert causes == [
        ("FieldManagerConflict", 'conflict with "anna"', ".data.a"),
        ("FieldManagerConflict", 'conflict with "bert" using v1', ".data.b"),
    ]
    assert error.value.as_status().details is not None
    assert "force" in error.value.fix


def test_force_takes_over() -> None:
    live = applied(applied(None, cm({"a": "1", "b": "1"})), cm({"a": "2"}), "carl", force=True)
    assert live["data"] == {"a": "2", "b": "1"}
    assert owned(live) == {"anna/Apply": {"f:data": {"f:b": {}}}, "carl/Apply": {"f:data": {"f:a": {}}}}


def test_applying_what_is_so_shares_it_without_a_time() -> None:
    live = applied(applied(None, cm({"a": "1"})), cm({"a": "1"}), "carl")
    assert owned(live)["carl/Apply"] == owned(live)["anna/Apply"]
    assert ["time" in entry for entry in live["metadata"]["managedFields"]] == [False, True]


def test_the_first_apply_gives_what_was_there_to_somebody() -> None:
    live = stored(cm({"a": "1", "b": "1"}))
    live = applied(live, cm({"a": "1"}))
    assert owned(live)["before-first-apply/Update"] == {"f:data": {".": {}, "f:a": {}, "f:b": {}}}
    with pytest.raises(ApplyConflict):
        applied(live, cm({"a": "2"}))


def test_lists_by_their_type() -> None:
    live = applied(None, gadget(ports=[{"port": 80}, {"port": 81, "name": "x"}], tags=["a", "b"], args=["1"]))
    both = applied(live, gadget(ports=[{"port": 82}, {"port": 81, "name": "x"}], tags=["c", "a"]), "carl")
    assert [port["port"] for port in both["spec"]["ports"]] == [80, 82, 81]
    assert both["spec"]["tags"] == ["c", "a", "b"]
    with pytest.raises(ApplyConflict) as error:
        applied(both, gadget(args=["1", "2"]), "carl")
    assert [cause.field for cause in error.value.causes] == [".spec.args"]
    left = applied(both, gadget(ports=[{"port": 81}]))
    assert left["spec"] == {"ports": [{"port": 82}, {"port": 81, "name": "x"}], "tags": ["c", "a"]}


def test_a_key_that_is_left_out_has_its_default() -> None:
    live = applied(None, gadget(ports=[{"port": 80}]))
    fields = owned(live)["anna/Apply"]["f:spec"]["f:ports"]
    assert list(fields) == ['k:{"port":80,"protocol":"TCP"}']
    assert applied(live, gadget(ports=[{"port": 80, "protocol": "TCP"}]), "carl")["spec"]["ports"] == [
        {"port": 80, "protocol": "TCP"}
    ]


def test_true_is_not_one() -> None:
    live = applied(None, gadget(free={"a": 1}))
    changed = applied(live, gadget(free={"a": True}))
    assert changed["spec"]["free"]["a"] is True
    assert owned(updated(live, {**live, "spec": {"free": {"a": True}}})).keys() == {"bert/Update"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**cm(), "bogus": 1}, ".bogus"),
        (cm({"a": 1}), ".data.a"),
        (cm([]), ".data"),
        (cm(finalizers=["x", "x"]), ".metadata.finalizers[1]"),
        (cm(ownerReferences=[{"name": "x"}]), ".metadata.ownerReferences[0]"),
        ({**cm(), "metadata": "x"}, ".metadata"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_by_field(body: Body, field: str) -> None:
    with pytest.raises(ApiError) as error:
        applied(None, body)
    assert error.value.code == 422
    assert error.value.message.startswith(f"{field}: ")


def test_what_an_apply_must_and_must_not_have() -> None:
    assert CONFIG_MAP is not None
    cases: tuple[tuple[Any, str, int], ...] = (
        (cm(managedFields=[]), "anna", 400),
        (cm(), "", 422),
        (cm(), "x" * 129, 422),
        (cm(), "a\n", 422),
        ([], "anna", 400),
    )
    for body, manager, code in cases:
        with pytest.raises(ApiError) as error:
            server_side_apply(None, body, manager, False, CONFIG_MAP, NOW)
        assert error.value.code == code


def test_status_is_not_owned_through_the_main_resource() -> None:
    body = applied(None, {**gadget(note="x"), "status": {"phase": "On"}})
    assert owned(body) == {"anna/Apply": {"f:spec": {"f:note": {}}}}
    live = server_side_apply(
        body, {**gadget(note="x"), "status": {"phase": "On"}}, "carl", False, GADGET, NOW, "status"
    )
    assert owned(live)["carl/Apply"] == {"f:status": {"f:phase": {}}}
    subresources = {entry["manager"]: entry.get("subresource") for entry in live["metadata"]["managedFields"]}
    assert subresources == {"anna": None, "carl": "status"}


def test_a_stored_list_that_cannot_be_named_is_said_to_be_so() -> None:
    live = {**gadget(ports=["nameless"]), "metadata": {"name": "g", "uid": "u"}}
    with pytest.raises(ApiError) as error:
        applied(live, gadget(ports=[{"port": 1}]))
    assert (error.value.code, "update" in error.value.message) == (422, True)


def test_kubectl_takes_over_from_its_client_side_self() -> None:
    note = {
        "kubectl.kubernetes.io/last-applied-configuration": '{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"1"}}'
    }
    live = stored(updated(None, cm({"a": "1"}, annotations=note), "kubectl-client-side-apply"))
    result = applied(live, cm({"a": "2"}), "kubectl")
    assert result["data"] == {"a": "2"}
    text = result["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
    assert text == '{"apiVersion":"v1","data":{"a":"2"},"kind":"ConfigMap","metadata":{"name":"c"}}\n'
    with pytest.raises(ApplyConflict):
        applied(live, cm({"a": "2"}), "somebody-else")
    drifted = updated(live, {**live, "data": {"a": "3"}})
    with pytest.raises(ApplyConflict):
        applied(drifted, cm({"a": "2"}), "kubectl")


def test_a_schema_that_became_atomic_coarsens_its_owners() -> None:
    live = applied(None, gadget(limits={"a": "1"}, nested={"deep": {"x": "1"}}))
    atomic = copy.deepcopy(GADGET_SCHEMA)
    atomic["properties"]["spec"]["properties"]["limits"]["x-kubernetes-map-type"] = "atomic"
    schema = custom_kind_patch_schema(atomic, has_status=True)
    result = server_side_apply(live, gadget(note="n"), "carl", False, schema, NOW)
    assert owned(result)["anna/Apply"] == {"f:spec": {"f:limits": {}, "f:nested": {"f:deep": {"f:x": {}}}}}


# Other writes.


def test_a_writer_owns_what_she_changed() -> None:
    live = stored(updated(None, cm({"a": "1", "b": "1"}), "anna"))
    assert owned(live) == {"anna/Update": {"f:data": {".": {}, "f:a": {}, "f:b": {}}}}
    live = updated(live, {**live, "data": {"a": "2", "c": "1"}})
    assert owned(live) == {"anna/Update": {"f:data": {}}, "bert/Update": {"f:data": {"f:a": {}, "f:c": {}}}}


def test_a_write_that_changes_nothing_leaves_the_very_owners() -> None:
    live = stored(updated(None, cm({"a": "1"}), "anna"))
    again = updated(live, copy.deepcopy(live), now=NOW + 9)
    assert again["metadata"]["managedFields"] is live["metadata"]["managedFields"]


def test_not_sending_the_owners_does_not_lose_them() -> None:
    live = stored(updated(None, cm({"a": "1"}), "anna"))
    assert owned(updated(live, stored(cm({"a": "1"})))) == owned(live)


@pytest.mark.parametrize("reset", [[], [{}]])
def test_owners_can_be_cleared(reset: Any) -> None:
    live = stored(updated(None, cm({"a": "1"}), "anna"))
    cleared = updated(live, stored(cm({"a": "2"}, managedFields=reset)))
    assert cleared["metadata"]["managedFields"] == []  # the rules of the server take it off
    assert "managedFields" not in updated(cleared, stored(cm({"a": "3"})))["metadata"]
    through_status = updated(live, stored(cm({"a": "1"}, managedFields=reset)), subresource="status")
    assert owned(through_status) == owned(live)


@pytest.mark.parametrize(
    "entries",
    [
        "x",
        [1],
        [{"operation": "Steal", "apiVersion": "v1", "fieldsType": "FieldsV1"}],
        [{"operation": "Update", "fieldsType": "FieldsV1"}],
        [{"operation": "Update", "apiVersion": "v1"}],
        [{"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": 1}],
        [{"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "2023-11-14T22:13:20"}],
        [{"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"v:" + "[" * 9999: {}}}],
    ],
)
def test_malformed_owners_are_ignored(entries: Any) -> None:
    live = stored(updated(None, cm({"a": "1"}), "anna"))
    assert owned(updated(live, stored(cm({"a": "1"}, managedFields=entries)))) == owned(live)


@pytest.mark.parametrize("entries", ["x", [1], [{"operation": "Update"}], {"a": "b"}])
def test_owners_that_an_older_version_stored_may_be_lost(entries: Any) -> None:
    old = stored(cm({"a": "1"}, managedFields=entries))
    assert owned(updated(old, stored(cm({"a": "2"})))) == {}
    assert owned(applied(old, cm({"a": "1"}))).keys() == {"anna/Apply", "before-first-apply/Update"}


def test_the_oldest_of_many_updaters_are_joined() -> None:
    live = stored(updated(None, cm({}), "anna"))
    for number in range(MAX_UPDATERS + 3):
        data = {**live["data"], f"k{number:02}": "1"}
        live = updated(live, {**live, "data": data}, f"updater-{number:02}", now=NOW + number)
    assert len(live["metadata"]["managedFields"]) == MAX_UPDATERS
    ancient = owned(live)["ancient-changes/Update"]
    assert {"f:k00", "f:k01"} <= ancient["f:data"].keys()


def test_nobody_owns_what_the_server_keeps() -> None:
    meta = {"uid": "u", "resourceVersion": "7", "generation": 3, "creationTimestamp": STAMP, "selfLink": "/x"}
    live = stored(updated(None, cm({"a": "1"}), "anna"))
    assert owned(updated(live, cm({"a": "1"}, **meta))) == owned(live)


def test_a_pods_creator_owns_no_empty_objects_of_the_server() -> None:
    assert POD is not None
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a", "resources": {}}]},
    }
    body = track_field_owners(None, pod, "anna", POD, NOW)
    fields = owned(body)["anna/Update"]
    assert fields == {"f:spec": {"f:containers": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:resources": {}}}}}


def test_who_writes() -> None:
    assert manager_name("me", "kubectl/v1.37 (linux)") == "me"
    assert manager_name("", "kubectl/v1.37 (linux)") == "kubectl"
    assert manager_name("", "a\tb" + "ü" * 100) == "ab" + "ü" * 63
    assert owned(updated(None, cm({"a": "1"}), "")).keys() == {"unknown/Update"}
