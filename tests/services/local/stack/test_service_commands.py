"""What a stack's options make of the command lines of its services."""

from pathlib import Path

import pytest

from services.gateway.http.server import LAST_WORDS_S
from services.local.stack.catalogue import stack_options
from services.local.stack.data_dir import DataDir
from services.local.stack.gpu_pinning import VISIBLE, DeviceShare, device_shares, share_out, visible_gpus
from services.local.stack.options import StackOptions
from services.local.stack.processes.process import GRACE_S, Command
from services.local.stack.service_commands import ModelPlace, service_commands
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import StackError
from shared.scheduling.strategy import Strategy

BUS = BusAddress("tls://127.0.0.1:1", "/bus", "/bus/ca.pem", BusRole.OPERATOR)


def commands_of(options: StackOptions, *shares: DeviceShare) -> list[Command]:
    folder = options.data_dir
    place = ModelPlace(options, folder / "model", shares or [DeviceShare(0)])
    return service_commands(DataDir(folder), BUS, [place])


def test_a_clients_url_is_one_that_can_be_reached() -> None:
    assert StackOptions(host="0.0.0.0", port=81).url == "http://127.0.0.1:81"
    assert StackOptions(host="::", port=81).url == "http://[::1]:81"
    assert StackOptions(host="10.1.2.3").url == "http://10.1.2.3:8000"


def test_a_folder_is_served_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert StackOptions(model=str(tmp_path / "my-model")).model_name == "my-model"
    assert StackOptions(model="org/name").model_name == "org/name"


def test_clients_may_call_it_otherwise(tmp_path: Path) -> None:
    """The stack goes on to call it as it did: only those that clients speak to know of these names."""
    options = StackOptions(model="org/name", served_model_name="a, b", generation_config="none", data_dir=tmp_path)
    assert (options.served_name, StackOptions(model="org/name").served_name) == ("a", "org/name")
    lines = {command.name: " ".join(command.argv) for command in commands_of(options)}
    told = {name for name, line in lines.items() if "--served-model-name a, b" in line}
    assert told == {"offline-queue", "gateway"}
    assert told == {name for name, line in lines.items() if "--generation-config none" in line}
    assert "--model-name org/name" in lines["executor-0"] and "--model-name org/name" in lines["gateway"]


def test_services_get_the_settings_that_are_theirs(tmp_path: Path) -> None:
    options = StackOptions(
        executors=2,
        engine="sim",
        kv_blocks=64,
        strategy=Strategy.of("hygen", budget_ms=12.5, utility_ratio=0.0),
        data_dir=tmp_path,
    )
    commands = commands_of(options, DeviceShare(1), DeviceShare(1))
    by_name = {command.name: " ".join(command.argv[1:]) for command in commands}
    assert list(by_name) == ["predictor", "profiler", "offline-queue", "executor-0", "executor-1", "gateway"]
    assert "-m services.executor " in by_name["executor-1"]
    for setting in ("--executor-id executor-1", "--engine sim", "--threads 1", "--kv-blocks 64"):
        assert setting in by_name["executor-1"]
    for name, line in by_name.items():
        has_strategy = name.startswith(("executor", "offline-queue"))
        assert (
            "--preset hygen" in line and "--budget-ms 12.5" in line and "--utility-ratio 0.0" in line
        ) == has_strategy
    bus = "--nats tls://127.0.0.1:1 --nats-creds /bus --nats-ca /bus/ca.pem"
    assert all(bus in line for line in by_name.values())


def test_what_a_url_of_the_bus_lets_in_with_is_on_no_command_line(tmp_path: Path) -> None:
    url, place = "nats://bob:hunter2@far:4222", ModelPlace(StackOptions(), tmp_path, [DeviceShare(1, {VISIBLE: "3"})])
    commands = service_commands(DataDir(tmp_path), BusAddress(url), [place])
    assert not any("hunter2" in word for command in commands for word in command.argv)
    assert {command.environ["SLACKWATER_NATS"] for command in commands} == {url}
    assert [command.environ.get(VISIBLE) for command in commands if command.name == "executor-0"] == ["3"]


def test_what_a_url_of_a_collector_lets_in_with_is_on_no_command_line(tmp_path: Path) -> None:
    url = "https://bob:hunter2@traces:4318/v1/traces"
    commands = commands_of(StackOptions(trace_endpoint=url, data_dir=tmp_path))
    assert not any("hunter2" in word for command in commands for word in command.argv)
    told = {command.name for command in commands if command.environ.get("SLACKWATER_TRACE_ENDPOINT") == url}
    assert told == {"executor-0", "gateway"}
    plain = commands_of(StackOptions(trace_endpoint="http://localhost:4318/v1/traces", data_dir=tmp_path))
    assert all("SLACKWATER_TRACE_ENDPOINT" not in command.environ for command in plain)


def test_the_first_executors_are_strict_and_the_others_relaxed(tmp_path: Path) -> None:
    options = StackOptions(executors=3, strict=1, data_dir=tmp_path)
    lines = [" ".join(each.argv) for each in commands_of(options, *[DeviceShare(1)] * 3) if "executor-" in each.name]
    assert [line.split("--role ")[1].split()[0] for line in lines] == ["strict", "relaxed", "relaxed"]
    options = StackOptions(executors=3, data_dir=tmp_path)  # then each one's own setting counts
    assert not any("--role" in each.argv for each in commands_of(options, *[DeviceShare(1)] * 3))


