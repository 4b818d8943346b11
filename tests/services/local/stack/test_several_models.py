"""What [[models]] of a configuration file come to: options, and the command lines of processes."""

import json
from pathlib import Path

import pytest

from services.local.stack.catalogue import stack_options
from services.local.stack.data_dir import DataDir
from services.local.stack.gpu_pinning import DeviceShare, shares_of_models
from services.local.stack.options import StackOptions
from services.local.stack.processes.process import GRACE_S, Command
from services.local.stack.service_commands import ModelPlace, prepare_command, service_commands
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import ConfigError, StackError
from shared.settings.other_models import OtherModel, parse_other_models

BUS = BusAddress("tls://127.0.0.1:1", "/bus", "/bus/ca.pem", BusRole.OPERATOR)
TWO = """
[stack]
engine = "sim"
kv_blocks = 100
[strategy]
preset = "sarathi++"
[[models]]
model = "org/Large"
served_model_name = ["large", "big"]
slo = ["ttft_p99<=1s"]
executors = 2
[models.strategy]
preset = "hygen"
[models.executor]
max_num_seqs = 7
cuda_graphs = "off"
[[models]]
name = "small one"
model = "smollm2-135m-instruct"
kv_blocks = 50
[models.offline-queue]
pool_mb = 9
"""


def options_of(folder: Path, text: str, given: dict[str, object] | None = None, **environ: str) -> StackOptions:
    (folder / "slackwater.toml").write_text(text)
    return stack_options(given or {}, str(folder / "slackwater.toml"), environ)


def commands_of(options: StackOptions, folder: Path) -> dict[str, Command]:
    shares = shares_of_models(options, {})
    places = [
        ModelPlace(each, folder / each.model_name, share) for each, share in zip(options.models, shares, strict=True)
    ]
    return {command.name: command for command in service_commands(DataDir(folder), BUS, places)}


def setting(command: Command, name: str) -> str | None:
    """The last that the command line has."""
    flag = f"--{name.replace('_', '-')}"
    places = [index for index, word in enumerate(command.argv) if word == flag]
    return command.argv[places[-1] + 1] if places else None


def test_each_model_has_its_own_and_what_the_file_says_for_all(tmp_path: Path) -> None:
    options = options_of(tmp_path, TWO)
    large, small = options.models
    assert [each.model_name for each in options.models] == ["org/Large", "small one"]
    assert (options.served_name, large.client_names, small.client_names) == (
        "large, small one",
        ["large", "big"],
        ["small one"],
    )
    assert [(each.engine, each.kv_blocks, each.executors) for each in options.models] == [
        ("sim", 100, 2),
        ("sim", 50, 1),
    ]
    assert [each.strategy.preset for each in options.models] == ["hygen", "sarathi++"]
    assert large.tables == {"offline-queue": {}, "executor": {"max_num_seqs": 7, "cuda_graphs": "off"}}
    assert small.tables == {"offline-queue": {"pool_mb": 9}, "executor": {}}


def test_processes_are_named_by_their_models(tmp_path: Path) -> None:
    commands = commands_of(options_of(tmp_path, TWO), tmp_path)
    assert list(commands) == [
        *("predictor", "profiler", "offline-queue-large", "offline-queue-small-one"),
        *("executor-large-0", "executor-large-1", "executor-small-one-0", "gateway"),
    ]
    first, last = commands["executor-large-1"], commands["executor-small-one-0"]
    assert [setting(first, name) for name in ("executor_id", "model_name", "max_num_seqs", "kv_blocks", "preset")] == [
        *("executor-large-1", "org/Large", "7", "100", "hygen"),
    ]
    assert [setting(last, name) for name in ("model_name", "max_num_seqs", "kv_blocks", "preset")] == [
        *("small one", None, "50", "sarathi++"),
    ]
    assert [setting(commands[f"offline-queue-{each}"], "pool_mb") for each in ("large", "small-one")] == [None, "9"]


