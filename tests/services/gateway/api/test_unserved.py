"""OpenAI's endpoints that are not served, asked for by the official client."""

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from services.gateway.api.unserved import SERVED, UNSERVED
from tests.services.gateway.gateway_rig import MODEL, GatewayRig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_gateway()
        yield made


CALLS: list[Callable[[openai.OpenAI], Any]] = [
    lambda client: client.moderations.create(input="text"),
    lambda client: client.images.generate(prompt="a cat"),
    lambda client: client.audio.transcriptions.create(model=MODEL, file=b"RIFF"),
    lambda client: client.fine_tuning.jobs.list(),
    lambda client: client.vector_stores.retrieve("vs_1"),
    lambda client: client.conversations.create(),
]


@pytest.mark.parametrize("call", CALLS)
def test_the_client_is_told_what_is_served(rig: GatewayRig, call: Callable[[openai.OpenAI], Any]) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        call(rig.openai)
    assert (raised.value.code, raised.value.type) == ("unsupported_endpoint", "invalid_request_error")
    assert all(endpoint in raised.value.message for endpoint in SERVED)


@pytest.mark.parametrize("name", UNSERVED)
def test_each_of_them_says_why(rig: GatewayRig, name: str) -> None:
    for path in (f"/v1/{name}", f"/v1/{name}/anything/else"):
        error = rig.http.delete(path).json()["error"]
        assert path in error["message"] and UNSERVED[name] in error["message"]


def test_served_paths_keep_their_own_refusals(rig: GatewayRig) -> None:
    assert rig.http.get("/v1/completions").json()["error"]["code"] == "method_not_allowed"
    assert rig.http.get("/v1/nothing").json()["error"]["code"] == "unknown_url"
