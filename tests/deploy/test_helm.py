"""deploy/helm/slackwater: what Helm makes of each values file is what Kubernetes takes and what the services read."""

import json
import os
import posixpath
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from services.gateway.metrics_reference import all_series
from services.local.stack.catalogue import SERVICES
from services.local.stack.service_commands import MAX_PAYLOAD, SYNC_INTERVAL
from shared.settings.config import Sources, composed
from shared.settings.other_models import OtherModel, parse_other_models
from shared.settings.setting import settings_of
from tests.deploy.chart import (
    CHART,
    NAMED_VALUES,
    ROOT,
    WORKLOADS,
    Object,
    containers,
    environment,
    is_selected,
    main_container,
    of_kind,
    one,
    render,
    rendered,
    values_of,
)
from tests.services.gateway.gateway_rig import wait_until

helm_python = pytest.importorskip("helm_python")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

ALL_VALUES = ("default", *NAMED_VALUES)
EVERYTHING: Object = {
    "gateway": {"ingress": {"enabled": True, "tlsSecret": "cert"}, "autoscaling": {"requests": {"enabled": True}}},
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True},
        "grafanaDashboard": {"enabled": True},
    },
    "model": {"volume": {"type": "emptyDir"}, "hubToken": {"secret": "hub"}},
    "image": {"registry": "registry.example/llm", "pullSecrets": ["pull"]},
    "slo": ["ttft_p99<=800ms", "tbt_p99<=60ms"],
    "nats": {"enabled": False},
    "bus": {"url": "tls://bus.example:4222"},
    "networkPolicy": {"gatewayFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]},
}
OF_OPERATOR = ("ServiceMonitor", "PrometheusRule")  # no kinds of Kubernetes' own
OF_TARGETS = {"namespace", "pod", "container", "service", "endpoint", "node", "job", "instance"}  # the operator's
BUS_SETTINGS = {"SLACKWATER_NATS_CREDS", "SLACKWATER_NATS_CA"}
CLOSED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def everything() -> list[Object]:
    return render(EVERYTHING)


@pytest.fixture(params=[*ALL_VALUES, "everything"])
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return everything() if request.param == "everything" else rendered(request.param)


def workloads(objects: list[Object]) -> list[Object]:
    found = of_kind(objects, *WORKLOADS)
    assert found
    return found


def component(workload: Object) -> str:
    found: str = workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
    return found


# What Helm and Kubernetes say


def test_helm_finds_nothing_wrong() -> None:
    report = helm_python.lint(str(CHART))
    worse_than_hints = [message["error"] for message in report["messages"] if message["severity"] > 1]
    assert worse_than_hints == ["chart directory is missing these dependencies: nats"] and not report["errors"]


def test_kubernetes_takes_every_object(objects: list[Object]) -> None:
    kinds = {each["kind"] for each in objects}
    assert kinds >= {"Deployment", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy", "Secret"}
    for each in objects:
        if each["kind"] not in OF_OPERATOR:
            kubernetes_validate.validate(each, "1.30", strict=True)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


def test_objects_of_the_prometheus_operator_are_of_its_shape() -> None:
    made = everything()
    (monitor,) = of_kind(made, "ServiceMonitor")
    (service,) = [each for each in of_kind(made, "Service") if each["metadata"]["name"].endswith("-gateway")]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]] and endpoint["path"] == "/metrics"
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    (rules,) = of_kind(made, "PrometheusRule")
    assert rules["apiVersion"] == "monitoring.coreos.com/v1" and rules["spec"] == alerts
    jobs = set(re.findall(r'job="([\w-]+)"', str(alerts)))
    renamed, dropped = endpoint["relabelings"]
    assert {renamed["replacement"]} == jobs and renamed["targetLabel"] == "job"
    labels = {label for group in all_series().values() for series in group for label in series.labels}
    assert (dropped["action"], {dropped["regex"]}) == ("labeldrop", labels & OF_TARGETS), "else exported_service"