def test_services_are_told_of_the_other_models(tmp_path: Path) -> None:
    commands = commands_of(options_of(tmp_path, TWO), tmp_path)

    def others(name: str) -> tuple[OtherModel, ...]:
        return parse_other_models(setting(commands[name], "other_models") or "")

    small = OtherModel("small one", str(tmp_path / "small one"))
    assert others("gateway") == (small,) and setting(commands["gateway"], "model_name") == "org/Large"
    assert setting(commands["gateway"], "slo") == "ttft_p99<=1s" == setting(commands["profiler"], "slo")
    assert others("profiler") == (small,), "which has no SLO to keep"
    (large,) = others("offline-queue-small-one")
    assert (large.names, others("offline-queue-large")) == (["large", "big"], (small,))
    assert setting(commands["offline-queue-small-one"], "served_model_name") == ""
    assert setting(commands["executor-large-0"], "other_models") is None


def test_a_models_own_table_says_what_its_executors_are_for(tmp_path: Path) -> None:
    """Unless so many of them are strict."""
    text = '[[models]]\nmodel = "a"\nengine = "sim"\nexecutors = 2\n[models.executor]\nrole = "relaxed"\n'
    roles = [setting(each, "role") for each in commands_of(options_of(tmp_path, text), tmp_path).values()]
    assert [role for role in roles if role] == ["relaxed", "relaxed"]
    text = '[strategy]\npreset = "ooco"\n' + text.replace("[models.executor]", "strict = 1\n[models.executor]")
    roles = [setting(each, "role") for each in commands_of(options_of(tmp_path, text), tmp_path).values()]
    assert [role for role in roles if role] == ["strict", "relaxed"]


def test_executors_have_as_long_to_drain_as_their_models_say(tmp_path: Path) -> None:
    text = '[executor]\ndrain_on_stop_s = 20\n[[models]]\nmodel = "a"\n[[models]]\nmodel = "b"\n'
    commands = commands_of(options_of(tmp_path, text + "[models.executor]\ndrain_on_stop_s = 60\n"), tmp_path)
    assert [commands[f"executor-{name}-0"].grace_s - GRACE_S for name in "ab"] == [20, 60]


