"""Keys that end, that permit a part, and that have a budget, as clients of real gateways see them; and what is counted
of them, over several gateways and kills."""

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from services.gateway.access.api_keys import OPEN_PATHS
from services.gateway.access.permissions import FREE, PREFIXES, needed_permission
from services.gateway.api.app import make_routes
from services.local.stack.keys import open_keys
from shared.bus.address import BusAddress
from shared.protocol.access.api_keys import PERMISSIONS, KeyTerms
from shared.protocol.access.key_usage import KeyUsage, day_of
from tests.services.gateway.access.test_api_keys import key_command
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

ADMIN_KEY = "a" * 32
NOTHING = {  # where no permission would help
    "/chat/completions": "unknown_url",
    "//status": "unknown_url",
    "/executorsx": "unknown_url",
    "/v1/images/generations": "unsupported_endpoint",
    "/v1/organization/users": "unsupported_endpoint",
}
BODY = {"model": MODEL, "prompt": [7] * 20, "max_tokens": 5, "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_offline_queue("--preset", "sarathi++")
        made.start_executor("executor-0", "--preset", "sarathi++", "--sim-time-scale", "0.1")
        made.start_gateway("--require-keys", "always", "--api-key", ADMIN_KEY)
        made.wait_ready()
        yield made


async def client_with(rig: GatewayRig, name: str, **terms: Any) -> httpx.Client:
    """Whose key the gateway knows."""
    async with open_keys(Path(), BusAddress(rig.nats_url)) as keys:
        key = await keys.create(name, KeyTerms(**terms))
    client = httpx.Client(base_url=rig.url, timeout=60, headers={"Authorization": f"Bearer {key}"})
    unknown = "invalid_api_key"
    wait_until(lambda: code_of(client.get("/v1/models")) != unknown, "a new key is refused")
    return client


def code_of(response: httpx.Response) -> str | None:
    code: str | None = response.json().get("error", {}).get("code")
    return code


def complete(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/completions", json=BODY | fields)


async def used_by(rig: GatewayRig, name: str) -> dict[str, KeyUsage]:
    """Of today, by source, as it is stored."""
    async with open_keys(Path(), BusAddress(rig.nats_url)) as keys:
        today = day_of(time.time())
        return {p.source: usage for p, usage in await keys.usages() if (p.day, p.name) == (today, name)}


def usage_page(client: httpx.Client, **params: Any) -> dict[str, Any]:
    response = client.get("/v1/organization/usage/completions", params={"start_time": int(time.time())} | params)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


async def test_a_key_is_refused_from_its_end_on_and_says_why(rig: GatewayRig) -> None:
    ends = int(time.time()) + 8
    with closing(await client_with(rig, "short", expires_at=ends)) as client:
        if time.time() < ends - 1:
            assert complete(client).status_code == 200
        wait_until(lambda: time.time() > ends, "time stands still")
        refused = complete(client)
    assert (refused.status_code, code_of(refused)) == (401, "token_expired")
    assert "'short' has expired at 20" in refused.text and refused.headers["www-authenticate"] == "Bearer"
    assert rig.metric("slackwater_refused_requests_total", reason="key_expired") >= 1


async def test_a_key_calls_what_it_permits_and_nothing_else(rig: GatewayRig) -> None:
    async with contextlib.AsyncExitStack() as stack:
        permitted: list[Any] = [["completions", "batches"], ["files"]]
        names = zip(("texts", "uploads"), permitted, strict=True)
        client, uploader = [
            stack.enter_context(closing(await client_with(rig, name, organization="writers", endpoints=each)))
            for name, each in names
        ]
        assert complete(client).status_code == 200
        assert client.get("/v1/models").json()["data"][0]["id"] == MODEL
        assert client.get("/v1/batches").status_code == 200
        for path in (
            "/status",
            "/v1/files",
            "/v1/organization/usage/completions",
            "/dashboard/events",
        ):
            refused = client.get(path)
            assert (refused.status_code, code_of(refused)) == (403, "insufficient_permissions"), path
        for path, code in NOTHING.items():
            missing = client.get(f"{rig.url}{path}")
            assert (missing.status_code, code_of(missing)) == (404, code), path
        chat = client.post("/v1/chat/completions", json={})
        assert chat.status_code == 403 and "Missing scopes: chat" in chat.text and "'texts'" in chat.text
        batch = {"input_file_id": "", "completion_window": "24h", "endpoint": "/v1/chat/completions"}
        batch["input_file_id"] = uploader.post("/v1/files", data={"purpose": "batch"}, files=UPLOAD).json()["id"]
        refused = client.post("/v1/batches", json=batch)
        assert refused.status_code == 403 and refused.json()["error"]["param"] == "endpoint"
        made = client.post("/v1/batches", json=batch | {"endpoint": "/v1/completions"})
        assert made.status_code == 200
        refused = client.delete(f"/v1/batches/{made.json()['id']}", params={"files": "true"})
        assert (refused.status_code, code_of(refused)) == (403, "insufficient_permissions")
        assert uploader.get(f"/v1/files/{batch['input_file_id']}").status_code == 200
    with closing(openai.OpenAI(base_url=f"{rig.url}/v1", api_key=ADMIN_KEY)) as admin:
        assert admin.models.list().data
    assert rig.metric("slackwater_refused_requests_total", reason="permission") >= 5


def test_every_path_needs_a_permission_or_is_free() -> None:
    assert tuple(PREFIXES) == PERMISSIONS
    for path in make_routes(keys_required=True).openapi()["paths"]:
        named = [prefix for prefixes in (*PREFIXES.values(), FREE) for prefix in prefixes if path.startswith(prefix)]
        assert named or path in OPEN_PATHS, f"{path} is in no list of permissions.py"
    assert needed_permission("/v1/completionsx") == needed_permission("/anything") == "admin"
    assert needed_permission("/v1/models/org/name") is None


async def test_a_model_that_is_not_permitted_does_not_exist(rig: GatewayRig) -> None:
    with closing(await client_with(rig, "other-model", models=["some-other"])) as client:
        refused = complete(client)
        assert (refused.status_code, code_of(refused)) == (404, "model_not_found")
        assert "does not exist or you do not have access to it" in refused.text
        assert client.get("/v1/models").json()["data"] == []
        assert client.get(f"/v1/models/{MODEL}").status_code == complete(client, model="some-other").status_code == 404
        made = {"input_file_id": upload(rig), "completion_window": "24h", "endpoint": "/v1/completions"}
        assert client.post("/v1/batches", json=made).status_code == 404
    with closing(await client_with(rig, "this-model", models=["some-other", MODEL])) as client:
        assert complete(client).status_code == client.get(f"/v1/models/{MODEL}").status_code == 200


async def test_a_budget_is_used_up_by_requests_and_batches(rig: GatewayRig) -> None:
    with closing(await client_with(rig, "poor", tokens_per_day=60)) as client:
        served = [complete(client) for _ in range(3)]
        assert [each.status_code for each in served] == [200] * 3
        refused = complete(client, stream=True)
        assert (refused.status_code, code_of(refused)) == (429, "insufficient_quota")
        assert refused.json()["error"]["type"] == "insufficient_quota"
        assert 0 < int(refused.headers["retry-after"]) <= 24 * 3600 and refused.headers["x-should-retry"] == "false"
        assert "60 tokens of this day" in refused.text
        made = {"input_file_id": upload(rig), "completion_window": "24h", "endpoint": "/v1/completions"}
        assert client.post("/v1/batches", json=made).status_code == 429
        assert client.post("/v1/completions", json=BODY | {"service_tier": "flex"}).status_code == 429
        assert client.get("/v1/models").status_code == 200
    assert rig.metric("slackwater_refused_requests_total", reason="tokens_per_day") >= 3


async def test_what_is_used_is_counted_as_clients_are_told(rig: GatewayRig) -> None:
    with closing(await client_with(rig, "counted")) as client:
        usages = [complete(client).json()["usage"], complete(client, n=3).json()["usage"]]
        usages.append(complete(client, service_tier="flex").json()["usage"])
        assert complete(client, max_tokens=0).status_code == 400
        batch_id = submit_batch(client, 3)
        wait_until(lambda: client.get(f"/v1/batches/{batch_id}").json()["status"] == "completed", rig.logs)
        of_batch = client.get(f"/v1/batches/{batch_id}").json()["usage"]
    tokens_in = sum(each["prompt_tokens"] for each in usages)
    tokens_out = sum(each["completion_tokens"] for each in usages)
    assert (tokens_in, tokens_out) == (3 * 20, 5 + 3 * 5 + 5)
    admin = httpx.Client(base_url=rig.url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=60)
    with closing(admin):
        asked = {"api_key_ids[]": "counted", "group_by[]": ["api_key_id", "batch", "model"]}

        def results() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = usage_page(admin, **asked)["data"][0]["results"]
            return found

        wait_until(lambda: len(results()) == 2, "the batch is not counted")
        live, batch = sorted(results(), key=lambda each: str(each["batch"]))
        assert (live["input_tokens"], live["output_tokens"], live["num_model_requests"]) == (tokens_in, tokens_out, 3)
        assert (batch["input_tokens"], batch["output_tokens"]) == (of_batch["input_tokens"], of_batch["output_tokens"])
        assert (batch["num_model_requests"], batch["model"], batch["api_key_id"]) == (3, MODEL, "counted")
    status, out, _ = key_command("usage", "counted", nats=rig.nats_url)
    assert status == 0 and "counted" in out and f"{tokens_in + of_batch['input_tokens']:,}" in out


def test_openais_client_reads_the_usage(rig: GatewayRig) -> None:
    with closing(openai.OpenAI(base_url=f"{rig.url}/v1", api_key=ADMIN_KEY, admin_api_key=ADMIN_KEY)) as admin:
        admin.completions.create(model=MODEL, prompt="x", max_tokens=3)
        day_s = 24 * 3600
        start = int(time.time()) - 3 * day_s
        usage = admin.admin.organization.usage
        page = usage.completions(start_time=start, group_by=["api_key_id"], limit=3)
        assert len(page.data) == 3 and page.has_more and page.next_page
        last = usage.completions(start_time=start, group_by=["api_key_id"], page=page.next_page)
        assert not last.has_more and last.data[0].start_time == int(time.time()) // day_s * day_s
        names = [getattr(each, "api_key_id", None) for each in last.data[0].results]
        assert "environment" in names
        with pytest.raises(openai.BadRequestError, match="not counted here"):
            usage.completions(start_time=start, group_by=["user_id"])


async def test_a_gateway_that_is_stopped_tells_all_and_one_that_is_killed_what_it_had_told(rig: GatewayRig) -> None:
    with closing(await client_with(rig, "steady")) as client:
        assert complete(client).status_code == 200
        assert rig.stop("gateway") == 0
        (told,) = (await used_by(rig, "steady")).values()
        assert (told.num_requests, told.input_tokens, told.output_tokens) == (1, 20, 5)
        rig.start_gateway("--require-keys", "always", "--api-key", ADMIN_KEY)
        rig.wait_ready()
        assert complete(client).status_code == 200
        assert usage_page(client, api_key_ids="steady")["data"][0]["results"][0]["num_model_requests"] == 2
        assert complete(client).status_code == 200
        rig.stop("gateway", signal.SIGKILL)
        counted = (await used_by(rig, "steady")).values()
        assert len(counted) == 2 and 2 <= sum(each.num_requests for each in counted) <= 3
        rig.start_gateway("--require-keys", "always", "--api-key", ADMIN_KEY)
        rig.wait_ready()


async def test_a_key_is_changed_while_it_is_used(rig: GatewayRig) -> None:
    with closing(await client_with(rig, "growing", tokens_per_month=20, endpoints=["files"])) as client:
        assert complete(client).status_code == 403
        changed = ("change", "growing", "--endpoints", "all", "--models", MODEL)
        status, out, _ = key_command(*changed, nats=rig.nats_url)
        assert status == 0 and "20 tokens a month" in " ".join(out.split())
        wait_until(lambda: complete(client).status_code == 200, "the change is not known")
        assert code_of(complete(client)) == "insufficient_quota"
        assert key_command("change", "growing", "--tokens-per-month", "0", nats=rig.nats_url)[0] == 0
        wait_until(lambda: complete(client).status_code == 200, "the change is not known")
    status, _, error = key_command("change", "nobody", "--weight", "2", nats=rig.nats_url)
    assert status == 1 and "no key 'nobody'" in error
    assert key_command("change", "growing", nats=rig.nats_url)[0] == 2


def test_terms_are_read_and_shown(rig: GatewayRig) -> None:
    terms = ("--expires", "30d", "--models", f"{MODEL}, b", "--endpoints", "files,chat", "--tokens-per-month", "5000")
    assert key_command("create", "full", *terms, nats=rig.nats_url)[0] == 0
    shown = {each["name"]: each for each in json.loads(key_command("list", "--json", nats=rig.nats_url)[1])}["full"]
    assert shown["endpoints"] == ["chat", "files"] and shown["models"] == [MODEL, "b"]
    assert 29 * 24 * 3600 < shown["expires_at"] - time.time() <= 30 * 24 * 3600
    status, out, _ = key_command("list", nats=rig.nats_url)
    assert status == 0 and "chat, files;" in out and "5,000" in out and "…" not in out
    for wrong in (("--expires", "2020-01-01"), ("--expires", "soon"), ("--endpoints", "every"), ("--models", " , ")):
        status, _, error = key_command("create", "wrong", *wrong, nats=rig.nats_url)
        assert status == 2 and "Invalid value" in error, wrong
    assert "0% of this month's 5,000 tokens" in key_command("usage", "full", nats=rig.nats_url)[1]


def upload(rig: GatewayRig) -> str:
    """A file with one line, of the admin's."""
    with closing(openai.OpenAI(base_url=f"{rig.url}/v1", api_key=ADMIN_KEY)) as client:
        return client.files.create(file=("in.jsonl", batch_lines(1)), purpose="batch").id


def batch_lines(count: int) -> bytes:
    lines = [{"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": BODY} for n in range(count)]
    return b"".join(httpx.Request("POST", "http://x", json=line).content + b"\n" for line in lines)


UPLOAD = {"file": ("in.jsonl", batch_lines(1))}


def submit_batch(client: httpx.Client, count: int) -> str:
    file = {"file": ("in.jsonl", batch_lines(count))}
    file_id = client.post("/v1/files", data={"purpose": "batch"}, files=file).json()["id"]
    made = {"input_file_id": file_id, "completion_window": "24h", "endpoint": "/v1/completions"}
    batch_id: str = client.post("/v1/batches", json=made).json()["id"]
    return batch_id