def test_the_board_is_where_the_sidecar_of_grafana_looks() -> None:
    board = json.loads((ROOT / "deploy/grafana/dashboards/slackwater.json").read_text())
    (found,) = [each for each in of_kind(everything(), "ConfigMap") if "slackwater.json" in each["data"]]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["slackwater.json"]) == board
    labels = {"grafana_dashboard": "yes", "team": "llm"}
    own = {"monitoring": {"grafanaDashboard": {"enabled": True, "labels": labels}}}
    assert one(render(own), "ConfigMap", "slackwater-dashboard")["metadata"]["labels"].items() >= labels.items()
    assert not of_kind(rendered("default"), "ConfigMap")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gateway": {"replcas": 3}}, "replcas"),
        ({"gateway": {"replicas": "three"}}, "replicas"),
        ({"gateway": {"settings": {"max_wait": 3}}}, "max_wait"),
        ({"gateway": {"settings": {"port": 3}}}, "port"),
        ({"strategy": {"preset": "hygen2"}}, "preset"),
        ({"strategy": {"budget_ms": "fast"}}, "budget_ms"),
        ({"executors": [{"replicas": 2}]}, "name"),
        ({"executors": [{"name": "Mixed"}]}, "name"),
        *(
            ({"fullnameOverride": name}, "fullnameOverride")
            for name in ("l" * 27, "LLM", "a.b", "-a", "a-", "1a", "a b")
        ),
        ({"executors": [{"name": "mixed", "role": "stern"}]}, "role"),
        ({"executors": [{"name": "mixed", "model": "another"}]}, "there is no model another in model"),
        ({"executors": [{"name": "mixed", "resources": {"requests": {"cpu": "much"}, "limits": {"cpu": 1}}}]}, "cpu"),
        ({"bus": {"url": "http://bus"}}, "url"),
        ({"bus": {"replicas": 2}}, "replicas"),
        ({"gateway": {"settings": {"served_model_name": ["a"]}}}, "served_model_name"),
        ({"predictor": {"replicas": 2}}, "replicas"),
        ({"monitoring": {"grafanaDashboard": {"folder": "llm"}}}, "folder"),
        # What templates check.
        ({"nats": {"enabled": False}}, "bus.url has to name"),
        ({"bus": {"url": "tls://bus:4222"}}, "set nats.enabled to false"),
        ({"nats": {"enabled": False}, "bus": {"url": "nats://bus:4222"}}, "has to begin with tls://"),
        ({"bus": {"secured": False}}, "nats.config.nats.tls.enabled"),
        ({"bus": {"replicas": 5}}, "bus.replicas is 5, and nats has 3 servers"),
        ({"gateway": {"autoscaling": {"minReplicas": 8}}}, "minReplicas is 8, and maxReplicas 6"),
        ({"slo": ["ttft_p99<=1s"], "strategy": {"budget_ms": 50}}, "not both"),
        (
            {"slo": ["ttft_p99<=1s"], "executors": [{"name": "a", "strategy": {"budget_ms": 50}}]},
            "executors: a: give one",
        ),
        (
            {
                "strategy": {"budget_ms": 50},
                "otherModels": [{"name": "b", "source": "b", "short": "b", "slo": ["ttft_p99<=1s"]}],
                "executors": [{"name": "a"}, {"name": "b", "model": "b"}],
            },
            "executors: b: give one of slo and strategy.budget_ms, not both",
        ),
        ({"executors": [{"name": "a"}, {"name": "a"}]}, "two pools are called a"),
        ({"executors": [{"name": "a", "tensorParallel": 2}]}, "torch engine runs on one GPU"),
        ({"model": {"loraModules": ["sql=some/sql"]}}, "mixed: the torch engine runs no LoRA adapters"),
        ({"otherModels": [{"name": "b", "source": "b"}]}, "short"),
        ({"otherModels": [{"name": "b", "source": "b", "short": "default"}]}, "short"),
        ({"otherModels": [{"name": "b", "source": "b", "short": "b"}]}, "no pool is of the model b"),
        (
            {"otherModels": [{"name": "smollm2-135m-instruct", "source": "b", "short": "b"}]},
            "two models are called smollm2-135m-instruct",
        ),
        ({"otherModels": [{"name": name, "source": name, "short": "x"} for name in "bc"]}, "two models are short x"),
        ({"executors": [{"name": "a", "engine": "vllm", "tensorParallel": 4, "gpus": 2}]}, "has 2 GPUs and uses 4"),
    ],
)
def test_values_that_are_wrong_are_refused_by_name(values: Object, message: str) -> None:
    with pytest.raises(Exception, match=re.escape(message)):
        render(values)


