"""The bodies of completion requests, as clients send them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.openai.completions.prompt_fields import Documents, Effort, Side, TemplateValues, Truncation
from shared.openai.completions.prompts import PROMPT_SCHEMA, Message
from shared.openai.fields import AskedTier, Metadata
from shared.openai.grammars import ResponseFormat
from shared.openai.shown_text import MAX_CHAT_TOP_LOGPROBS, MAX_TEXT_TOP_LOGPROBS, asked_of_chat
from shared.openai.structured_outputs import ChoiceTexts, GrammarText, JsonSchemaText, Regex, StructuredOutputs
from shared.openai.tools.definitions import TOOL_CHOICE_SCHEMA, Tool

MAX_CHOICES = 8
MAX_REPETITION_PENALTY = 10.0
MAX_STOP_STRINGS = 16  # evaluations ask for more than OpenAI's 4
MAX_STOP_STRING_LENGTH = 512  # characters; streams hold back as many
MAX_STOP_TOKEN_IDS = 128  # each new token is looked for among them
MAX_BIASES = 1024
MAX_PROMPT_LOGPROBS = 20
MAX_ALLOWED_TOKEN_IDS = 8192
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 128  # characters

Count = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]  # OpenAI's: at either end a token is all but certain, or impossible
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_LENGTH)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]


class StreamOptions(msgspec.Struct):
    """``continuous_usage_stats`` is vLLM's: with ``include_usage``, each chunk tells the usage of its choice so far."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonBody(msgspec.Struct, kw_only=True):
    """What completions and responses share. Null is as absent."""

    model: str
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    user: str | None = None
    metadata: Metadata | None = None
    service_tier: AskedTier | None = None


class CompletionBody(CommonBody, kw_only=True):
    """What chat and text completions share."""

    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=MAX_REPETITION_PENALTY)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_BIASES)] | None = None
    response_format: ResponseFormat | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchemaText | None = None
    guided_regex: Regex | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: GrammarText | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Truncation | None = None
    truncation_side: Side | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_PROMPT_LOGPROBS)] | None = None


class ChatCompletionBody(CompletionBody, kw_only=True):
    """A conversation to be continued by the assistant."""

    messages: Annotated[list[Message], Meta(extra_json_schema={"minItems": 1})]
    max_completion_tokens: Count | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[Any, Meta(extra_json_schema=TOOL_CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None
    documents: Documents | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_CHAT_TOP_LOGPROBS)] | None = None

    @property
    def echoes(self) -> bool:
        """The prompt is shown before the output."""
        return False

    @property
    def num_logprobs(self) -> int | None:
        """Wanted beside each token's own; None: no logprobs. Raises RequestError."""
        return asked_of_chat(self.logprobs, self.top_logprobs)


class TextCompletionBody(CompletionBody, kw_only=True):
    """A text to be continued."""

    prompt: Annotated[Any, Meta(extra_json_schema=PROMPT_SCHEMA)]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TEXT_TOP_LOGPROBS)] | None = None
    best_of: int | None = None
    echo: bool | None = None

    @property
    def echoes(self) -> bool:
        """The prompt is shown before the output."""
        return bool(self.echo)

    @property
    def num_logprobs(self) -> int | None:
        """Wanted beside each token's own; None: no logprobs."""
        return self.logprobs
