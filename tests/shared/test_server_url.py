"""Addresses of servers, as their users write them."""

import pytest

from shared.server_url import root_url, without_credentials


@pytest.mark.parametrize(
    ("written", "root"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("https://llm.example/v1/", "https://llm.example"),
        ("https://llm.example/api/v1", "https://llm.example/api"),
        ("https://llm.example/v10", "https://llm.example/v10"),
    ],
)
def test_it_is_the_root_of_the_server(written: str, root: str) -> None:
    assert root_url(written) == root


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ann:secret@llm.example/api", "https://llm.example/api"),
        ("http://ann:s@cret@127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/a@b", "http://127.0.0.1:8000/a@b"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
