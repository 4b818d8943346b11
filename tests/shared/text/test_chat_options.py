"""What a template is given, and where a prompt ends that goes on with its last message."""

import pytest

from shared.errors import ChatTemplateError
from shared.text.chat_options import END_MARK, ChatOptions, up_to_final_message


def test_a_template_reads_documents_where_there_are_any() -> None:
    assert ChatOptions().values() == {"add_generation_prompt": True}
    given = ChatOptions(False, documents=[{"text": "a"}], template_values={"date": "today", "documents": "none"})
    assert given.values() == {"date": "today", "documents": [{"text": "a"}], "add_generation_prompt": False}
    assert ChatOptions(documents=[]).values()["documents"] == []


@pytest.mark.parametrize(
    ("rendered", "marked", "content", "expected"),
    [
        ("user: hi\nend\n", "user: hi#\nend\n", "hi", "user: hi"),
        ("hi: hi\nend hi\n", "hi: hi#\nend hi\n", "hi", "hi: hi"),
        ("user: hi  \nend\n", "user: hi  #\nend\n", "hi  ", "user: hi  "),
        ("user: hi\nend\n", "user: hi#\nend\n", "hi  ", "user: hi"),
        ("user: hi\nend\n", "user: hi#\nend\n", "  hi", "user: hi"),
    ],
)
def test_a_prompt_ends_behind_the_last_message(rendered: str, marked: str, content: str, expected: str) -> None:
    """Also where other text reads as it does, and where the template strips it."""
    assert up_to_final_message(rendered, marked.replace("#", END_MARK), content) == expected


@pytest.mark.parametrize(
    ("rendered", "marked", "content"),
    [
        ("user: \nend\n", "user: #\nend\n", ""),
        ("user: \nend\n", "user: #\nend\n", "  "),
        ("user: HI\nend\n", "user: HI#\nend\n", "hi"),
        ("1 user: hi\nend\n", "2 user: hi#\nend\n", "hi"),
        ("user: hi\nend\n", "user: hi\nend\n", "hi"),
    ],
)
def test_a_template_that_changes_the_last_message_is_refused(rendered: str, marked: str, content: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        up_to_final_message(rendered, marked.replace("#", END_MARK), content)
