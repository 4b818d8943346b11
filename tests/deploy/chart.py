"""The Helm chart, rendered without a cluster and without NATS's own chart, which is fetched where it is installed."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/slackwater"
NAMED_VALUES = ("kind", "one-gpu", "eight-gpus")
WORKLOADS = ("Deployment", "StatefulSet")
RELEASE, NAMESPACE = "slackwater", "llm"

Object = dict[str, Any]


def values_of(name: str) -> Object:
    """Of a values file by its name; those of the chart itself for "default"."""
    path = CHART / ("values.yaml" if name == "default" else f"values-{name}.yaml")
    values: Object = yaml.safe_load(path.read_text())
    return values


def render(values: Mapping[str, Any], release: str = RELEASE) -> list[Object]:
    """All objects, with what is given over the chart's own values. Raises where Helm does."""
    import helm_python

    files: dict[str, str] = helm_python.Chart.load(str(CHART)).render(dict(values), name=release, namespace=NAMESPACE)
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


@functools.cache
def rendered(name: str) -> list[Object]:
    """Of a values file. Not to be changed."""
    return render({} if name == "default" else values_of(name))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def one(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


def containers(workload: Object) -> Iterator[Object]:
    """Those that prepare as well."""
    spec = workload["spec"]["template"]["spec"]
    yield from (*spec.get("initContainers", ()), *spec["containers"])


def main_container(workload: Object) -> Object:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    container: Object = found
    return container


def environment(container: Object) -> dict[str, str]:
    """What is from elsewhere (a Secret, the pod) has some value, which is a number where it is one."""
    entries = container.get("env", ())
    names = [each["name"] for each in entries]
    assert len(set(names)) == len(names), f"named twice: {names}"
    return {each["name"]: each.get("value") or ("2" if "THREADS" in each["name"] else "x" * 48) for each in entries}


def is_selected(selector: Mapping[str, str], workload: Object) -> bool:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    return selector.items() <= labels.items()