def test_all_names_begin_with_the_one_that_is_given() -> None:
    name = "production-llm-1-eu-west-1"
    assert len(name) == 26 and {each["metadata"]["name"] for each in render({"fullnameOverride": name})} > {
        *(f"{name}-gateway", f"{name}-executor-mixed", f"{name}-profiler")
    }


def test_the_schema_knows_the_settings_of_the_code() -> None:
    from deploy.helm.settings_schema import SCHEMA, definitions

    known = yaml.safe_load(SCHEMA.read_text())["definitions"]
    for name, definition in definitions().items():
        assert known[name] == definition, "run: python -m deploy.helm.settings_schema"


# What is in it


def test_every_variable_is_a_setting_and_its_value_is_accepted(objects: list[Object]) -> None:
    for workload in workloads(objects):
        struct = SERVICES[component(workload)]
        environ = environment(main_container(workload))
        settings = settings_of(struct)
        own = {name for name in environ if name.startswith("SLACKWATER_")}
        assert own <= {setting.variable for setting in settings}
        composed(struct, Sources({}, environ, None, ()).resolve(settings))


@pytest.mark.parametrize("name", ALL_VALUES)
def test_executors_and_the_offline_queue_have_the_same_strategy(name: str) -> None:
    strategies = {}
    for workload in workloads(rendered(name)):
        if component(workload) in ("executor", "offline-queue"):
            environ = environment(main_container(workload))
            variables = [each.variable for each in settings_of(SERVICES[component(workload)]) if each.table]
            strategies[workload["metadata"]["name"]] = {each: environ.get(each) for each in variables}
    assert len({str(each) for each in strategies.values()}) == 1
    assert len(strategies) == 1 + len(values_of(name)["executors"])


def test_containers_are_closed_and_bounded(objects: list[Object]) -> None:
    for workload in workloads(objects):
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "a Service's name would set SLACKWATER_PORT"
        for container in containers(workload):
            assert container["securityContext"] == CLOSED
            for bound in ("requests", "limits"):
                assert {"cpu", "memory"} <= set(container["resources"][bound])
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert mounts <= {volume["name"] for volume in pod["volumes"]}
            if container["name"] != "wait-for-model":
                assert "scratch" in mounts


def test_secrets_are_in_no_argument_and_no_plain_variable(objects: list[Object]) -> None:
    for workload in workloads(objects):
        for container in containers(workload):
            assert "API_KEY" not in str([container.get("command"), container.get("args")])
            secret = [each for each in container.get("env", ()) if re.search("API_KEY|TOKEN$", each["name"])]
            assert all("secretKeyRef" in each["valueFrom"] for each in secret)
    for each in of_kind(objects, "Secret"):
        assert list(each["data"]) == ["api-key"]


@pytest.mark.parametrize("secured", [True, False])
def test_a_secured_bus_gives_each_service_the_credentials_of_its_role(secured: bool) -> None:
    values: Object = {"nats": {"enabled": False}, "bus": {"url": "tls://bus:4222", "secured": secured}}
    for workload in workloads(render(values)):
        environ, pod = environment(main_container(workload)), workload["spec"]["template"]["spec"]
        secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
        assert secrets == ([f"slackwater-bus-{component(workload)}"] if secured else [])
        assert (set(environ) >= BUS_SETTINGS) == secured
        if secured:
            (mount,) = [mount for mount in main_container(workload)["volumeMounts"] if mount["name"] == "bus"]
            assert {posixpath.dirname(environ[name]) for name in BUS_SETTINGS} == {mount["mountPath"]}


def test_who_is_in_a_release_finds_the_bus_of_it() -> None:
    for release, host in (("slackwater", "slackwater-nats"), ("my-nats", "my-nats"), ("a.b", "a.b-nats")):
        for workload in workloads(render({}, release)):
            assert environment(main_container(workload))["SLACKWATER_NATS"] == f"tls://{host}:4222"
            assert len(workload["metadata"]["name"]) <= 52


def nats_of(**cluster: Any) -> Object:
    return {"config": {"cluster": cluster}}


