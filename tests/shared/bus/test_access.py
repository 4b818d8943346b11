"""Who is let in to a bus, and what each role may do there: asked of a real nats-server with TLS."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nats
import nats.errors
import nkeys
import pytest
from msgspec.structs import replace

from services.local.stack.bus_access.folder import BusFolder
from services.local.stack.machine import free_port
from services.local.stack.service_commands import nats_argv
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.credentials import Credentials
from shared.bus.permissions import BusRole, inbox_prefix, permissions_of
from shared.errors import BusError, ConfigError, NotFoundOnBusError, StackError
from shared.protocol import subjects
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.offline.batches import BatchRecord
from tests.conftest import running_nats, wait_for_port
from tests.shared.bus.servers import running, until

WORK = subjects.of_model("m")  # what is stored is of this model

SOON_S = 1.5  # to be let in, where it must fail
HOSTS = ("127.0.0.1", "localhost")
NOBODY = 65534


@dataclass
class SecuredServer:
    """A nats-server that lets in those of ``folder``."""

    folder: BusFolder
    url: str
    process: subprocess.Popen[bytes]

    def address(self, role: BusRole) -> BusAddress:
        return self.folder.address(self.url, role)

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredServer]:
    folder, port = BusFolder(tmp_path / "bus"), free_port()
    folder.ensure(HOSTS)
    argv = nats_argv(tmp_path / "nats.conf", tmp_path / "nats", port, access=folder.server_config())
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        wait_for_port(port, process)
        yield SecuredServer(folder, f"tls://127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()


async def refusals(server: SecuredServer, role: BusRole, sent: Sequence[str], heard: Sequence[str]) -> list[str]:
    """Of these subjects, those that the server refuses the role, by its own words."""
    said: list[str] = []

    async def on_error(error: Exception) -> None:
        said.append(str(error))

    address, credentials = server.address(role), Credentials.found(server.folder.path, role)
    seed = credentials.path.read_text()
    client = await nats.connect(server.url, tls=address.tls_context(), nkeys_seed_str=seed, error_cb=on_error)
    try:
        for subject in sent:
            await client.publish(subject.replace("*", "any").replace(">", "any"), b"{}")
        for subject in heard:
            await client.subscribe(subject)
        for _ in range(2):  # nats-py's first ping goes out before what it has not sent yet
            await client.flush()
    finally:
        await client.close()
    return said


# Of each role something that it must not do, and that would hurt.
FORBIDDEN = [
    (BusRole.GATEWAY, f"$KV.{subjects.API_KEYS_BUCKET}.alice"),
    (BusRole.GATEWAY, f"$KV.{subjects.REVOKED_API_KEYS_BUCKET}.hash"),
    (BusRole.GATEWAY, WORK.request("batch_1.1")),
    (BusRole.GATEWAY, subjects.plan("executor-0")),
    (BusRole.GATEWAY, subjects.tokens("other")),
    (BusRole.GATEWAY, f"$KV.{subjects.BUDGETS_BUCKET}.key"),
    (BusRole.EXECUTOR, f"$JS.API.CONSUMER.CREATE.OBJ_{subjects.OBJECTS_BUCKET}.a.b"),
    (BusRole.EXECUTOR, f"$JS.API.DIRECT.GET.KV_{subjects.API_KEYS_BUCKET}.alice"),
    (BusRole.EXECUTOR, f"$JS.API.STREAM.MSG.GET.{subjects.REQUESTS_STREAM}"),
    (BusRole.EXECUTOR, f"$KV.{subjects.BATCHES_BUCKET}.batch_1"),
    (BusRole.EXECUTOR, subjects.plan("executor-1")),
    (BusRole.EXECUTOR, subjects.inbox("executor-1")),
    (BusRole.PREDICTOR, subjects.tokens("gateway")),
    (BusRole.PREDICTOR, f"$KV.{subjects.BATCHES_BUCKET}.batch_1"),
    (BusRole.PREDICTOR, f"$O.{subjects.OBJECTS_BUCKET}.C.file"),
    (BusRole.PROFILER, f"$KV.{subjects.LATENCY_MODELS_BUCKET}.key"),
    (BusRole.PROFILER, f"$KV.{subjects.FILES_BUCKET}.file-1"),
    (BusRole.OFFLINE_QUEUE, f"$KV.{subjects.API_KEYS_BUCKET}.alice"),
    (BusRole.OPERATOR, f"$JS.API.DIRECT.GET.OBJ_{subjects.OBJECTS_BUCKET}.a"),
    (BusRole.OPERATOR, f"$KV.{subjects.BATCHES_BUCKET}.batch_1"),
    *((role, f"$JS.API.STREAM.DELETE.KV_{subjects.API_KEYS_BUCKET}") for role in BusRole),
    *((role, "$SYS.REQ.SERVER.PING") for role in BusRole),
    # With a stream's settings the server copies others into it, or what comes into it to any subject.
    *(
        (role, f"$JS.API.STREAM.UPDATE.{name}")
        for role in (BusRole.EXECUTOR, BusRole.PREDICTOR, BusRole.PROFILER, BusRole.OPERATOR)
        for name in subjects.STORED
    ),
    (BusRole.GATEWAY, f"$JS.API.STREAM.UPDATE.KV_{subjects.BATCHES_BUCKET}"),
]
UNHEARD = [
    (BusRole.EXECUTOR, f"{subjects.PREFIX}.gateway.*.tokens"),  # the answers of all users
    (BusRole.PREDICTOR, subjects.inbox("*")),  # their prompts
    (BusRole.PROFILER, subjects.plan("*")),
    (BusRole.OPERATOR, subjects.ALL_REQUESTS),
    *((role, f"{subjects.PREFIX}.>") for role in BusRole),
    *((role, "_INBOX.>") for role in BusRole),
    *((role, f"$KV.{subjects.API_KEYS_BUCKET}.>") for role in BusRole),
]


@pytest.mark.parametrize("role", BusRole)
async def test_no_role_may_do_what_is_anothers(secured: SecuredServer, role: BusRole) -> None:
    sent = [subject for each, subject in FORBIDDEN if each is role]
    heard = [subject for each, subject in UNHEARD if each is role]
    heard += [f"{inbox_prefix(other)}.>" for other in BusRole if other is not role]
    said = await refusals(secured, role, sent, heard)
    assert [subject for subject in sent if not any(subject.lower() in each.lower() for each in said)] == []
    assert len(said) == len(sent) + len(heard), said


@pytest.mark.parametrize("role", BusRole)
async def test_a_role_may_do_all_that_its_permissions_say(secured: SecuredServer, role: BusRole) -> None:
    """They are subjects that the server understands, too."""
    may = permissions_of(role)
    assert await refusals(secured, role, may.publish, may.subscribe) == []


async def test_who_shows_nothing_is_not_let_in(secured: SecuredServer, tmp_path: Path) -> None:
    async def is_refused(address: BusAddress, why: str) -> None:
        with pytest.raises(BusError, match=why):
            await Bus.connect(address, "stranger", SOON_S)

    unencrypted = replace(secured.address(BusRole.GATEWAY), url=secured.url.replace("tls", "nats"))
    without_credentials = BusAddress(secured.url, ca=str(secured.folder.ca))
    await asyncio.gather(
        is_refused(without_credentials, "does not let in stranger, which has no credentials"),
        is_refused(BusAddress(secured.url), "certificate verify failed"),
        is_refused(unencrypted, "certificate verify failed"),
    )


async def test_anothers_keys_are_not_let_in(secured: SecuredServer, tmp_path: Path) -> None:
    others = BusFolder(tmp_path / "others")
    others.ensure(HOSTS)
    address = replace(others.address(secured.url, BusRole.OPERATOR), ca=str(secured.folder.ca))
    with pytest.raises(BusError, match=r"does not let in stranger with .*others: check --nats-creds"):
        await Bus.connect(address, "stranger", SOON_S)


async def test_a_server_that_another_has_signed_is_not_trusted(secured: SecuredServer, tmp_path: Path) -> None:
    others = BusFolder(tmp_path / "others")
    others.ensure(HOSTS)
    with pytest.raises(BusError, match="certificate verify failed"):
        await Bus.connect(replace(secured.address(BusRole.GATEWAY), ca=str(others.ca)), "gateway", SOON_S)


async def test_nothing_is_said_to_a_server_without_tls(secured: SecuredServer, tmp_path: Path) -> None:
    with running_nats(tmp_path / "open") as url:
        address = replace(secured.address(BusRole.GATEWAY), url=url.replace("nats://", "tls://"))
        with pytest.raises(BusError, match="does not speak TLS"):
            await Bus.connect(address, "gateway", SOON_S)


async def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "gateway.nk").write_text("SUAmost-secret\n")
    for creds, role, why in (
        (tmp_path / "gateway.nk", BusRole.GATEWAY, r"gateway\.nk is no NKey seed and no \.creds file"),
        (tmp_path / "absent.nk", BusRole.GATEWAY, "cannot read the credentials .*absent"),
        (tmp_path, BusRole.EXECUTOR, r"no executor\.nk or executor\.creds"),
    ):
        with pytest.raises(ConfigError, match=why) as raised:
            await Bus.connect(BusAddress("tls://127.0.0.1:1", str(creds), role=role), "any", SOON_S)
        assert "most-secret" not in str(raised.value)
    (tmp_path / "ca.pem").write_text("none")
    with pytest.raises(ConfigError, match=r"ca\.pem is no PEM file"):
        await Bus.connect(BusAddress("tls://127.0.0.1:1", ca=str(tmp_path / "ca.pem")), "any", SOON_S)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_credentials_of_another_user_are_named(secured: SecuredServer) -> None:
    address = secured.address(BusRole.OPERATOR)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(ConfigError, match=r"cannot look for credentials in .*bus: Permission denied"):
            address.credentials()
    finally:
        os.seteuid(0)


async def fails_in_time(doing: Awaitable[object]) -> None:
    with pytest.raises((BusError, TimeoutError)):
        await asyncio.wait_for(doing, SOON_S)


async def test_what_is_not_permitted_fails_in_time_and_is_in_the_log(
    secured: SecuredServer, caplog: pytest.LogCaptureFixture
) -> None:
    """By the product's own calls: no API key comes to be, no batch is changed, no file is read."""
    gateway = await Bus.connect(secured.address(BusRole.GATEWAY), "gateway")
    executor = await Bus.connect(secured.address(BusRole.EXECUTOR), "executor-0")
    operator = await Bus.connect(secured.address(BusRole.OPERATOR), "operator")
    try:
        keys = await gateway.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)
        await asyncio.gather(
            fails_in_time(keys.put("mallory", ApiKeyRecord("mallory", "hash", "hint", 0))),
            fails_in_time(executor.bucket(subjects.BATCHES_BUCKET, BatchRecord)),
            fails_in_time(executor.objects()),
        )
        with pytest.raises(NotFoundOnBusError):
            await (await operator.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)).get("mallory")
    finally:
        for bus in (gateway, executor, operator):
            await bus.close()
    assert sum("permissions violation" in str(vars(record).get("error", "")).lower() for record in caplog.records) >= 3


