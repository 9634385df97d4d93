"""Bodies of passthrough endpoints: the model name is found and replaced."""

import json

import pytest

from tests.table import table
from welldone.core.json_budget import run_to_completion
from welldone.gateway.errors import ApiError
from welldone.server.requests.upstream_body import PassthroughBody, is_multipart_form, read_upload_in_steps

FORM = "multipart/form-data; boundary=AbC"
FILE = b'Content-Disposition: form-data; name="file"; filename="a; name=\x22x"\r\nContent-Type: audio/wav'.replace(
    b'a; name="x', b"a; name=x"
)
MODEL = b'Content-Disposition: form-data; name="model"'
SOUND = b"\x00\xff\r\n--Ab\r\nmodel\r\n\r\n"


def read_upload(data: bytes, content_type: str | None) -> PassthroughBody:
    return run_to_completion(read_upload_in_steps(data, content_type))


def form(*parts: tuple[bytes, bytes], end: bytes = b"--AbC--\r\n") -> bytes:
    return b"".join(b"--AbC\r\n" + head + b"\r\n\r\n" + value + b"\r\n" for head, value in parts) + end


def test_json_is_forwarded_with_the_upstream_model_and_without_keys() -> None:
    upload = read_upload(b'{"model":"gpt","input":["a"],"x":null,"api_key":"k"}', "application/json")
    assert upload.model == "gpt"
    assert json.loads(upload.encode("qwen")) == {"model": "qwen", "input": ["a"], "x": None}
    assert upload.content_type == "application/json"


def test_a_duplicate_model_is_forwarded_once() -> None:
    upload = read_upload(b'{"model":"a","model":"b"}', "application/json")
    assert upload.encode(upload.model or "") == b'{"model":"b"}'


def test_json_without_a_model_gets_one() -> None:
    upload = read_upload(b'{"input":"a"}', None)
    assert upload.model is None
    assert json.loads(upload.encode("m")) == {"input": "a", "model": "m"}
    assert json.loads(upload.encode("")) == {"input": "a"}


@table(
    "head",
    [
        MODEL,
        b"content-disposition: form-data; name=model",
        b'Content-Type: text/plain\r\nContent-Disposition:form-data;name="model"',
        b'CONTENT-DISPOSITION: Form-Data; NAME="model"; filename="x"',
    ],
)
def test_the_model_in_a_form_is_replaced(head: bytes) -> None:
    data = form((FILE, SOUND), (head, b"gpt"), (MODEL.replace(b"model", b"prompt"), b"name=model"))
    upload = read_upload(data, FORM)
    assert upload.model == "gpt"
    assert upload.encode("") == upload.encode("gpt") == data
    assert upload.encode("qwen-7b") == data.replace(b"gpt", b"qwen-7b")


def test_a_form_without_a_model_is_unchanged() -> None:
    data = form((FILE, SOUND))
    upload = read_upload(data, FORM)
    assert (upload.model, upload.encode("m")) == (None, data)


def test_an_empty_model_counts_as_absent() -> None:
    assert not read_upload(form((MODEL, b"")), FORM).model


@table(
    ("given", "sent"),
    [
        ("multipart/form-data; boundary=AbC", "multipart/form-data; boundary=AbC"),
        ('Multipart/Form-Data;boundary="AbC"', 'multipart/form-data; boundary="AbC"'),
        ("multipart/form-data; charset=utf-8; boundary=AbC; x=y", "multipart/form-data; boundary=AbC"),
        ("multipart/form-data; boundary=AbC; boundary=other", "multipart/form-data; boundary=AbC"),
    ],
)
def test_only_the_boundary_of_the_content_type_is_forwarded(given: str, sent: str) -> None:
    assert is_multipart_form(given)
    assert read_upload(form((MODEL, b"m")), given).content_type == sent


@table(
    "data",
    [
        b"",
        b"hello",
        b"\r\n" + form((MODEL, b"m")),
        b"before\r\n" + form((MODEL, b"m")),
        form((MODEL, b"m"), end=b""),
        form((MODEL, b"m"), end=b"--AbC"),
        form((MODEL, b"m"), end=b"--AbC--\r\nafter"),
        form((MODEL, b"m"), end=b"--AbCx"),
        form((MODEL, b"m"), (MODEL, b"n")),
        form((MODEL, b"m\r\nn")),
        form((MODEL, b"\xff")),
        form((MODEL, b"m" * 300)),
        form((MODEL.replace(b"\r\n", b"\n"), b"m")).replace(b"\r\n", b"\n"),
        form((b"Content-Type: text/plain", b"m")),
        form((b"Content-Disposition: form-data", b"m")),
        form((b"Content-Disposition: attachment; name=model", b"m")),
        form((b'Content-Disposition: form-data; name="a"; name="model"', b"m")),
        form((b"Content-Disposition: form-data; name*=utf-8''model", b"m")),
        form((b'Content-Disposition: form-data; name="mod\\el"', b"m")),
        form((b'Content-Disposition: form-data; name="a"\nContent-Disposition: form-data; name="model"', b"m")),
        form((b'Content-Disposition: form-data; name="a"\r\n' + MODEL, b"m")),
        form((b"X: \xff\r\n" + MODEL, b"m")),
        form((b"X: " + b"x" * 5000 + b"\r\n" + MODEL, b"m")),
        form(*[(FILE, b"")] * 129),
    ],
)
def test_an_ambiguous_form_is_rejected(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_upload(data, FORM)
    assert caught.value.status == 400


@table(
    ("kind", "status"),
    [
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
        ("multipart/form-data; boundary=a b", 400),
        ("multipart/form-data; boundary=" + "x" * 71, 400),
        ("multipart/mixed; boundary=AbC", 415),
        ("text/plain", 415),
    ],
)
def test_other_content_types_are_rejected(kind: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        read_upload(form((MODEL, b"m")), kind)
    assert caught.value.status == status


def test_a_missing_body_counts_as_empty() -> None:
    assert PassthroughBody().encode("m") == b""