@pytest.mark.parametrize(
    ("values", "copies"),
    [
        ({}, "3"),
        ({"nats": nats_of(replicas=5)}, "3"),
        ({"nats": nats_of(replicas=2)}, "1"),
        ({"nats": nats_of(enabled=False)}, "1"),
        ({"nats": nats_of(replicas=5), "bus": {"replicas": 5}}, "5"),
        ({"bus": {"replicas": 1}}, "1"),
        ({"nats": {"enabled": False}, "bus": {"url": "tls://bus:4222"}}, "auto"),
        ({"nats": {"enabled": False}, "bus": {"url": "tls://bus:4222", "replicas": 3}}, "3"),
    ],
)
def test_there_are_as_many_copies_as_the_servers_of_nats_can_keep(values: Object, copies: str) -> None:
    """Its chart has them tell clients of no other server, so nobody can count them."""
    for workload in workloads(render(values)):
        environ, struct = environment(main_container(workload)), SERVICES[component(workload)]
        settings = composed(struct, Sources({}, environ, None, ()).resolve(settings_of(struct)))
        assert settings.nats_replicas == copies  # type: ignore[attr-defined]


def test_nats_is_configured_as_elsewhere() -> None:
    nats = values_of("default")["nats"]["config"]
    config = (ROOT / "deploy/nats/nats.conf").read_text()
    for name in ("max_payload", "max_pending"):
        (value,) = re.findall(r"<< (.*) >>", nats["merge"][name])
        assert f"{name}: {value}" in config
    assert nats["merge"]["max_payload"] == f"<< {MAX_PAYLOAD} >>"
    assert nats["jetstream"]["merge"]["sync_interval"] == SYNC_INTERVAL
    assert nats["jetstream"]["enabled"] and nats["cluster"]["replicas"] == 3


def test_nats_reads_its_users_from_its_secret() -> None:
    nats = values_of("default")["nats"]
    (mount,), (volume,) = nats["container"]["patch"], nats["podTemplate"]["patch"]
    include = posixpath.normpath(f"/etc/nats-config/{nats['config']['merge']['$include']}")
    assert include == f"{mount['value']['mountPath']}/auth.conf" and mount["value"]["name"] == volume["value"]["name"]
    assert volume["value"]["secret"]["secretName"] == nats["config"]["nats"]["tls"]["secretName"]
    objects = render({"bus": {"secured": False}, "nats": {"config": {"nats": {"tls": {"enabled": False}}}}})
    without_users = one(objects, "Secret", volume["value"]["secret"]["secretName"])
    assert list(without_users["stringData"]) == ["auth.conf"]


def test_who_is_asked_whether_it_is_ready(objects: list[Object]) -> None:
    for workload in workloads(objects):
        container = main_container(workload)
        probes = {name for name in container if name.endswith("Probe")}
        if component(workload) == "gateway":
            assert probes == {"startupProbe", "readinessProbe", "livenessProbe"}
            assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
            assert container["livenessProbe"]["httpGet"]["path"] == "/health"
        else:
            assert probes == {"readinessProbe"}, "a bus that is away restarts nobody"
            asked = "$SLACKWATER_EXECUTOR_ID" if component(workload) == "executor" else component(workload)
            assert f'shared.process.healthcheck "{asked}"' in container["readinessProbe"]["exec"]["command"][-1]


def test_there_is_time_to_drain(objects: list[Object]) -> None:
    for workload in workloads(objects):
        container = main_container(workload)
        environ, pod = environment(container), workload["spec"]["template"]["spec"]
        grace_s = pod["terminationGracePeriodSeconds"]
        if component(workload) == "executor":
            assert grace_s >= float(environ["SLACKWATER_DRAIN_ON_STOP_S"]) + 20 >= 60
        elif component(workload) == "gateway":
            pre_stop_s = float(container["lifecycle"]["preStop"]["exec"]["command"][-1])
            assert grace_s >= pre_stop_s + float(environ["SLACKWATER_DRAIN_S"]) + 5
        else:
            assert grace_s == 30


def test_selectors_find_their_pods_and_no_others(objects: list[Object]) -> None:
    made = workloads(objects)
    for workload in made:
        selector = workload["spec"]["selector"]["matchLabels"]
        assert [each["metadata"]["name"] for each in made if is_selected(selector, each)] == [
            workload["metadata"]["name"]
        ]
    for budget in of_kind(objects, "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]["matchLabels"]
        assert [each["metadata"]["name"] for each in made if is_selected(selector, each)] == [
            budget["metadata"]["name"]
        ]
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "Service")}
    reached = {
        name: {component(each) for each in made if is_selected(spec["selector"], each)}
        for name, spec in services.items()
    }
    assert reached == {"slackwater-gateway": {"gateway"}, "slackwater-executors": {"executor"}}
    for workload in of_kind(objects, "StatefulSet"):
        assert workload["spec"]["serviceName"] in services