async def test_who_is_connected_goes_on_while_keys_are_replaced(secured: SecuredServer) -> None:
    folder = secured.folder
    old = {role: Credentials.found(folder.path, role).path.read_bytes() for role in BusRole}
    heard: asyncio.Queue[str] = asyncio.Queue()
    gateway = await Bus.connect(secured.address(BusRole.GATEWAY), "gateway")
    executor = await Bus.connect(secured.address(BusRole.EXECUTOR), "executor-0")
    try:
        await gateway.subscribe(subjects.tokens("gateway"), str, heard.put)
        seeds = folder.begin_rotation()
        secured.reload()
        folder.use(seeds)
        folder.finish_rotation()
        secured.reload()
        async with asyncio.timeout(60):
            for bus in (gateway, executor):
                await bus.wait_reconnected(0, 60)
                assert bus.reconnects == 1 and bus.is_connected
            await executor.publish(subjects.tokens("gateway"), "after")
            assert await heard.get() == "after"
    finally:
        await gateway.close()
        await executor.close()
    assert old != {role: Credentials.found(folder.path, role).path.read_bytes() for role in BusRole}
    (folder.path / "old.nk").write_bytes(old[BusRole.GATEWAY])
    kept = replace(secured.address(BusRole.GATEWAY), creds=str(folder.path / "old.nk"))
    with pytest.raises(BusError, match="does not let in"):
        await Bus.connect(kept, "gateway", SOON_S)


