"""The messages that the troubleshooting guide explains are those that the code has."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "troubleshooting.md"
CONTINUED = re.compile(r'"\s*\n\s*f?"')  # a text in several literals
QUOTED = re.compile(r"`(?P<text>[^`]+)`")
WORDS_OF_A_MESSAGE = 4


def explained_messages() -> list[str]:
    """The first cell's texts, as far as they are whole messages and not a status or a code."""
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    texts = [match["text"] for row in rows for match in QUOTED.finditer(row.split(" | ")[0])]
    return [text for text in texts if len(text.split()) >= WORDS_OF_A_MESSAGE]


def test_every_explained_message_is_in_the_code() -> None:
    sources = "\n".join(path.read_text() for folder in ("services", "shared") for path in (ROOT / folder).rglob("*.py"))
    code = CONTINUED.sub("", sources)
    messages = explained_messages()
    assert len(messages) > 10
    for message in messages:
        pattern = r".{1,80}?".join(re.escape(part) for part in message.split("..."))
        assert re.search(pattern, code), message
