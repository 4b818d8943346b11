"""Addresses of servers, as their users write them."""

import pytest

from shared.server_url import root_url


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
