"""Model folders whose files are torn, of other versions or something else: what can be read, or an error in words. And
chat templates that fail, explode or do not end."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from services.executor.prepare_model import check_folder
from shared.errors import ChatTemplateError, ModelError
from shared.text.model_folder import ModelFacts, read_architecture, tokenizer_digest
from shared.text.tokenizer import Tokenizer
from tests.fuzzing.files import bad_files
from tests.fuzzing.model import FILES, write_model

COUNT = 50
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def read_all(folder: Path) -> list[Exception]:
    """What each of those that read the folder has to say against it. Whatever is no ModelError comes out."""
    readers: list[Callable[[Path], Any]] = [
        lambda folder: Tokenizer.from_folder(folder).apply_chat_template(MESSAGES),
        ModelFacts.read,
        lambda folder: read_architecture(folder, "x", 2),
        check_folder,
        tokenizer_digest,
    ]
    refused: list[Exception] = []
    for read in readers:
        try:
            read(folder)
        except (ModelError, ChatTemplateError) as error:
            assert str(error)
            refused.append(error)
    return refused


def test_the_folder_is_good(folder: Path) -> None:
    assert read_all(folder) == []
    assert Tokenizer.from_folder(folder).render_chat(MESSAGES) == "Hello"


@pytest.mark.parametrize("name", ["tokenizer.json", *FILES])
def test_any_file_may_be_bad(folder: Path, name: str) -> None:
    path, refusals = folder / name, 0
    for content in bad_files(path.read_bytes(), Random(name), COUNT, is_json=True):
        path.write_bytes(content)
        refusals += bool(read_all(folder))
    assert refusals


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("config.json", "{}"),
        ("config.json", '{"max_position_embeddings": 9, "vocab_size": 9, "eos_token_id": "x"}'),
        ("generation_config.json", '{"eos_token_id": -1}'),
        ("generation_config.json", "{"),
    ],
)
def test_a_folder_that_no_process_could_use_is_refused_by_whom_it_is_asked_of_and_the_file_named(
    folder: Path, name: str, content: str
) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ModelError) as refused:
        check_folder(folder)
    assert str(refused.value).startswith(f"{folder / name} ")


def test_a_template_beside_the_configuration_may_be_no_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"chat_template\.jinja cannot be read"):
        Tokenizer.from_folder(folder)


def templated(folder: Path, template: str) -> Tokenizer:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("template", ["{% for %}", "{{ 1 | nothing }}", "{% break %}", "{{" + "(" * 5000, "{{ 'x"])
def test_a_template_that_does_not_parse(folder: Path, template: str) -> None:
    with pytest.raises(ModelError, match="chat template does not parse"):
        templated(folder, template)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 1 // 0 }}", "zero"),
        ("{{ messages[7].content.x }}", "no element 7|undefined"),
        ("{{ raise_exception('no') }}", "no"),
        ("{{ messages.append(1) }}", "safely|unsafe|not"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe|access"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 'x' * 10 ** 10 }}", "product"),
        ("{{ [0] * 10 ** 10 }}", "product"),
        ("{{ 9 ** 99999 }}", "power"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "ranges"),
        ("{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}", "characters"),
        ("{{ '%d' % 'x' }}", "format"),
        ("{{ strftime_now(5) }}", "str"),
    ],
)
def test_a_template_that_fails_or_explodes(folder: Path, template: str, why: str) -> None:
    with pytest.raises(ChatTemplateError, match=why):
        templated(folder, template).render_chat(MESSAGES)
