"""Who sees what: two keys, two of an organization and an admin at a real gateway, with batches that run."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.access.api_keys import USER_PERMISSIONS
from shared.protocol.offline.batches import BatchRecord, FileRecord
from tests.services.gateway.access.test_api_keys import key_command
from tests.services.gateway.access.test_permissions import ADMIN_KEY, client_with, code_of, submit_batch
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

PRESET = ("--preset", "sarathi++")
UPLOAD = {"file": ("in.jsonl", b"{}\n")}
COMPLETIONS = "/v1/completions"
ENDPOINTS = list(USER_PERMISSIONS)
GATEWAY = ("--require-keys", "always", "--api-key", ADMIN_KEY, "--prefix-sharing", "owner")


@dataclass(frozen=True)
class People:
    """Clients, each with a key of its own; the last two are of one organization."""

    admin: httpx.Client
    alice: httpx.Client
    bob: httpx.Client
    ann: httpx.Client
    ben: httpx.Client


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_offline_queue(*PRESET)
        made.start_executor("executor-0", *PRESET, "--sim-time-scale", "0.1")
        made.start_gateway(*GATEWAY)
        made.wait_ready()
        yield made


@pytest.fixture
async def people(rig: GatewayRig, request: pytest.FixtureRequest) -> AsyncIterator[People]:
    """With keys of this test's own."""
    test = request.node.name.removeprefix("test_")[:40]
    with ExitStack() as stack:
        made = {}
        for name, organization in (("alice", None), ("bob", None), ("ann", test), ("ben", test)):
            terms = {"endpoints": ENDPOINTS, "organization": organization}
            made[name] = stack.enter_context(closing(await client_with(rig, f"{name}-{test}", **terms)))
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        admin = stack.enter_context(httpx.Client(base_url=rig.url, timeout=60, headers=headers))
        yield People(admin, **made)


@pytest.fixture
async def bus(rig: GatewayRig) -> AsyncIterator[Bus]:
    made = await Bus.connect(rig.nats_url, "test")
    yield made
    await made.close()


def upload(client: httpx.Client) -> str:
    file_id: str = client.post("/v1/files", data={"purpose": "batch"}, files=UPLOAD).json()["id"]
    return file_id


def batch_of(file_id: str) -> dict[str, str]:
    return {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}


def ids(client: httpx.Client, path: str, **params: Any) -> list[str]:
    return [each["id"] for each in client.get(path, params=params).json()["data"]]


def is_absent(answer: httpx.Response, absent: httpx.Response) -> bool:
    """The answer is that of something that never was, but for its id."""
    told, never = answer.json()["error"], absent.json()["error"]
    without_id = [each["message"].rpartition(": ")[0] for each in (told, never)]
    same = [each["code"] for each in (told, never)], [each["param"] for each in (told, never)]
    return answer.status_code == absent.status_code == 404 and all(len(set(each)) == 1 for each in (without_id, *same))


def ended(rig: GatewayRig, client: httpx.Client, batch_id: str) -> dict[str, Any]:
    def batch() -> dict[str, Any]:
        found: dict[str, Any] = client.get(f"/v1/batches/{batch_id}").json()
        return found

    wait_until(lambda: batch()["status"] in ("completed", "failed"), rig.logs)
    return batch()


def test_a_file_is_there_for_its_key_its_organization_and_admins(people: People) -> None:
    file_id, shared_id = upload(people.alice), upload(people.ann)
    for client, seen in (
        (people.alice, [file_id]),
        (people.bob, []),
        (people.ann, [shared_id]),
        (people.ben, [shared_id]),
    ):
        assert ids(client, "/v1/files") == seen
    assert {file_id, shared_id} <= set(ids(people.admin, "/v1/files"))
    assert "owner" not in people.alice.get(f"/v1/files/{file_id}").json()
    for client in (people.bob, people.ben):
        for method, suffix in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            answer = client.request(method, f"/v1/files/{file_id}{suffix}")
            assert is_absent(answer, client.request(method, f"/v1/files/file-none{suffix}")), (method, suffix)
    assert people.ben.get(f"/v1/files/{shared_id}/content").content == b"{}\n"
    assert people.ben.delete(f"/v1/files/{shared_id}").json()["deleted"] is True
    assert people.admin.delete(f"/v1/files/{file_id}").json()["deleted"] is True
    assert ids(people.alice, "/v1/files") == []


