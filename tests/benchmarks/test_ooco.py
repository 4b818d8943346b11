"""OOCO's figure 3."""

from benchmarks.figures.kinds.rooflines import rooflines
from benchmarks.figures.papers.ooco import CONTEXTS, COUNTS, FIGURES, LENGTHS
from benchmarks.harness.command import Row
from tests.shared.latency.shapes import roofline

MODEL = roofline("qwen2.5-7b", "a100-80g")


def rows_of(num_slots: int) -> list[Row]:
    (table,) = rooflines(MODEL, LENGTHS, COUNTS, CONTEXTS, num_slots, "here").tables
    return list(table.rows)


def number(cell: str) -> float:
    return float(cell.replace(",", ""))


def test_what_is_reached_lies_below_the_roof_and_rises_with_intensity() -> None:
    rates = MODEL.rates
    for row in rows_of(10**9):
        roof = min(rates.gemm_flops_per_ms, rates.gemm_bytes_per_ms * number(row["FLOPs/byte"])) / 1e9
        assert number(row["TFLOP/s"]) <= 1.01 * roof, row  # cells are rounded
    prefills = [number(row["FLOPs/byte"]) for row in rows_of(0) if row["batch"] == "prefill"]
    assert prefills == sorted(prefills)


def test_gemms_saturate_where_the_model_says_whatever_the_tokens_are() -> None:
    saturated = MODEL.saturated_batch_size
    for row in rows_of(10**9):
        assert row["GEMMs bound by"] == ("compute" if number(row["tokens"]) >= saturated else "memory"), row


def test_decodes_that_do_not_fit_are_left_out() -> None:
    by_batch: dict[str, list[float]] = {}
    for row in rows_of(128 * 1000):
        by_batch.setdefault(row["batch"], []).append(number(row["tokens"]))
    assert by_batch["prefill"] == list(LENGTHS)
    assert by_batch["decode 100"] == list(COUNTS)
    assert by_batch["decode 1,000"] == [1, 16, 64, 128] and by_batch["decode 4,000"] == [1, 16]


def test_short_decodes_take_as_long_as_a_prompt() -> None:
    """As the paper says of figure 3, and longer ones longer."""
    took = {(row["batch"], row["tokens"]): number(row["ms"]) for row in rows_of(10**9)}
    for tokens in ("16", "64", "128", "256"):
        assert abs(took["decode 100", tokens] / took["prefill", tokens] - 1) < 0.1
        assert took["decode 4,000", tokens] > 1.2 * took["decode 100", tokens]


def test_the_figure_is_made() -> None:
    (table,) = FIGURES["fig3"].make(None).tables
    assert "qwen2.5-7b on a100-80g" in table.caption
