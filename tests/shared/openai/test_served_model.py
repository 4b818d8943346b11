"""The names that a model is asked for by, and what is said of those that it has not."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from shared.openai.errors import RequestError
from shared.openai.served_model import MODEL_MISMATCH, ServedModel, adapters_of, defaults_of
from shared.text.generation_defaults import GenerationDefaults

ADAPTERS = {"sql": "./sql", "chat": "c/c"}
MODEL = ServedModel("first", 256, aliases=("second",), others=("else", "more"), adapters=ADAPTERS)


def test_each_name_is_there_once_and_for_those_who_may_ask_for_it() -> None:
    assert ServedModel("first", 256, aliases=("second", "first", "second")).names == ["first", "second"]
    assert MODEL.names == ["first", "second", "sql", "chat"]
    assert replace(MODEL, permitted=["chat", "second", "unknown"]).names == ["second", "chat"]
    assert replace(MODEL, permitted=[]).names == []
    assert MODEL.permits("anything") and not replace(MODEL, permitted=[]).permits("first")


def test_of_its_names_those_of_one_adapter_are_left() -> None:
    bare = MODEL.only("")
    assert (bare.name, bare.aliases, bare.others) == ("first", ("second",), ("sql", "chat", "else", "more"))
    assert (bare.adapters, bare.adapter, bare.max_model_len) == ({}, "", 256)
    sql = MODEL.only("sql")
    assert (sql.name, sql.aliases, sql.others) == ("sql", (), ("first", "second", "chat", "else", "more"))
    assert (sql.adapters, sql.adapter) == ({}, "sql")
    assert MODEL.asked_as("second") == MODEL and MODEL.asked_as("sql") == sql


def refusal(model: ServedModel, name: str) -> tuple[int, str | None, str]:
    with pytest.raises(RequestError) as refused:
        model.asked_as(name)
    assert refused.value.param == "model"
    return refused.value.status, refused.value.code, refused.value.message


def test_names_that_may_be_asked_for_are_told_where_one_is_not_there() -> None:
    for name in MODEL.names:
        MODEL.check(name)
    of_all = "the model 'none' does not exist; this server has "
    names = "'first' and 'second' and 'sql' and 'chat' and 'else' and 'more'"
    assert refusal(MODEL, "none") == (404, "model_not_found", of_all + names)
    limited = replace(MODEL, permitted=["none", "second", "more"])
    assert refusal(limited, "none") == (404, "model_not_found", f"{of_all}'second' and 'more'")
    no_access = "the model 'first' does not exist or you do not have access to it"
    assert refusal(limited, "first") == (404, "model_not_found", no_access)


def test_another_model_of_the_stack_is_another_kind_of_mistake() -> None:
    said = "the model 'else' is another one than 'first', of which all lines of this batch are"
    assert refusal(MODEL, "else") == (400, MODEL_MISMATCH, said)
    assert refusal(replace(MODEL, permitted=["first"]), "else")[:2] == (404, "model_not_found")


def test_defaults_are_the_models_unless_they_are_not_wanted(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    assert defaults_of(tmp_path, "auto") == GenerationDefaults(temperature=0.6)
    assert defaults_of(tmp_path, "none") == GenerationDefaults()


def test_adapters_are_known_by_name() -> None:
    assert adapters_of("sql=./sql, chat=c/c") == ADAPTERS and adapters_of("") == {}