def test_lists_page_over_what_is_ones_own(people: People) -> None:
    own = []
    for _ in range(3):
        own.append(upload(people.alice))
        others = upload(people.bob)
    for order, expected in (("desc", own[::-1]), ("asc", own)):
        found: list[str] = []
        has_more, params = True, {"limit": 2, "order": order}
        while has_more:
            page = people.alice.get("/v1/files", params=params).json()
            found += [each["id"] for each in page["data"]]
            has_more, params = page["has_more"], params | {"after": page["last_id"]}
        assert found == expected and page["last_id"] == expected[-1]
    assert ids(people.alice, "/v1/files", after=others, order="asc") == []  # as after one that was deleted
    batches = [people.alice.post("/v1/batches", json=batch_of(each)).json()["id"] for each in own]
    people.bob.post("/v1/batches", json=batch_of(others))
    first = people.alice.get("/v1/batches", params={"limit": 2}).json()
    assert ([each["id"] for each in first["data"]], first["has_more"]) == (batches[:0:-1], True)
    assert ids(people.alice, "/v1/batches", after=first["last_id"]) == batches[:1]


def test_a_batch_with_its_files_is_its_owners(rig: GatewayRig, people: People) -> None:
    batch_id, shared_id = submit_batch(people.alice, 2), submit_batch(people.ann, 2)
    made, shared = ended(rig, people.alice, batch_id), ended(rig, people.ben, shared_id)
    assert made["status"] == shared["status"] == "completed" and "owner" not in made
    files = [made["input_file_id"], made["output_file_id"]]
    assert sorted(ids(people.alice, "/v1/files")) == sorted(files)
    assert len(people.ben.get(f"/v1/files/{shared['output_file_id']}/content").text.splitlines()) == 2
    for client in (people.bob, people.ann, people.ben):
        assert batch_id not in ids(client, "/v1/batches") and not set(files) & set(ids(client, "/v1/files"))
        for method, suffix in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
            answer = client.request(method, f"/v1/batches/{batch_id}{suffix}")
            assert is_absent(answer, client.request(method, f"/v1/batches/batch_none{suffix}")), (method, suffix)
        assert client.get(f"/v1/files/{files[1]}/content").status_code == 404
    assert {batch_id, shared_id} <= set(ids(people.admin, "/v1/batches", limit=100))
    assert people.ben.delete(f"/v1/batches/{shared_id}", params={"files": True}).status_code == 200
    assert ids(people.ann, "/v1/files") == [] == ids(people.ann, "/v1/batches")
    assert people.admin.delete(f"/v1/batches/{batch_id}", params={"files": True}).status_code == 200
    assert ids(people.alice, "/v1/files") == []


def test_a_batch_is_made_of_a_file_that_its_key_sees(people: People) -> None:
    file_id = upload(people.alice)
    for client in (people.bob, people.ann):
        refused = client.post("/v1/batches", json=batch_of(file_id))
        assert is_absent(refused, client.post("/v1/batches", json=batch_of("file-none")))
        assert refused.json()["error"]["param"] == "input_file_id" and ids(client, "/v1/batches") == []
    made = people.admin.post("/v1/batches", json=batch_of(file_id)).json()
    assert people.alice.get(f"/v1/batches/{made['id']}").status_code == 404, "it is the admin's"


