"""Templates' own tags, and conversations whose last message is gone on with."""

import pytest
from transformers import PreTrainedTokenizerFast

from shared.errors import ChatTemplateError
from shared.text.chat_options import ChatOptions
from shared.text.tokenizer import Tokenizer
from tests.shared.text.test_tokenizer import BYTE_LEVEL

CONTINUED = ChatOptions(add_generation_prompt=False, continue_final_message=True)
USER = {"role": "user", "content": "Is 1<2? end"}
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
TRIMMED = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}"
GENERATION = """{% for m in messages %}
{% set mark = '<' ~ m.role ~ '>' %}
{% if m.role == 'assistant' %}
{% generation %}
{{ mark }}{{ m.content }}{% set mark = 'gone' %}
{% endgeneration %}
{% else %}
{{ mark }}{{ m.content }}
{% endif %}
{{ mark }}
{% endfor %}"""


def answer_of(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def tokenizer_with(template: str) -> Tokenizer:
    return Tokenizer(BYTE_LEVEL._backend, template, {})


def test_the_tags_of_what_the_model_generates_change_nothing() -> None:
    messages = [USER, answer_of("Yes."), USER]
    reference = PreTrainedTokenizerFast(tokenizer_object=BYTE_LEVEL._backend)
    expected = reference.apply_chat_template(messages, chat_template=GENERATION, tokenize=False)
    assert tokenizer_with(GENERATION).render_chat(messages) == expected


@pytest.mark.parametrize("template", [PLAIN, TRIMMED, GENERATION])
@pytest.mark.parametrize("content", ["<", "end", "assistant", ">", " <end>", "e", "The answer is", "Well: "])
def test_the_last_message_is_gone_on_with_where_it_ends(template: str, content: str) -> None:
    """And not where something else reads as it does."""
    tokenizer, place = tokenizer_with(template), "*the place*"
    begin, _, _ = tokenizer.render_chat([USER, answer_of(place)]).partition(place)
    prompt = tokenizer.render_chat([USER, answer_of(content)], options=CONTINUED)
    assert prompt == begin + (content.strip() if template is TRIMMED else content)


@pytest.mark.parametrize(
    ("template", "content"),
    [(PLAIN, ""), (PLAIN, " \n"), ("{{ messages[-1].content | upper }}", "a"), ("nothing of it", "nothing")],
)
def test_a_last_message_that_is_not_shown_as_it_is_cannot_be_gone_on_with(template: str, content: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        tokenizer_with(template).render_chat([answer_of(content)], options=CONTINUED)


def test_a_template_may_show_the_last_message_twice() -> None:
    template = "{{ messages[-1].content }}|{{ messages[-1].content }}|end"
    assert tokenizer_with(template).render_chat([answer_of("so")], options=CONTINUED) == "so|so"
