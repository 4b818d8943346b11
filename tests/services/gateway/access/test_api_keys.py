"""API keys: made by the command line, kept as hashes, asked for by the gateway, revoked while it runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from services.gateway.access.api_keys import ApiKeys
from services.gateway.settings import GatewaySettings
from services.local.stack.keys import open_keys
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import ConfigError
from shared.protocol.access.api_keys import KeyTerms, hash_api_key, new_api_key
from tests.programs import run_slackwater
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

CLOCK = SystemClock()
GIVEN_KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1")
        made.start_gateway("--host", "0.0.0.0", "--api-key", GIVEN_KEY)
        made.wait_ready()
        yield made


def key_command(*arguments: str, nats: str | None = None, data_dir: Path | None = None) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of ``slackwater key``."""
    where = ("--nats", nats) if nats else ("--data-dir", str(data_dir))
    done = run_slackwater("key", *arguments, *where)
    return done.returncode, done.stdout, done.stderr


def status_with(rig: GatewayRig, authorization: str | None, path: str = "/v1/models") -> int:
    return rig.http.get(path, headers={"Authorization": authorization} if authorization else {}).status_code


def test_where_others_can_connect_a_key_is_needed(rig: GatewayRig) -> None:
    assert status_with(rig, f"Bearer {GIVEN_KEY}") == status_with(rig, f"bearer  {GIVEN_KEY}") == 200
    for wrong in (None, "Bearer", "Bearer none", f"Basic {GIVEN_KEY}", GIVEN_KEY, f"Bearer {GIVEN_KEY} {GIVEN_KEY}"):
        assert status_with(rig, wrong) == 401
    for path in ("/v1/batches", "/v1/files/x/content", "/v1/nothing", "/docs/", "/health/", f"{rig.url}//health"):
        assert status_with(rig, None, path) == 401
    for path in (f"{rig.url}//", "/dashboard/events", "/dashboard/static", "/dashboard/"):
        assert status_with(rig, None, path) == 401
    for path in ("/", "/dashboard/static/js/main.js", "/health", "/ready", "/metrics"):
        assert status_with(rig, None, path) == 200
    assert status_with(rig, None, "/dashboard/static/%2e%2e/settings.py") == 404
    assert rig.complete().status_code == 401


def test_a_refusal_is_openais(rig: GatewayRig) -> None:
    missing, wrong = rig.http.get("/v1/models"), rig.http.get("/v1/models", headers={"Authorization": "Bearer secret"})
    assert (missing.json()["error"]["code"], wrong.json()["error"]["code"]) == (None, "invalid_api_key")
    assert missing.headers["www-authenticate"] == "Bearer" and missing.headers["x-request-id"]
    assert "secret" not in wrong.text
    with pytest.raises(openai.AuthenticationError):
        rig.openai.models.list()


def test_who_watches_the_process_needs_no_key(rig: GatewayRig) -> None:
    assert [status_with(rig, None, path) for path in ("/health", "/ready", "/metrics")] == [200, 200, 200]


def test_a_key_is_valid_from_its_making_until_it_is_revoked(rig: GatewayRig) -> None:
    status, out, _ = key_command("create", "alice", "--weight", "2", "--tokens-per-minute", "9000", nats=rig.nats_url)
    key = out.strip()
    assert status == 0 and key.startswith("sk-slackwater-")
    wait_until(lambda: status_with(rig, f"Bearer {key}") == 200, "a new key is refused")
    client = openai.OpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0)
    assert client.completions.create(model=MODEL, prompt="x", max_tokens=3).choices
    client.close()

    status, out, _ = key_command("list", "--json", nats=rig.nats_url)
    (shown,) = json.loads(out)
    assert status == 0 and (shown["name"], shown["weight"], shown["tokens_per_minute"]) == ("alice", 2.0, 9000)
    assert key not in out and hash_api_key(key) not in out and key.endswith(shown["hint"])
    assert "alice" in key_command("list", nats=rig.nats_url)[1]

    status, _, error = key_command("create", "alice", nats=rig.nats_url)
    assert status == 1 and "already" in error
    assert key_command("revoke", "alice", nats=rig.nats_url)[0] == 0
    wait_until(lambda: status_with(rig, f"Bearer {key}") == 401, "a revoked key is accepted")
    assert status_with(rig, f"Bearer {GIVEN_KEY}") == 200
    status, _, error = key_command("revoke", "alice", nats=rig.nats_url)
    assert status == 1 and "no key 'alice'" in error