def test_an_idempotency_key_is_its_owners(people: People) -> None:
    key = {"Idempotency-Key": "nightly"}
    made = {}
    for name in ("alice", "bob", "ann"):
        client = getattr(people, name)
        made[name] = client.post("/v1/batches", json=batch_of(upload(client)), headers=key).json()["id"]
    assert len(set(made.values())) == 3
    for name in ("alice", "bob", "ann"):
        assert ids(getattr(people, name), "/v1/batches") == [made[name]]
    (file_id,) = ids(people.ben, "/v1/files")
    again = people.ben.post("/v1/batches", json=batch_of(file_id), headers=key)
    assert again.json()["id"] == made["ann"], "keys of an organization make it once"


async def test_what_was_there_before_is_the_admins(people: People, bus: Bus) -> None:
    """Records as they were before they had an owner."""
    files, batches = (
        await bus.bucket(subjects.FILES_BUCKET, dict[str, Any]),
        await bus.bucket(subjects.BATCHES_BUCKET, dict[str, Any]),
    )
    file = {"id": "file-old", "bytes": 3, "created_at": 1, "filename": "old", "purpose": "batch"}
    await files.put("file-old", file)
    await (await bus.objects()).put("file-old", b"{}\n")
    batch = {"id": "batch_old", "created_at": 1, "expires_at": 2, "status": "completed", "cleared": True}
    await batches.put("batch_old", batch | batch_of("file-old") | {"client_id": "name-alice", "claim": ""})
    for client in (people.alice, people.bob, people.ann):
        assert client.get("/v1/files/file-old").status_code == client.get("/v1/batches/batch_old").status_code == 404
        assert "file-old" not in ids(client, "/v1/files") and "batch_old" not in ids(client, "/v1/batches", limit=100)
        assert client.post("/v1/batches", json=batch_of("file-old")).status_code == 404
    assert people.admin.get("/v1/files/file-old/content").content == b"{}\n"
    assert "batch_old" in ids(people.admin, "/v1/batches", limit=100)
    assert people.admin.delete("/v1/batches/batch_old?files=true").status_code == 200
    assert people.admin.get("/v1/files/file-old").status_code == 404


async def test_a_stored_response_is_its_owners(people: People, bus: Bus) -> None:
    asked = {"model": MODEL, "input": "Hello", "max_output_tokens": 4}
    made, shared = (client.post("/v1/responses", json=asked).json()["id"] for client in (people.alice, people.ann))
    for client in (people.bob, people.ben):
        for method, suffix in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
            answer = client.request(method, f"/v1/responses/{made}{suffix}")
            assert is_absent(answer, client.request(method, f"/v1/responses/resp_none{suffix}")), (method, suffix)
        refused = client.post("/v1/responses", json=asked | {"previous_response_id": made})
        assert (refused.status_code, code_of(refused)) == (404, "previous_response_not_found")
    assert people.ben.post("/v1/responses", json=asked | {"previous_response_id": shared}).status_code == 200
    assert people.admin.get(f"/v1/responses/{made}").json()["id"] == made
    responses = await bus.bucket(subjects.RESPONSES_BUCKET, dict[str, Any])
    stored = (await responses.get(made)).value
    assert stored is not None and stored["owner"].startswith("alice-")
    del stored["organization"]  # as it was stored before there was any
    await responses.put("resp_old", stored | {"id": "resp_old"})
    await responses.put("resp_nobodys", stored | {"id": "resp_nobodys", "owner": ""})
    assert people.alice.get("/v1/responses/resp_old").status_code == 200
    assert people.bob.get("/v1/responses/resp_old").status_code == 404
    assert [each.get("/v1/responses/resp_nobodys").status_code for each in (people.alice, people.admin)] == [404, 200]
    assert people.ben.delete(f"/v1/responses/{shared}").json()["deleted"] is True


