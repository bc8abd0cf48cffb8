"""Strategic merge patches: what each directive and merge rule does."""

import copy
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.patching import builtin_kind_schema, custom_kind_patch_schema, strategic_merge

POD = builtin_kind_schema("v1", "Pod")
DEPLOYMENT = builtin_kind_schema("apps/v1", "Deployment")
assert POD is not None
assert DEPLOYMENT is not None

LIVE: dict[str, Any] = {
    "metadata": {"labels": {"x": "1", "y": "1"}, "finalizers": ["a", "b"]},
    "spec": {
        "containers": [{"name": "a", "image": "1", "env": [{"name": "A", "value": "1"}]}, {"name": "b", "image": "1"}],
        "tolerations": [{"key": "t"}],
        "nodeSelector": {"n": "1"},
    },
}


def patched(patch: Any) -> Any:
    before = copy.deepcopy([LIVE, patch])
    assert POD is not None
    result = strategic_merge(LIVE, patch, POD)
    assert [LIVE, patch] == before
    return result


def refused(patch: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        patched(patch)
    return error.value


def containers(*items: Any, **more: Any) -> Any:
    return patched({"spec": {"containers": list(items), **more}})["spec"]["containers"]


def finalizers(**patch: Any) -> Any:
    return patched({"metadata": patch})["metadata"]["finalizers"]


def test_objects_are_merged_and_nulls_remove() -> None:
    assert patched({"metadata": {"labels": {"x": None, "z": "1"}}})["metadata"]["labels"] == {"y": "1", "z": "1"}
    assert "labels" not in patched({"metadata": {"labels": None}})["metadata"]
    assert patched({"spec": {"hostAliases": [{"ip": "1", "hostnames": None}]}})["spec"]["hostAliases"] == [{"ip": "1"}]


def test_lists_with_a_merge_key_are_joined_by_it() -> None:
    assert [c["name"] for c in containers({"name": "c", "image": "2"}, {"name": "a", "image": "2"})] == ["c", "a", "b"]
    a, b = containers({"name": "a", "image": "2"})
    assert (a["image"], a["env"], b["image"]) == ("2", [{"name": "A", "value": "1"}], "1")
    assert b is LIVE["spec"]["containers"][1]


def test_nested_lists_are_joined_too() -> None:
    a, _ = containers({"name": "a", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "9"}]})
    assert a["env"] == [{"name": "B", "value": "2"}, {"name": "A", "value": "9"}]


def test_other_lists_are_replaced() -> None:
    assert patched({"spec": {"tolerations": [{"key": "u"}]}})["spec"]["tolerations"] == [{"key": "u"}]


def test_plain_values_are_joined_as_a_set() -> None:
    assert finalizers(finalizers=["c", "a"]) == ["c", "a", "b"]
    assert finalizers(**{"$deleteFromPrimitiveList/finalizers": ["a", "z"]}) == ["b"]
    assert finalizers(**{"$setElementOrder/finalizers": ["b", "a"]}) == ["b", "a"]


def test_delete_and_replace() -> None:
    assert [c["name"] for c in containers({"name": "a", "$patch": "delete"})] == ["b"]
    assert containers({"$patch": "replace"}, {"name": "z", "image": "1"}) == [{"name": "z", "image": "1"}]
    assert patched({"metadata": {"labels": {"$patch": "replace", "q": "1"}}})["metadata"]["labels"] == {"q": "1"}
    assert patched({"metadata": {"labels": {"$patch": "delete"}}})["metadata"]["labels"] == {}
    assert "annotations" not in patched({"metadata": {"annotations": {"$patch": "delete"}}})["metadata"]


def test_retained_keys() -> None:
    assert DEPLOYMENT is not None
    live = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic_merge(live, patch, DEPLOYMENT) == {"spec": {"strategy": {"type": "Recreate"}}}


def test_an_order_of_items() -> None:
    order = [{"name": "b"}, {"name": "n"}, {"name": "a"}]
    new = {"name": "n", "image": "1"}
    names = [c["name"] for c in containers(new, **{"$setElementOrder/containers": order})]
    assert names == ["b", "n", "a"]
    assert [c["name"] for c in containers(new, **{"$setElementOrder/containers": [{"name": "n"}]})] == ["n", "a", "b"]


