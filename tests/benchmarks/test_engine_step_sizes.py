"""Steps of several sizes on one engine, with the one that simulates."""

from pathlib import Path

from benchmarks.engine.step_sizes import main


def test_answers_are_counted_of_the_prompts_that_there_are(prompt_file: Path) -> None:
    few = prompt_file.with_name("few.jsonl")
    few.write_text("".join(prompt_file.read_text().splitlines(keepends=True)[:3]))
    rows = list(main(prompts=few, lines=5, max_tokens=4, rounds=2, engine="sim", sizes="64x2 128x4"))
    sizes, same = "tokens and requests of a step", "same answers"
    shown = [(row[sizes], row[same]) for row in rows if isinstance(row, dict)]
    assert shown == [("64, 2", "6 of 6"), ("128, 4", "6 of 6")]