def test_nobody_learns_of_the_prefix_cache_what_others_have_asked(rig: GatewayRig, people: People) -> None:
    def found(client: httpx.Client, prompt: str) -> bool:
        asked = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        usage = client.post(COMPLETIONS, json=asked).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"] > 0

    def found_by_a_batch(client: httpx.Client, prompt: str) -> bool:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        line = {"custom_id": "a", "method": "POST", "url": COMPLETIONS, "body": body}
        file = {"file": ("in.jsonl", json.dumps(line).encode())}
        file_id = client.post("/v1/files", data={"purpose": "batch"}, files=file).json()["id"]
        batch_id = client.post("/v1/batches", json=batch_of(file_id)).json()["id"]
        usage = ended(rig, client, batch_id)["usage"]
        assert usage["output_tokens"] == 1
        return bool(usage["input_tokens_details"]["cached_tokens"] > 0)

    prompt, other = "what alice alone knows " * 40, "what the two have in common " * 40
    asked = (people.alice, people.bob, people.admin, people.alice, people.bob)
    assert [found(client, prompt) for client in asked] == [False, False, False, True, True]
    assert [found(client, other) for client in (people.ann, people.alice, people.ben)] == [False, False, True]
    third = "what only a batch has asked " * 40
    asked = (people.bob, people.alice, people.bob)
    assert [found_by_a_batch(client, third) for client in asked] == [False, False, True]
    assert [found(client, third) for client in (people.bob, people.ann)] == [True, False]


def test_a_page_and_the_status_tell_of_the_batches_that_their_key_sees(rig: GatewayRig, people: People) -> None:
    own, others = submit_batch(people.alice, 1), [submit_batch(people.bob, 1) for _ in range(6)]
    for client, batch_id in ((people.alice, own), *((people.bob, each) for each in others)):
        assert ended(rig, client, batch_id)["status"] == "completed"

    def told(client: httpx.Client) -> set[str]:
        with client.stream("GET", "/dashboard/events") as answer:
            event = next(line for line in answer.iter_lines() if line)
        now = json.loads(event.removeprefix("data: "))["now"]
        return {each["id"] for each in (*now["batches"], *now["ended"])}

    def reported(client: httpx.Client) -> set[str]:
        view = client.get("/status").json()["view"]
        return {each["id"] for each in (*(batch["record"] for batch in view["batches"]), *view["ended"])}

    for look in (told, reported):
        wait_until(lambda look=look: look(people.alice) == {own}, "its own batch is not shown")
        assert look(people.bob) < set(others) and len(look(people.bob)) == 5
        assert look(people.ann) == set() and look(people.admin) & set(others)


async def test_a_key_that_comes_to_an_organization_sees_what_that_has(rig: GatewayRig, people: People) -> None:
    before, shared = upload(people.bob), upload(people.ann)
    name = people.bob.get("/dashboard/access").json()["key_name"]
    organization = name.removeprefix("bob-")
    assert key_command("change", name, "--organization", organization, nats=rig.nats_url)[0] == 0
    wait_until(lambda: ids(people.bob, "/v1/files") == [shared], "the change is not known")
    assert key_command("change", name, "--organization", "none", nats=rig.nats_url)[0] == 0
    wait_until(lambda: ids(people.bob, "/v1/files") == [before], "the change is not known")


async def test_without_a_key_all_is_seen_where_none_is_needed(rig: GatewayRig, people: People, bus: Bus) -> None:
    file_id = upload(people.alice)
    rig.stop("gateway")
    rig.start_gateway("--require-keys", "never")
    rig.wait_ready()
    assert file_id in ids(rig.http, "/v1/files")
    nobodys = upload(rig.http)
    wait_until(lambda: ids(people.alice, "/v1/files") == [file_id], "its key is not known")
    assert people.alice.get(f"/v1/files/{nobodys}").status_code == 404
    batch_id = rig.http.post("/v1/batches", json=batch_of(file_id)).json()["id"]
    assert people.alice.get(f"/v1/batches/{batch_id}").status_code == 404
    assert rig.http.delete(f"/v1/files/{file_id}").status_code == 200
    rig.stop("gateway")
    rig.start_gateway(*GATEWAY)
    rig.wait_ready()
    owners = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord), await bus.bucket(subjects.FILES_BUCKET, FileRecord)
    batch, file = (await owners[0].get(batch_id)).value, (await owners[1].get(nobodys)).value
    assert batch is not None and file is not None and batch.owner == file.owner == ""
