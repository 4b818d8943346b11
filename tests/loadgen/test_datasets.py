"""The data that the documentation names is listed, with what its licence asks to be said, and is found in a folder."""

import json
import re
import subprocess
from pathlib import Path

from loadgen.datasets import DATASETS
from tests.programs import run_slackwater

DOCS = Path(__file__).parents[2] / "docs"
DATA_FILE = re.compile(r"\b[a-z][\w.-]*\.(?:csv|jsonl|txt)\.gz\b")


def test_every_data_file_that_a_page_names_is_listed() -> None:
    named = {name for page in DOCS.rglob("*.md") for name in DATA_FILE.findall(page.read_text())}
    assert named == {dataset.file for dataset in DATASETS}


def test_the_page_says_of_each_what_the_list_says() -> None:
    page = (DOCS / "data.md").read_text()
    for each in DATASETS:
        assert (
            f"| `{each.file}` | {each.what} | {each.licence}: {each.source} | [here]({each.url}): {each.made} |" in page
        )


def test_names_are_names() -> None:
    assert len({each.name for each in DATASETS}) == len({each.file for each in DATASETS}) == len(DATASETS)
    assert all(each.url.startswith("https://") for each in DATASETS)


def listed(*options: str) -> subprocess.CompletedProcess[str]:
    return run_slackwater("data", "list", *options)


def test_what_is_in_a_folder_is_found_packed_or_not(tmp_path: Path) -> None:
    packed, plain = tmp_path / "a" / "azure_llm_2023_conv.csv.gz", tmp_path / "gsm8k_test.jsonl"
    packed.parent.mkdir()
    packed.touch()
    plain.touch()
    found = json.loads(listed("--data", str(tmp_path), "--json").stdout)
    paths = {each["name"]: each["path"] for each in found if each["path"]}
    assert paths == {"azure-conv": str(packed), "gsm8k": str(plain)} and len(found) == len(DATASETS)
    text = listed("--data", str(tmp_path)).stdout
    assert f"there: {packed}" in text and f"not in {tmp_path}: bbh.jsonl.gz" in text
    assert "CC-BY-4.0" in listed().stdout
    assert listed("--data", str(tmp_path / "nowhere")).returncode == 2