async def test_a_creds_file_of_natss_own_tools_is_shown_as_it_is(tmp_path: Path) -> None:
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode()
    lines = ["-----BEGIN NATS USER JWT-----", "eyJ0.a.b", "------END NATS USER JWT------", ""]
    lines += ["-----BEGIN USER NKEY SEED-----", seed, "------END USER NKEY SEED------", ""]
    (tmp_path / "executor.creds").write_text("\n".join(lines))
    shown = Credentials.found(tmp_path, BusRole.EXECUTOR).show("nonce")
    assert (shown.jwt, shown.public_key) == ("eyJ0.a.b", nkeys.from_seed(bytearray(seed.encode())).public_key.decode())


def test_all_of_it_is_for_this_user_alone(secured: SecuredServer) -> None:
    folder = secured.folder.path
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.iterdir() if path.stat().st_mode & 0o077] == []
    if os.geteuid() == 0:  # then another user can be tried
        tried = subprocess.run(["cat", str(folder / "operator.nk")], user=NOBODY, capture_output=True, text=True)
        assert tried.returncode != 0 and "Permission denied" in tried.stderr


def test_what_is_there_is_kept_and_what_lacks_is_made(tmp_path: Path) -> None:
    folder = BusFolder(tmp_path)
    folder.ensure(HOSTS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    folder.ensure(HOSTS)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "gateway.nk").unlink()
    folder.ensure((*HOSTS, "nats.example"))
    changed = {path.name for path in tmp_path.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"gateway.nk", "server.pem", "server-key.pem", "auth.conf", "accepted.json"}
    (tmp_path / "executor.nk").write_text("spoilt")
    with pytest.raises(StackError, match=r"executor\.nk is no NKey seed.*remove it"):
        folder.ensure(HOSTS)


