"""The public traces and sets of prompts that the documentation's figures were made with: what and whose they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

GITHUB = "https://raw.githubusercontent.com"
TREE = "https://github.com/{}/tree/{}"
AS_IT_IS = "the file itself; gzip it or leave it as it is"


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """``file``: its name where the documentation names it. ``made``: what has to be done to what is at ``url``."""

    name: str
    what: str
    file: str
    licence: str
    source: str  # as it is cited
    url: str
    made: str = AS_IT_IS

    def found_in(self, files: Iterable[Path]) -> Path | None:
        """The first of these that is it, by its name, packed or not."""
        names = (self.file, self.file.removesuffix(".gz"))
        return next((file for file in files if file.name in names), None)


AZURE_COMMIT = "b469a113cedca53ddc3bdea71a143dc4b7d8700c"
MOONCAKE_COMMIT = "3b5a594133958449a1feaf1c9e0fc1b553e34a28"
SERVEGEN_COMMIT = "f891d1189eb32b3868dfc443800c4150548c282a"
VIDUR_COMMIT = "7d47513363ec447a741ac5e47241580b47724fbf"
GSM8K_COMMIT = "3101c7d5072418e28b9008a6636bde82a006892c"
BBH_COMMIT = "9ee07bd481feebf959a6b59d61ea57bdcf30964d"
LIGER_COMMIT = "ead96b618e5c67bddc6a6e9bcb99bfe6b5ab661c"
MMLU_URL = "https://people.eecs.berkeley.edu/~hendrycks/data.tar"
MMLU_MADE = (
    "its {} folder, the subjects after each other, as JSON lines: subject, question, choices (four), answer (A-D)"
)

DATASETS = (
    Dataset(
        name="azure-conv",
        what="online: one hour of chat, 19,366 requests with times and lengths",
        file="azure_llm_2023_conv.csv.gz",
        licence="CC-BY-4.0",
        source="Azure LLM inference trace 2023, Microsoft; Patel et al., Splitwise, ISCA 2024",
        url=f"{GITHUB}/Azure/AzurePublicDataset/{AZURE_COMMIT}/data/AzureLLMInferenceTrace_conv.csv",
    ),
    Dataset(
        name="mooncake-conv",
        what="online: one hour of chat, 12,031 requests with long prompts and the hashes of their prefixes",
        file="mooncake_fast25_conversation.jsonl.gz",
        licence="Apache-2.0",
        source="Mooncake traces, Moonshot AI; Qin et al., Mooncake, FAST 2025",
        url=f"{GITHUB}/kvcache-ai/Mooncake/{MOONCAKE_COMMIT}/FAST25-release/traces/conversation_trace.jsonl",
    ),
    Dataset(
        name="servegen-clients",
        what="online: rates of 162 clients over 14 days, from which bursty arrivals are drawn",
        file="servegen_m-large_clients.csv.gz",
        licence="Apache-2.0",
        source="ServeGen, Alibaba, arXiv 2505.09999",
        url=TREE.format("alibaba/ServeGen", f"{SERVEGEN_COMMIT}/data/language/m-large"),
        made="chunk-*-trace.csv after each other, with the chunk's number as the column client, and the header "
        "client,start_s,rate,cv,dist,arg1,arg2; windows without requests left out",
    ),
    Dataset(
        name="servegen-lengths",
        what="lengths of prompts and answers of four models, in 201 quantiles over each six hours",
        file="servegen_length_quantiles.jsonl.gz",
        licence="Apache-2.0",
        source="ServeGen, Alibaba, arXiv 2505.09999",
        url=TREE.format("alibaba/ServeGen", f"{SERVEGEN_COMMIT}/data"),
        made="the histograms of chunk-*-dataset.json, each client's weighted by its requests, as JSON lines: model, "
        "window_start_s (or all), requests, covered, input_q, output_q, input_mean, output_mean",
    ),
    Dataset(
        name="arxiv-lengths",
        what="offline: lengths of 28,257 summaries of papers, without text and times",
        file="arxiv_summarization_lengths.csv.gz",
        licence="MIT",
        source="vidur, Microsoft; Agrawal et al., MLSys 2024",
        url=f"{GITHUB}/microsoft/vidur/{VIDUR_COMMIT}/data/processed_traces/"
        "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
    ),
    Dataset(
        name="mmlu-test",
        what="offline: 14,042 questions of 57 subjects, each with four answers",
        file="mmlu_test.jsonl.gz",
        licence="MIT",
        source="MMLU, Hendrycks et al., ICLR 2021",
        url=MMLU_URL,
        made=MMLU_MADE.format("test"),
    ),
    Dataset(
        name="mmlu-dev",
        what="offline: five questions a subject with their answers, the examples that come before each question",
        file="mmlu_dev.jsonl.gz",
        licence="MIT",
        source="MMLU, Hendrycks et al., ICLR 2021",
        url=MMLU_URL,
        made=MMLU_MADE.format("dev"),
    ),
    Dataset(
        name="gsm8k",
        what="offline: 1,319 word problems with worked answers",
        file="gsm8k_test.jsonl.gz",
        licence="MIT",
        source="GSM8K, OpenAI, 2021",
        url=f"{GITHUB}/openai/grade-school-math/{GSM8K_COMMIT}/grade_school_math/data/test.jsonl",
    ),
    Dataset(
        name="bbh",
        what="offline: 6,511 problems of 27 tasks",
        file="bbh.jsonl.gz",
        licence="MIT",
        source="BIG-Bench Hard, Suzgun et al., 2022",
        url=TREE.format("suzgunmirac/BIG-Bench-Hard", f"{BBH_COMMIT}/bbh"),
        made="the examples of each task after each other, as JSON lines: task, input, target",
    ),
    Dataset(
        name="bbh-prompts",
        what="offline: the examples with chains of thought that come before each of those problems",
        file="bbh_cot_prompts.jsonl.gz",
        licence="MIT",
        source="BIG-Bench Hard, Suzgun et al., 2022",
        url=TREE.format("suzgunmirac/BIG-Bench-Hard", f"{BBH_COMMIT}/cot-prompts"),
        made="the files as JSON lines: task, canary (its first line), prompt (the rest)",
    ),
    Dataset(
        name="shakespeare",
        what="1.1 MB of text, which prompts of any length are cut from",
        file="tiny_shakespeare.txt.gz",
        licence="public domain",
        source="works of William Shakespeare",
        url=f"{GITHUB}/linkedin/Liger-Kernel/{LIGER_COMMIT}/test/resources/tiny_shakespeare.txt",
    ),
)
