"""The table of vLLM's request fields: it has all of them, says what happens, and stands in the guide as it is."""

from pathlib import Path
from typing import Any

import pytest

from services.gateway.vllm_fields_reference import (
    BEGIN,
    END,
    IGNORED,
    NOTES,
    OLDER,
    OLDER_REFUSED,
    REFUSED,
    SERVED,
    fields_of,
    status_of,
    vllm_fields_reference,
)
from shared.openai.completions.requests import CHAT, TEXT
from shared.openai.errors import RequestError
from tests.shared.openai.completions.test_requests import parse
from tests.with_vllm import NEEDS_VLLM

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "from_vllm.md"
ENDPOINTS = {"chat": CHAT, "text": TEXT}
NAMED = [(kind, name) for kind in ENDPOINTS for name in (*fields_of(kind), *OLDER, *OLDER_REFUSED)]
ODD = {"an": "object that no field has"}
WRONG: dict[str, Any] = {"chat_template_kwargs": {"tools": 1}, "guided_json": 5}  # where that would be right


def request_classes() -> dict[str, Any]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return {"chat": ChatCompletionRequest, "text": CompletionRequest}


def test_the_guide_has_the_table_as_it_is() -> None:
    table = "\n".join(vllm_fields_reference())
    between = GUIDE.read_text().partition(f"{BEGIN}\n\n")[2].partition(f"\n\n{END}")[0]
    assert between == table, "put what python -m services.gateway.vllm_fields_reference prints between the marks"
    assert set(NOTES) <= {name for _, name in NAMED}


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_fields_are_treated_as_it_says(kind: str, name: str) -> None:
    status = status_of(kind, name)
    if status == IGNORED:
        assert parse(ENDPOINTS[kind], seed=1, **{name: ODD}) == parse(ENDPOINTS[kind], seed=1)
    else:
        with pytest.raises(RequestError) as raised:
            parse(ENDPOINTS[kind], **{name: WRONG.get(name, ODD)})
        is_unknown = raised.value.code in ("unsupported_parameter", "unsupported_value")
        assert (raised.value.param or "").startswith(name)
        assert is_unknown == status.startswith(REFUSED) and is_unknown != (status == SERVED)


@NEEDS_VLLM
def test_it_has_all_fields_and_what_they_are_by_default_is_accepted() -> None:
    for kind, request_class in request_classes().items():
        fields = request_class.model_fields
        assert sorted(fields_of(kind)) == sorted(fields)
        defaults = {
            name: field.default
            for name, field in fields.items()
            if field.default_factory is None and not field.is_required() and name not in ("model", "prompt")
        }
        asked = parse(ENDPOINTS[kind], **defaults | {"seed": 1})
        expected = parse(ENDPOINTS[kind], seed=1)
        assert (asked.prompt_token_ids, asked.sampling) == (expected.prompt_token_ids, expected.sampling)