async def test_an_address_of_websockets_is_refused_by_name() -> None:
    for url in ("ws://127.0.0.1:1", "nats://127.0.0.1:1, wss://127.0.0.1:2"):
        with pytest.raises(ConfigError, match=r"wss?://127.*is one of WebSockets; write its nats://"):
            await Bus.connect(url, "any", SOON_S)


def test_a_process_on_the_bus_loads_no_http_client() -> None:
    """nats-py would, for its WebSockets; who wants one has it all the same."""
    program = "import sys, shared.bus, nats; assert 'aiohttp' not in sys.modules; from aiohttp import ClientSession"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("login", ["bob:hunter2@", "hunter2@"])
async def test_what_a_url_lets_in_with_is_in_no_log_and_no_error(
    login: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running("nats-server", tmp_path) as server:
        address = BusAddress(server.url.replace("//", f"//{login}"))
        bus = await Bus.connect(address, "test")
        server.kill()
        await until(lambda: "connection lost" in caplog.text)
        server.start()
        await bus.wait_reconnected(0, 60.0)
        await bus.close()
    with pytest.raises(BusError) as raised:
        await Bus.connect(address, "test", timeout_s=0.1)
    urls = [vars(record)["url"] for record in caplog.records if "url" in vars(record)]
    assert urls == [server.url, server.url]
    assert server.url in str(raised.value) and "hunter2" not in str(raised.value)