def test_what_only_the_server_has_stays_before_what_it_stood_before() -> None:
    assert POD is not None
    live = {"spec": {"containers": [{"name": name} for name in "abcd"]}}
    patch = {"spec": {"containers": [{"name": "c", "image": "1"}, {"name": "x"}]}}
    result = strategic_merge(live, patch, POD)
    assert [c["name"] for c in result["spec"]["containers"]] == ["a", "b", "c", "x", "d"]


def test_a_field_with_the_replace_strategy() -> None:
    budget = builtin_kind_schema("policy/v1", "PodDisruptionBudget")
    assert budget is not None
    live = {"spec": {"selector": {"matchLabels": {"a": "1"}}, "minAvailable": 1}}
    patch: Any = {"spec": {"selector": {"matchExpressions": []}}}
    assert strategic_merge(live, patch, budget) == {"spec": {"selector": {"matchExpressions": []}, "minAvailable": 1}}


@pytest.mark.parametrize(
    "patch",
    [
        [],
        "x",
        {"metadata": {"labels": {"$patch": "merge"}}},
        {"spec": {"containers": [{"name": "a", "$patch": "bogus"}]}},
        {"spec": {"containers": [{"name": "a", "$patch": "merge"}]}},
        {"spec": {"containers": [{"image": "1"}]}},
        {"spec": {"containers": [{"$patch": "delete"}]}},
        {"spec": {"containers": ["a"]}},
        {"spec": {"containers": [{"name": {"a": 1}}]}},
        {"spec": {"$setElementOrder/containers": "x"}},
        {"spec": {"$setElementOrder/containers": [{"image": "1"}]}},
        {"spec": {"$setElementOrder/nothing": []}},
        {"spec": {"$setElementOrder": []}},
        {"spec": {"$setElementOrder/nodeSelector": []}},
        {"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "z"}]}},
        {"metadata": {"$deleteFromPrimitiveList": ["a"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": "a"}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": [{}]}},
        {"metadata": {"finalizers": [{"a": 1}]}},
        {"metadata": {"$retainKeys": "labels"}},
        {"metadata": {"$retainKeys": ["labels"], "finalizers": []}},
    ],
)
def test_a_malformed_patch_is_a_bad_request(patch: Any) -> None:
    assert (refused(patch).code, refused(patch).reason) == (400, "BadRequest")


def test_lists_of_lists_cannot_be_merged() -> None:
    assert refused({"metadata": {"finalizers": [["a"]]}}).code == 422


def test_a_bomb_is_refused() -> None:
    bomb: Any = {}
    for _ in range(5000):
        bomb = {"metadata": bomb}
    assert POD is not None
    with pytest.raises(ApiError) as error:
        strategic_merge(LIVE, bomb, POD)
    assert error.value.code == 400


def answer(live: Any, patch: Any) -> int:
    assert POD is not None
    try:
        strategic_merge(live, patch, POD)
    except ApiError as error:
        return error.code
    return 200


@pytest.mark.parametrize("name", [{}, [], None])
@pytest.mark.parametrize("patch", [[{"name": "a"}], [{"name": "a", "$patch": "delete"}], [{"name": {}}]])
def test_a_key_that_is_no_plain_value_is_no_internal_error(name: Any, patch: Any) -> None:
    live = {"spec": {"containers": [{"name": name}]}}
    orders: tuple[Any, ...] = (
        {},
        {"$setElementOrder/containers": []},
        {"$setElementOrder/containers": [{"name": name}]},
    )
    for order in orders:
        whole = {"spec": {"containers": patch, **order}}
        assert answer(live, whole) in ((200, 400) if name is None else (400,))
        assert answer({"spec": {}}, whole) in (200, 400)


def test_custom_kinds_have_none() -> None:
    schema = custom_kind_patch_schema({"type": "object"}, has_status=False)
    with pytest.raises(ApiError) as error:
        strategic_merge({}, {}, schema)
    assert (error.value.code, error.value.reason) == (415, "UnsupportedMediaType")
