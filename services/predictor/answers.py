"""What the predictor answers to people who ask how long a batch takes."""

from collections.abc import Iterable, Mapping

from services.predictor.watched_kind import WatchedKind
from shared.latency.features import BatchFeatures
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.latency_models import FittedModel, PredictBatch, Prediction


def answer(asked: PredictBatch, kinds: Mapping[str, WatchedKind], executors: Iterable[ExecutorInfo]) -> Prediction:
    """The whole and its parts, or why not."""
    fitted = {key: kind for key, kind in kinds.items() if kind.model is not None}
    problem = _why_not(asked) or ("" if fitted else "no latency model has been fitted yet")
    if problem:
        return Prediction(error=problem)
    keys = _keys(asked.whose, fitted, executors)
    if len(keys) != 1:
        what = f"several models fit {asked.whose!r}" if keys else f"no latency model of {asked.whose!r}"
        return Prediction(error=f"{what if asked.whose else 'say whose'}; known: {', '.join(sorted(keys or fitted))}")
    profile_key = keys[0]
    kind = fitted[profile_key]
    assert kind.model is not None and kind.record is not None
    latency_ms, prefills_ms, decodes_ms = _costs(asked, kind.model)
    quality = (kind.record.kind, kind.record.mape, kind.record.noise_floor, kind.revision, kind.record.fitted_at_s)
    return Prediction(latency_ms, prefills_ms, decodes_ms, profile_key, *quality)


def _why_not(asked: PredictBatch) -> str:
    if not asked.prefills and not asked.decode_context_lens:
        return "an empty batch takes no time: give prefills or decodes"
    if any(chunk.num_tokens < 1 or chunk.num_computed_tokens < 0 for chunk in asked.prefills):
        return "a prefill computes at least 1 token over at least 0"
    if min(asked.decode_context_lens, default=1) < 1:
        return "a decode reads at least 1 token"
    return ""


def _keys(whose: str, fitted: Mapping[str, WatchedKind], executors: Iterable[ExecutorInfo]) -> list[str]:
    """Profile keys with a model that the name may mean."""
    if whose in fitted:
        return [whose]
    if not whose:
        return list(fitted)
    named = [info.profile_key for info in executors if whose in (info.executor_id, info.spec.model)]
    return [key for key in dict.fromkeys(named) if key in fitted]


def _costs(asked: PredictBatch, model: FittedModel) -> tuple[float, list[float], list[float]]:
    """Of the whole, and of each prefill and each decode, added one after another; what any step takes is the first
    one's."""
    features = BatchFeatures()
    prefills, decodes = [], []
    for chunk in asked.prefills:
        prefills.append(model.prefill_cost_ms(features, chunk.num_tokens, chunk.num_computed_tokens))
        features.add_prefill(chunk.num_tokens, chunk.num_computed_tokens)
    for context_len in asked.decode_context_lens:
        decodes.append(model.decode_cost_ms(features, context_len))
        features.add_decode(context_len)
    return model.predict_ms(features), prefills, decodes
