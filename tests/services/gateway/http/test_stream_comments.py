"""What a stream sends while it has nothing to tell: over real sockets, from a gateway whose executor stands still."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from loadgen.client.sse import EventParser
from services.local.commands.server import ApiClient
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

CHAT = "/v1/chat/completions"
COMMENT = b": nothing yet\n\n"
BODY: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 3}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1")
        made.start_gateway("--stream-comment-s", "0.1")
        made.wait_ready()
        yield made


def with_openai(rig: GatewayRig) -> str:
    return "".join(
        chunk.choices[0].delta.content or "" for chunk in rig.openai.chat.completions.create(**BODY, stream=True)
    )


def with_own_client(rig: GatewayRig) -> str:
    events = ApiClient(rig.url).stream(CHAT, BODY)
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def joined(data: bytes) -> str:
    """As ``slackwater replay`` reads it."""
    parser = EventParser()
    deltas = [chunk.choices[0].delta for chunk in parser.feed(data)]
    assert parser.done
    return "".join(delta.content or "" for delta in deltas if delta is not None)


def test_comments_come_until_the_first_token_and_clients_pass_over_them(rig: GatewayRig) -> None:
    """None in an answer that is not streamed."""
    expected = rig.http.post(CHAT, json=BODY).json()["choices"][0]["message"]["content"]
    rig.pause("executor-0")
    with (
        ThreadPoolExecutor(3) as threads,
        rig.http.stream("POST", CHAT, json=BODY | {"stream": True}) as response,
    ):
        whole = threads.submit(httpx.post, f"{rig.url}{CHAT}", json=BODY, timeout=60)
        streamed = [threads.submit(read, rig) for read in (with_openai, with_own_client)]
        wait_until(lambda: rig.metric("slackwater_live_requests") == 4, "not all have come")
        data, pieces = b"", response.iter_raw()
        while data.count(COMMENT) < 3:
            data += next(pieces)
        assert data == COMMENT * data.count(COMMENT), "nothing else yet"
        rig.signal("executor-0", signal.SIGCONT)
        data += b"".join(pieces)
    assert joined(data) == expected and expected
    assert [each.result() for each in streamed] == [expected, expected]
    assert json.loads(whole.result().content)["choices"][0]["message"]["content"] == expected
    assert whole.result().content.startswith(b"{")
