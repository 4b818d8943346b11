"""LoRA adapters as settings name them."""

import msgspec
import pytest

from services.executor.settings import ExecutorSettings
from services.gateway.settings import GatewaySettings
from services.offline_queue.settings import OfflineQueueSettings
from shared.settings.lora_modules import LoraModule, adapter_names, parse_lora_modules
from shared.settings.other_models import OtherModel, parse_other_models, render_other_models


def test_each_has_a_name_and_a_path() -> None:
    assert parse_lora_modules(" ") == ()
    found = parse_lora_modules("sql = ./adapters/sql, org/chat-2:v1=someone/chat,odd=/a=b")
    assert found == (
        LoraModule("sql", "./adapters/sql"),
        LoraModule("org/chat-2:v1", "someone/chat"),
        LoraModule("odd", "/a=b"),
    )
    assert adapter_names("sql=a,chat=b") == ("sql", "chat")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sql", r"'sql' names no adapter: write name=path"),
        ("sql=", "names no adapter"),
        ("=./sql", "'' is no name of an adapter"),
        ("a b=./sql", "'a b' is no name"),
        (f"{'a' * 129}=./sql", "is no name"),
        ("a=./sql,b=./sql,a=./other", "two adapters are called 'a'"),
    ],
)
@pytest.mark.parametrize("settings", [GatewaySettings, OfflineQueueSettings, ExecutorSettings])
def test_what_is_none_is_refused_by_every_service(settings: type[msgspec.Struct], text: str, said: str) -> None:
    for given in ({"lora_modules": text}, {"other_models": f'[{{"name": "b", "lora_modules": "{text}"}}]'}):
        if given.keys() <= set(settings.__struct_fields__):
            with pytest.raises(ValueError, match=said):
                settings(model_path="m", **{"engine": "sim"} if settings is ExecutorSettings else {}, **given)


def test_only_the_torch_engine_has_none() -> None:
    for engine in ("vllm", "sim"):
        assert ExecutorSettings("m", engine=engine, lora_modules="a=./a").lora_modules
    with pytest.raises(ValueError, match="the torch engine runs no LoRA adapters; set engine to vllm"):
        ExecutorSettings("m", lora_modules="a=./a")


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("base=./a", ""),
        ("small=./a", ""),
        ("a=./a", "a=./b"),
        ("", "base=./a"),
        ("stack-name=./a", ""),
    ],
)
def test_no_adapter_is_called_as_another_model_is(own: str, other: str) -> None:
    others = render_other_models([OtherModel("small", "s", lora_modules=other)])
    with pytest.raises(ValueError, match="two models are called"):
        GatewaySettings(
            model_path="m", model_name="stack-name", served_model_name="base", lora_modules=own, other_models=others
        )


def test_clients_call_a_model_by_its_own_name_where_it_has_no_other() -> None:
    assert OtherModel("b", "p").names == ["b"]
    assert OtherModel("b", "p", "big, bigger").names == ["big", "bigger"]


def test_they_belong_to_their_model() -> None:
    others = render_other_models([OtherModel("small", "s", "little", lora_modules="b=./b")])
    assert parse_other_models(others)[0].all_names == ["little", "b"]
    first, second = GatewaySettings(model_path="m", lora_modules="a=./a", other_models=others).models()
    assert (first.lora_modules, second.lora_modules) == ("a=./a", "b=./b")
