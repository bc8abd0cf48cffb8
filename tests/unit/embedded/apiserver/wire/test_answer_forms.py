from __future__ import annotations

import pytest

from remuda.api.errors import BadRequest
from remuda.embedded.apiserver.wire.answer_forms import AnswerForm, AnswerView, NotAcceptable, negotiate_form

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", AnswerForm.OBJECT),
        ("*/*", AnswerForm.OBJECT),
        ("application/json", AnswerForm.OBJECT),
        ("application/vnd.kubernetes.protobuf, application/json", AnswerForm.OBJECT),
        (f"{TABLE},application/json", AnswerForm.TABLE),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json", AnswerForm.OBJECT),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", AnswerForm.METADATA),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", AnswerForm.METADATA),
    ],
)
def test_the_first_form_that_can_be_met_is_chosen(accept: str, form: AnswerForm) -> None:
    assert negotiate_form(accept, "").form is form


@pytest.mark.parametrize(
    "accept", ["application/xml", "application/vnd.kubernetes.protobuf", "application/json;as=Foo"]
)
def test_anything_else_is_not_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        negotiate_form(accept, "")


def test_what_rows_carry() -> None:
    assert negotiate_form(TABLE, "Object") == AnswerView(AnswerForm.TABLE, "Object")
    with pytest.raises(BadRequest):
        negotiate_form(TABLE, "Everything")