@pytest.mark.parametrize(
    ("executors", "strict", "why"),
    [
        (1, 1, "--strict needs --executors 2 or more"),
        (3, 3, "3 strict of 3 executors leave none for prompts: choose --strict 2 or less"),
        (2, 5, "5 strict of 2 executors leave none for prompts: choose --strict 1 or less"),
    ],
)
def test_somebody_has_to_compute_prompts(executors: int, strict: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StackOptions(executors=executors, strict=strict)


def test_pools_need_kv_that_can_move() -> None:
    with pytest.raises(ValueError, match="--strict 1: with kv_sharing bidirectional KV is paused"):
        StackOptions(executors=2, strict=1, strategy=Strategy.of("bros"))


def test_slos_are_the_profilers_and_the_gateways(tmp_path: Path) -> None:
    options = StackOptions(slo="ttft_p99<=800ms,tbt_mean<=1.05x", data_dir=tmp_path)
    commands = commands_of(options)
    given = {command.name: command.argv for command in commands if "--slo" in command.argv}
    assert list(given) == ["profiler", "gateway"]
    for words in given.values():
        assert words[words.index("--slo") + 1] == "ttft_p99<=800ms,tbt_mean<=1.05x"


def test_deadlines_are_the_executors_and_no_budget_is_sought(tmp_path: Path) -> None:
    options = StackOptions(strategy=Strategy.of("bros"), slo="ttft_p99<=800ms,tbt_p99<=90ms", data_dir=tmp_path)
    commands = commands_of(options)
    by_name = {command.name: command.argv for command in commands}
    executor, profiler = by_name["executor-0"], by_name["profiler"]
    assert executor[executor.index("--ttft-slo-ms") + 1] == "800.0"
    assert executor[executor.index("--tpot-slo-ms") + 1] == "90.0"
    assert profiler[profiler.index("--slo") + 1] == ""


def test_services_read_the_file_that_the_stack_has_read(tmp_path: Path) -> None:
    for file, given in ((None, ""), (tmp_path / "slackwater.toml", str(tmp_path / "slackwater.toml"))):
        options = StackOptions(data_dir=tmp_path, config_file=file)
        for command in commands_of(options):
            assert command.argv[command.argv.index("--config") + 1] == given


def test_executors_on_cpus_share_the_cores() -> None:
    assert [each.threads for each in share_out(StackOptions(executors=3), 1, [], 8)] == [2, 2, 2]
    assert [each.threads for each in share_out(StackOptions(executors=3), 1, [], 2)] == [1, 1, 1]
    assert [each.threads for each in share_out(StackOptions(executors=2, threads=5), 1, [], 8)] == [5, 5]
    assert device_shares(StackOptions(executors=1), {}) == [DeviceShare(0)]
    assert device_shares(StackOptions(executors=2, engine="sim"), {}) == [DeviceShare(0)] * 2
    on_cpu = device_shares(StackOptions(executors=64), {"SLACKWATER_DEVICE": "cpu"})
    assert on_cpu == [DeviceShare(1)] * 64


def test_executors_on_gpus_have_their_own_in_order() -> None:
    there = visible_gpus({}, ["a GPU"] * 4)
    shares = [each.environ["CUDA_VISIBLE_DEVICES"] for each in share_out(StackOptions(executors=2), 1, there, 8)]
    assert shares == ["0", "1"]
    wide = share_out(StackOptions(executors=2, engine="vllm"), 2, there, 8)
    assert [each.environ["CUDA_VISIBLE_DEVICES"] for each in wide] == ["0,1", "2,3"]
    assert {(each.threads, each.environ["CUDA_DEVICE_ORDER"]) for each in wide} == {(0, "PCI_BUS_ID")}
    with pytest.raises(StackError, match="3 executors of 2 GPUs need 6, and 4 are there: choose --executors 2"):
        share_out(StackOptions(executors=3), 2, there, 8)


def test_gpus_that_the_environment_hides_are_not_given_out() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, 1"}, ["a GPU"] * 4) == ["3", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, ["a GPU"] * 4) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, []) == []


def test_an_executor_starts_in_the_environment_of_its_place(tmp_path: Path) -> None:
    shares = [DeviceShare(0, {"CUDA_VISIBLE_DEVICES": str(index)}) for index in range(2)]
    options = StackOptions(executors=2, data_dir=tmp_path)
    commands = commands_of(options, *shares)
    environs = {command.name: dict(command.environ) for command in commands if command.environ}
    assert environs == {"executor-0": {"CUDA_VISIBLE_DEVICES": "0"}, "executor-1": {"CUDA_VISIBLE_DEVICES": "1"}}


def test_executors_are_given_time_to_drain_and_more(tmp_path: Path) -> None:
    (tmp_path / "slackwater.toml").write_text("[executor]\ndrain_on_stop_s = 60\n")
    options = stack_options({"data_dir": tmp_path}, str(tmp_path / "slackwater.toml"), {})
    by_name = {command.name: command for command in commands_of(options)}
    assert by_name["executor-0"].grace_s == by_name["predictor"].grace_s + 60
    said = stack_options({"data_dir": tmp_path}, "", {"SLACKWATER_DRAIN_ON_STOP_S": "70"})
    assert {command.name: command for command in commands_of(said)}["executor-0"].grace_s == GRACE_S + 70


def test_the_gateway_is_given_time_to_drain_and_more(tmp_path: Path) -> None:
    by_name = {command.name: command for command in commands_of(StackOptions(drain_s=300.0, data_dir=tmp_path))}
    assert "--drain-s 300.0" in " ".join(by_name["gateway"].argv)
    assert by_name["gateway"].grace_s > 300.0 + LAST_WORDS_S > by_name["predictor"].grace_s