def test_who_may_connect_to_whom() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(rendered("default"), "NetworkPolicy")}
    made = workloads(rendered("default"))
    closed = policies["slackwater"]
    assert all(is_selected(closed["podSelector"]["matchLabels"], each) for each in made) and "ingress" not in closed
    assert policies["slackwater-gateway"]["ingress"] == [{"ports": [{"port": "http"}]}]
    (among_executors,) = policies["slackwater-executors"]["ingress"]
    selector = policies["slackwater-executors"]["podSelector"]
    assert among_executors == {"from": [{"podSelector": selector}]}
    assert {component(each) for each in made if is_selected(selector["matchLabels"], each)} == {"executor"}
    clients, servers = policies["slackwater-bus"]["ingress"]
    assert clients["ports"] == [{"port": 4222}] and servers["ports"] == [{"port": 6222}]
    assert all(is_selected(clients["from"][0]["podSelector"]["matchLabels"], each) for each in made)
    assert servers["from"] == [{"podSelector": policies["slackwater-bus"]["podSelector"]}]


def test_gateways_scale_by_cpu_and_by_series_that_there_are() -> None:
    gateway = one(rendered("default"), "Deployment", "slackwater-gateway")
    (scaler,) = of_kind(everything(), "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == gateway["metadata"]["name"] and "replicas" not in gateway["spec"]
    by_cpu, *by_series = scaler["spec"]["metrics"]
    assert by_cpu["resource"]["name"] == "cpu"
    exposed = {series.exposed for group in all_series().values() for series in group}
    assert len(by_series) == 2 and {each["pods"]["metric"]["name"] for each in by_series} <= exposed
    assert one(rendered("kind"), "Deployment", "slackwater-gateway")["spec"]["replicas"] == 1


def test_pools_are_as_their_values_say() -> None:
    pools = {each["metadata"]["name"]: each for each in of_kind(rendered("eight-gpus"), "StatefulSet")}
    assert set(pools) == {"slackwater-executor-strict", "slackwater-executor-relaxed"}
    assert sum(each["spec"]["replicas"] for each in pools.values()) == 8
    for name, pool in pools.items():
        container = main_container(pool)
        environ = environment(container)
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert environ["SLACKWATER_ROLE"] in name and environ["SLACKWATER_PRESET"] == "ooco"
        (own,) = [each for each in container["env"] if each["name"] == "SLACKWATER_EXECUTOR_ID"]
        assert own["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    on_cpu = main_container(one(rendered("kind"), "StatefulSet", "slackwater-executor-mixed"))
    assert "nvidia.com/gpu" not in str(on_cpu["resources"]) and environment(on_cpu)["SLACKWATER_DEVICE"] == "cpu"
    (threads,) = [each for each in on_cpu["env"] if each["name"] == "SLACKWATER_THREADS"]
    assert threads["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"


def test_what_a_pool_says_comes_before_the_defaults_zero_too() -> None:
    pool = {"name": "a", "replicas": 0, "gpus": 0, "tolerations": [], "strategy": {"budget_ms": 0}, "engine": "sim"}
    (made,) = of_kind(render({"executors": [pool], "strategy": {"budget_ms": 40}}), "StatefulSet")
    assert made["spec"]["replicas"] == 0 and "tolerations" not in made["spec"]["template"]["spec"]
    assert environment(main_container(made))["SLACKWATER_BUDGET_MS"] == "0"


def test_what_a_pool_does_not_say_of_settings_and_strategy_is_as_in_the_defaults() -> None:
    defaults: Object = {"settings": {"kv_blocks": 1000, "dtype": "float16"}, "strategy": {"tolerance": 0.05}}
    pool: Object = {"name": "a", "settings": {"dtype": "float32"}, "strategy": {"idle_budget_ms": 9}}
    (made,) = of_kind(render({"executorDefaults": defaults, "executors": [pool]}), "StatefulSet")
    names = ("KV_BLOCKS", "DTYPE", "TOLERANCE", "IDLE_BUDGET_MS")
    assert [environment(main_container(made))[f"SLACKWATER_{name}"] for name in names] == [
        "1000",
        "float32",
        "0.05",
        "9",
    ]


def test_a_model_may_have_an_slo_where_another_has_a_budget() -> None:
    other = {"name": "b", "source": "b", "short": "b", "slo": ["ttft_p99<=1s"], "strategy": {"budget_ms": 0}}
    values: Object = {"strategy": {"budget_ms": 50}, "executors": [{"name": "a"}, {"name": "b", "model": "b"}]}
    made = of_kind(render(values | {"otherModels": [other]}), "StatefulSet")
    assert [environment(main_container(each))["SLACKWATER_BUDGET_MS"] for each in made] == ["50", "0"]


SEVERAL: Object = {
    "otherModels": [
        {"name": "org/B.small", "short": "small", "source": "org/B.small", "servedModelName": ["b", "bee"]},
        {"name": "c", "short": "c", "source": "c", "slo": ["ttft_p99<=1s"], "strategy": {"preset": "ooco"}},
    ],
    "executors": [
        {"name": "mixed"},
        {"name": "small", "model": "org/B.small", "engine": "sim"},
        {"name": "c", "model": "c", "strategy": {"budget_ms": 0}},
    ],
}


def test_each_of_several_models_has_executors_and_an_offline_queue() -> None:
    objects = render(SEVERAL)
    made = {each["metadata"]["name"].removeprefix("slackwater-"): each for each in workloads(objects)}
    models = {name: environment(main_container(each)).get("SLACKWATER_MODEL_NAME", "") for name, each in made.items()}
    default = values_of("default")["model"]["name"]
    assert models == {
        "predictor": "",
        "profiler": "",
        "gateway": default,
        "executor-mixed": default,
        "executor-small": "org/B.small",
        "executor-c": "c",
        "offline-queue": default,
        "offline-queue-small": "org/B.small",
        "offline-queue-c": "c",
    }
    presets = {name: environment(main_container(each)).get("SLACKWATER_PRESET") for name, each in made.items()}
    assert presets["offline-queue-c"] == presets["executor-c"] == "ooco" != presets["offline-queue-small"] == "hygen"
    for name, each in made.items():
        kind = next(kind for kind in SERVICES if name.startswith(kind))
        environ = environment(main_container(each))
        composed(SERVICES[kind], Sources({}, environ, None, ()).resolve(settings_of(SERVICES[kind])))
        assert environ["SLACKWATER_NATS_CREDS"] and component(each) == kind
        if kind == "offline-queue":
            assert 'healthcheck "offline-queue"' in str(main_container(each)["readinessProbe"])
    test_selectors_find_their_pods_and_no_others(objects)
    test_kubernetes_takes_every_object(objects)


def test_who_knows_of_all_models_is_told_what_their_pods_have() -> None:
    objects = render(SEVERAL)
    environs = {each["metadata"]["name"]: environment(main_container(each)) for each in workloads(objects)}

    def others(name: str) -> dict[str, OtherModel]:
        text = environs[f"slackwater-{name}"].get("SLACKWATER_OTHER_MODELS", "")
        return {model.name: model for model in parse_other_models(text)}

    told, default = others("gateway"), values_of("default")["model"]["name"]
    assert list(told) == ["org/B.small", "c"] and told["org/B.small"].names == ["b", "bee"]
    for name, short in (("org/B.small", "small"), ("c", "c")):
        assert told[name].path == environs[f"slackwater-executor-{short}"]["SLACKWATER_MODEL_PATH"]
    assert told["c"].slo == others("profiler")["c"].slo == "ttft_p99<=1s" and not others("profiler")["org/B.small"].slo
    assert list(others("offline-queue-small")) == [default, "c"] and list(others("offline-queue")) == list(told)
    assert environs["slackwater-offline-queue-small"]["SLACKWATER_SERVED_MODEL_NAME"] == "b,bee"
    gateway = one(objects, "Deployment", "slackwater-gateway")["spec"]["template"]["spec"]
    waited = [environment(init)["SLACKWATER_MODEL_PATH"] for init in gateway["initContainers"]]
    assert waited == [environs["slackwater-gateway"]["SLACKWATER_MODEL_PATH"], *(each.path for each in told.values())]
    assert len({init["name"] for init in gateway["initContainers"]}) == 3
    own_volumes = render(SEVERAL | {"model": {"volume": {"type": "emptyDir"}}})
    gateway = one(own_volumes, "Deployment", "slackwater-gateway")["spec"]["template"]["spec"]
    engines = [environment(each)["ENGINE"] for each in gateway["initContainers"]]
    assert engines == ["torch", "sim", "torch"], "each model's is that of its own pool"


def test_who_prepares_a_model_knows_its_engine_where_the_defaults_name_the_model() -> None:
    values: Object = {
        "model": {"volume": {"type": "emptyDir"}},
        "otherModels": [{"name": "b", "source": "b", "short": "b"}],
        "executorDefaults": {"model": "b", "engine": "sim"},
        "executors": [{"name": "a", "model": values_of("default")["model"]["name"], "engine": "torch"}, {"name": "b"}],
    }
    gateway = one(render(values), "Deployment", "slackwater-gateway")["spec"]["template"]["spec"]
    assert [environment(each)["ENGINE"] for each in gateway["initContainers"]] == ["torch", "sim"]


def test_all_who_answer_clients_know_the_names_of_each_model_and_how_it_samples() -> None:
    first = {"servedModelName": ["large", "default"], "generationConfig": "none"}
    objects = render(SEVERAL | {"model": first})
    environs = {each["metadata"]["name"]: environment(main_container(each)) for each in workloads(objects)}

    def told(name: str) -> tuple[str, str]:
        environ = environs[f"slackwater-{name}"]
        return environ.get("SLACKWATER_SERVED_MODEL_NAME", ""), environ["SLACKWATER_GENERATION_CONFIG"]

    def told_of_other(name: str, model: str) -> tuple[str, str]:
        others = parse_other_models(environs[f"slackwater-{name}"]["SLACKWATER_OTHER_MODELS"])
        (found,) = [each for each in others if each.name == model]
        return found.served_model_name, found.generation_config

    assert told("gateway") == told("offline-queue") == ("large,default", "none")
    assert told_of_other("offline-queue-small", values_of("default")["model"]["name"]) == told("gateway")
    assert told("offline-queue-small") == told_of_other("gateway", "org/B.small") == ("b,bee", "auto")
    assert told("offline-queue-c") == told_of_other("gateway", "c") == ("", "auto")


ADAPTERS: Object = {
    "model": {"loraModules": ["sql=/var/lib/slackwater/models/sql", "chat=some/chat"]},
    "otherModels": [{"name": "b", "short": "b", "source": "b", "loraModules": ["own=some/own"]}],
    "executors": [{"name": "mixed", "engine": "vllm"}, {"name": "small", "model": "b", "engine": "sim"}],
}


def test_adapters_are_told_to_those_who_serve_prepare_and_run_them() -> None:
    objects = render(ADAPTERS)
    for workload in workloads(objects):
        environ, kind = environment(main_container(workload)), component(workload)
        settings = composed(SERVICES[kind], Sources({}, environ, None, ()).resolve(settings_of(SERVICES[kind])))
        told = getattr(settings, "lora_modules", "")
        of_first = environ.get("SLACKWATER_MODEL_NAME") == values_of("default")["model"]["name"]
        expected = ",".join(ADAPTERS["model"]["loraModules"]) if of_first else "own=some/own"
        assert told == ("" if kind in ("predictor", "profiler") else expected)
        for init in workload["spec"]["template"]["spec"].get("initContainers", ()):
            of_init = environment(init)["SLACKWATER_LORA_MODULES"]
            assert of_init == told or kind == "gateway"
            assert "--lora-modules" in str(init["command"]) or kind != "executor"
        if kind == "executor":
            (prepare,) = workload["spec"]["template"]["spec"]["initContainers"]
            assert environ["HF_HOME"] == environment(prepare)["HF_HOME"], "what is fetched is found"
        if kind == "gateway":
            (other,) = parse_other_models(environ["SLACKWATER_OTHER_MODELS"])
            assert other.all_names == ["b", "own"]
    plain = [environment(main_container(each)) for each in workloads(render({}))]
    assert not [environ for environ in plain if {"SLACKWATER_LORA_MODULES", "HF_HOME"} & set(environ)]


def test_settings_are_written_as_services_read_them() -> None:
    settings: Object = {"max_offline_bytes": 8589934592, "max_wait_s": 2.5, "cors_origins": ["https://a", "https://b"]}
    gateway = one(render({"gateway": {"settings": settings}}), "Deployment", "slackwater-gateway")
    environ = environment(main_container(gateway))
    written = [environ[f"SLACKWATER_{name.upper()}"] for name in settings]
    assert written == ["8589934592", "2.5", "https://a,https://b"]


@pytest.mark.parametrize("volume", ["claim", "emptyDir", "hostPath"])
def test_the_model_is_prepared_where_it_is_used(volume: str) -> None:
    objects = render({"model": {"volume": {"type": volume}}})
    claims = {each["metadata"]["name"] for each in of_kind(objects, "PersistentVolumeClaim")}
    assert ("slackwater-model" in claims) == (volume == "claim")
    for workload in workloads(objects):
        pod = workload["spec"]["template"]["spec"]
        if component(workload) in ("predictor", "profiler"):
            assert "initContainers" not in pod
            continue
        (init,) = pod["initContainers"]
        prepares = component(workload) == "executor" or volume != "claim"
        assert init["name"] == ("prepare-model" if prepares else "wait-for-model")
        assert ("slackwater-executor" in init["image"]) == prepares
        path = environment(init)["SLACKWATER_MODEL_PATH"]
        assert environment(main_container(workload))["SLACKWATER_MODEL_PATH"] == path
        (mount,) = [each for each in main_container(workload)["volumeMounts"] if each["name"] == "model"]
        assert path.startswith(f"{mount['mountPath']}/") and mount["readOnly"]


def test_what_prepares_a_model_leaves_a_link_that_others_wait_for(tmp_path: Path, model_folder: Path) -> None:
    """The containers' commands themselves, with other folders."""
    objects = render({"model": {"source": str(model_folder)}})
    waiting, preparing = (
        next(containers(one(objects, kind, f"slackwater-{name}")))
        for kind, name in (("Deployment", "gateway"), ("StatefulSet", "executor-mixed"))
    )
    for init in (preparing, preparing, waiting):
        path = tmp_path / posixpath.basename(environment(init)["SLACKWATER_MODEL_PATH"])
        folders = {"SLACKWATER_MODEL_PATH": str(path), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        search = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = [word.replace("/tmp/", f"{tmp_path}/") for word in init["command"]]
        subprocess.run(command, env=environment(init) | folders | search, check=True, timeout=60)
        assert path.readlink() == model_folder.resolve()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="no namespace of processes can be made")
@pytest.mark.parametrize("volume", ["claim", "emptyDir"])
def test_a_pod_that_waits_for_its_model_ends_when_it_is_told_to(volume: str, tmp_path: Path) -> None:
    """As the first process, which gets no signal that it does not handle; the pod would last for its grace period."""
    for_ever = tmp_path / "python"
    for_ever.write_text("#!/bin/sh\nexec sleep 1000\n")
    for_ever.chmod(0o755)
    objects = render({"model": {"volume": {"type": volume}}})
    init = next(containers(one(objects, "Deployment", "slackwater-gateway")))
    command = [word.replace("/tmp/", f"{tmp_path}/") for word in init["command"]]
    first = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command)
    environ = environment(init) | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(first, env=environ) as unshare:
        try:
            waiting = psutil.Process(unshare.pid)
            wait_until(lambda: "sleep" in {each.name() for each in waiting.children(True)}, "it does not wait")
            waiting.children()[0].terminate()
            assert unshare.wait(10) == 128 + signal.SIGTERM
        finally:
            unshare.kill()


def test_what_the_chart_names_is_there() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert chart["appVersion"] == project["project"]["version"]
    images = {f"slackwater-{path.suffix[1:]}" for path in ROOT.glob("deploy/Dockerfile.*")}
    assert set(values_of("default")["images"].values()) == images - {"slackwater-loadgen"}
    assert (CHART / "files/alerts.yml").resolve() == ROOT / "deploy/prometheus/alerts.yml"
    assert (CHART / "files/slackwater.json").resolve() == ROOT / "deploy/grafana/dashboards/slackwater.json"
    guide = (ROOT / "docs/guides/kubernetes.md").read_text()
    assert all(f"values-{name}.yaml" in guide for name in NAMED_VALUES)
    assert len(list(CHART.glob("values-*.yaml"))) == len(NAMED_VALUES)