def test_command_line_and_environment_hold_for_every_model(tmp_path: Path) -> None:
    options = options_of(tmp_path, TWO, {"kv_blocks": 3}, SLACKWATER_MAX_NUM_SEQS="5")
    assert [each.kv_blocks for each in options.models] == [3, 3]
    assert options.tables["executor"] == {"cuda_graphs": "off"}, "the environment's comes first"
    for given, environ, where in (
        ({"model": "x"}, {}, "--model"),
        ({}, {"SLACKWATER_SERVED_MODEL_NAME": "x"}, "SLACKWATER_SERVED_MODEL_NAME"),
    ):
        with pytest.raises(ConfigError, match=rf"^{where}: .* has \[\[models\]\]; say there what each of them is"):
            options_of(tmp_path, TWO, given, **environ)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[models]\nmodel = "x"\n', r"line 1: models is a list of tables; write \[\[models\]\] above each"),
        ("models = 3\n", r"models is a list of tables"),
        ('[[models]]\nname = "x"\n', r"line 1: this model has no model = ..."),
        ('[[models]]\nmodel = "x"\nmodl = 3\n', r"line 3: unknown setting modl; did you mean model\?"),
        ('[[models]]\nmodel = "x"\nport = 3\n', r"line 3: port belongs to \[stack\], not to \[\[models\]\]"),
        ('[[models]]\nmodel = "x"\nname = 3\n', r"line 3: name is a text"),
        (
            '[[models]]\nmodel = "x"\n[[models]]\nmodel = "y"\n[models.executor]\nmax_num_sqs = 3\n',
            r"line 6: unknown setting max_num_sqs of \[models.executor\]; did you mean max_num_seqs\?",
        ),
        ('[[models]]\nmodel = "x"\nexecutors = 0\n', r"line 3: executors: .*>= 1"),
        ('[[models]]\nmodel = "x"\n[models.strategy]\npreset = "x"\n', r"line 4: preset: unknown preset"),
        ('[[models]]\nmodel = "x"\n[[models]]\nmodel = "x"\n', r"two models are called 'x'"),
        (
            '[[models]]\nmodel = "a/x"\n[[models]]\nmodel = "b/x"\n',
            "processes of a/x and b/x would have the same names",
        ),
        (
            '[[models]]\nmodel = "a"\nserved_model_name = ["n"]\n[[models]]\nmodel = "n"\n',
            r"two models are called 'n'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        options_of(tmp_path, text)


def test_one_table_is_one_model_like_any_other(tmp_path: Path) -> None:
    options = options_of(tmp_path, '[[models]]\nmodel = "org/x"\nengine = "sim"\n')
    assert list(commands_of(options, tmp_path)) == ["predictor", "profiler", "offline-queue", "executor-0", "gateway"]
    assert setting(commands_of(options, tmp_path)["gateway"], "other_models") in (None, "")


def test_models_on_gpus_have_no_gpu_in_common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.local.stack.gpu_pinning.has_cpu_torch", lambda: False)
    monkeypatch.setattr("services.local.stack.gpu_pinning.gpus", lambda: ["a GPU"] * 3)
    monkeypatch.setattr("services.local.stack.gpu_pinning.usable_cores", lambda: 8)
    text = (
        '[[models]]\nmodel = "a"\nexecutors = 2\n[[models]]\nmodel = "b"\n[[models]]\nmodel = "c"\n[models.executor]\n'
    )
    shares = shares_of_models(options_of(tmp_path, text + 'device = "cpu"\n'), {})
    visible = [[share.environ.get("CUDA_VISIBLE_DEVICES") for share in each] for each in shares]
    assert visible == [["0", "1"], ["2"], [None]] and shares[2] == [DeviceShare(2)]
    with pytest.raises(StackError, match=r"no GPU is left for the model c"):
        shares_of_models(options_of(tmp_path, text + 'device = "auto"\n'), {})


def test_the_setting_is_json_that_can_be_read(tmp_path: Path) -> None:
    commands = commands_of(options_of(tmp_path, TWO), tmp_path)
    (told,) = json.loads(setting(commands["gateway"], "other_models") or "")
    assert told["path"] == str(tmp_path / "small one") and told["name"] == "small one"


ADAPTERS = """
[stack]
engine = "vllm"
[[models]]
name = "large"
model = "org/Large"
lora_modules = ["sql=./sql", "chat=some/chat"]
[[models]]
name = "small"
model = "smollm2-135m-instruct"
"""


def test_adapters_are_told_to_those_who_serve_and_run_them(tmp_path: Path) -> None:
    options = options_of(tmp_path, ADAPTERS)
    modules = "sql=./sql,chat=some/chat"
    assert options.all_names == ["large", "sql", "chat"] and options.others[0].all_names == ["small"]
    commands = commands_of(options, tmp_path)
    for name, own in (("gateway", modules), ("offline-queue-large", modules), ("executor-large-0", modules)):
        assert setting(commands[name], "lora_modules") == own
    for name in ("offline-queue-small", "executor-small-0"):
        assert setting(commands[name], "lora_modules") == ""
    (of_small,) = parse_other_models(setting(commands["offline-queue-small"], "other_models") or "")
    assert of_small.all_names == ["large", "sql", "chat"]
    assert setting(prepare_command(options, DataDir(tmp_path)), "lora_modules") == modules
    assert setting(prepare_command(options.others[0], DataDir(tmp_path)), "lora_modules") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "small"', 'name = "sql"'), "two models are called 'sql'"),
        (('"chat=some/chat"', '"small=some/chat"'), "two models are called 'small'"),
        (('"chat=some/chat"', '"sql=some/chat"'), "two adapters are called 'sql'"),
        (('"chat=some/chat"', '"large=some/chat"'), "two models are called 'large'"),
        (('"chat=some/chat"', '"chat"'), "'chat' names no adapter"),
        (('engine = "vllm"', 'engine = "torch"'), "the torch engine runs no LoRA adapters"),
    ],
)
def test_adapters_that_cannot_be_are_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options_of(tmp_path, ADAPTERS.replace(*change))


def test_adapters_of_one_of_several_models_stand_in_its_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--lora-modules: .* has \[\[models\]\]; say there"):
        options_of(tmp_path, ADAPTERS, {"lora_modules": "a=./a"})
    alone = stack_options({"engine": "sim", "lora_modules": "a=./a"}, "", {})
    assert alone.all_names == ["smollm2-135m-instruct", "a"]
