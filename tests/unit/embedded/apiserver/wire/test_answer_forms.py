from __future__ import annotations

import pytest

from remuda.api.errors import BadRequest
from remuda.embedded.apiserver.wire.answer_forms import Form, NotAcceptable, View, negotiate

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.OBJECT),
        ("*/*", Form.OBJECT),
        ("application/json", Form.OBJECT),
        ("application/vnd.kubernetes.protobuf, application/json", Form.OBJECT),
        (f"{TABLE},application/json", Form.TABLE),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json", Form.OBJECT),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", Form.METADATA),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Form.METADATA),
    ],
)
def test_the_first_form_that_can_be_met_is_chosen(accept: str, form: Form) -> None:
    assert negotiate(accept, "").form is form


@pytest.mark.parametrize(
    "accept", ["application/xml", "application/vnd.kubernetes.protobuf", "application/json;as=Foo"]
)
def test_anything_else_is_not_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        negotiate(accept, "")


def test_what_rows_carry() -> None:
    assert negotiate(TABLE, "Object") == View(Form.TABLE, "Object")
    with pytest.raises(BadRequest):
        negotiate(TABLE, "Everything")