def test_a_stream_that_has_begun_outlives_its_key(rig: GatewayRig) -> None:
    key = key_command("create", "bob", nats=rig.nats_url)[1].strip()
    headers = {"Authorization": f"Bearer {key}"}
    wait_until(lambda: status_with(rig, headers["Authorization"]) == 200, "a new key is refused")
    body = {"model": MODEL, "prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with rig.http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        key_command("revoke", "bob", nats=rig.nats_url)
        wait_until(lambda: status_with(rig, headers["Authorization"]) == 401, "a revoked key is accepted")
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_without_any_key_a_gateway_that_others_can_reach_does_not_start(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with GatewayRig(tmp_path_factory.mktemp("none")) as rig:
        with pytest.raises(AssertionError, match="ended with 1"):
            rig.start_gateway("--host", "0.0.0.0")
        assert "slackwater key create" in rig.logs() and "SLACKWATER_REQUIRE_KEYS=never" in rig.logs()
        rig.start_gateway("--host", "0.0.0.0", "--require-keys", "never")
        assert rig.http.get("/v1/models").status_code == 200
        assert any(event["event"] == "serving everyone who can connect" for event in rig.log_events("gateway"))


async def test_keys_are_made_while_no_stack_runs_and_only_their_hashes_are_stored(tmp_path: Path) -> None:
    status, out, _ = key_command("create", "first", "--json", data_dir=tmp_path)
    made = json.loads(out)
    assert status == 0 and made["name"] == "first"
    assert key_command("create", "no name", data_dir=tmp_path)[0] == 1
    async with open_keys(tmp_path, None) as keys:
        (record,) = await keys.all()
        assert record.key_hash == hash_api_key(made["key"])
    stored = [path.read_bytes() for path in (tmp_path / "nats").rglob("*") if path.is_file()]
    assert any(record.key_hash.encode() in each for each in stored)
    assert not any(made["key"].encode() in each for each in stored)


def settings(**fields: str) -> GatewaySettings:
    return GatewaySettings(model_path="", **fields)  # type: ignore[arg-type]


async def test_keys_are_required_beyond_loopback_unless_asked_otherwise(bus: Bus) -> None:
    for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost"):
        assert not ApiKeys(bus, settings(host=host), CLOCK).required
    for host in ("0.0.0.0", "::", "", "10.0.0.1", "example.com"):
        assert ApiKeys(bus, settings(host=host), CLOCK).required
    assert ApiKeys(bus, settings(require_keys="always"), CLOCK).required
    assert not ApiKeys(bus, settings(host="0.0.0.0", require_keys="never"), CLOCK).required


async def test_a_key_of_the_environment_must_be_long(bus: Bus) -> None:
    with pytest.raises(ConfigError, match="at least 32"):
        await ApiKeys(bus, settings(api_key="changeme"), CLOCK).start()


async def test_a_key_of_the_environment_may_have_white_space_around_it(bus: Bus) -> None:
    keys = ApiKeys(bus, settings(api_key=f" {GIVEN_KEY}\n"), CLOCK)
    await keys.start()
    assert keys.find(f"Bearer {GIVEN_KEY}") is not None


async def test_a_revoked_key_stays_revoked_where_the_environment_names_it(
    bus: Bus, nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_keys(tmp_path, nats_url) as made:
        key = await made.create("dave", KeyTerms(weight=2.0, requests_per_minute=60))
        named = ApiKeys(bus, settings(api_key=key), CLOCK)
        await named.start()
        found = named.find(f"Bearer {key}")
        assert found is not None and (found.key.name, found.key.requests_per_minute) == ("dave", 60)
        await made.revoke("dave")
        assert await made.all() == []
        other = await made.create("dave")
    keys = ApiKeys(bus, settings(api_key=key), CLOCK)
    await keys.start()
    assert keys.find(f"Bearer {key}") is None and keys.find(f"Bearer {other}") is not None
    (warned,) = (record for record in caplog.records if "is a revoked key" in record.getMessage())
    assert vars(warned)["api_key"] == "dave"


async def test_a_known_key_is_found_where_none_is_required(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    async with open_keys(tmp_path, nats_url) as made:
        key = await made.create("carol", KeyTerms(weight=3.0, requests_per_minute=60))
    keys = ApiKeys(bus, settings(), CLOCK)
    await keys.start()
    found = keys.find(f"Bearer {key}")
    assert found is not None and (found.key.name, found.key.weight, found.key.requests_per_minute) == ("carol", 3.0, 60)
    for unknown in (new_api_key(), "", " ", "\xff", key[:-1], hash_api_key(key)):
        assert keys.find(f"Bearer {unknown}") is None
