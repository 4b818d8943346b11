"""Which tests are tried on a module's mutants: its own where they are named, else those of the nearest folder."""

from pathlib import Path

CORE = "tests/shared/scheduling"
REPLICA = "tests/shared/replica"
PACKINGS = (f"{CORE}/test_two_phase_packing.py", f"{CORE}/test_packings.py")
SKIPPED = "not interrupted and not grows"  # what is asserted of time and sizes finds no mutant, and takes half of it
TESTS = {
    "shared/scheduling": (f"{CORE}/test_*.py",),
    "shared/scheduling/packing": (f"{CORE}/test_*.py",),
    "shared/scheduling/packing/two_phase.py": (
        *PACKINGS,
        f"{CORE}/test_mix_decoding_packing.py",
        f"{CORE}/test_tolerance.py",
    ),
    "shared/scheduling/packing/batch.py": (
        *PACKINGS,
        f"{CORE}/test_batch*.py",
        f"{CORE}/test_kv_aware_packing.py",
        f"{CORE}/test_mix_decoding_packing.py",
        f"{CORE}/test_paused_requests.py",
    ),
    "shared/scheduling/packing/victims.py": PACKINGS,
    "shared/scheduling/packing/giving_way.py": (*PACKINGS, f"{CORE}/test_giving_way.py"),
    "shared/scheduling/kv": (f"{CORE}/kv",),
    "shared/scheduling/orders": (f"{CORE}/orders",),
    "shared/scheduling/planning": (
        f"{CORE}/test_pipeline.py",
        f"{CORE}/test_table_and_mirror.py",
        f"{CORE}/test_paused_requests.py",
        f"{REPLICA}/test_readers.py",
        f"{REPLICA}/test_scheduler.py",
    ),
    "shared/replica": (REPLICA,),
    "shared/replica/kv_allocation.py": (
        f"{REPLICA}/test_kv_allocation.py",
        f"{REPLICA}/test_handover.py",
        f"{REPLICA}/test_bidirectional_replica.py",
        f"{REPLICA}/test_look_ahead.py",
    ),
    "shared/replica/foresight.py": (f"{REPLICA}/test_foresight.py",),
    "shared/replica/replica.py": (
        f"{REPLICA}/test_replica.py",
        f"{REPLICA}/test_kv_allocation.py",
        f"{REPLICA}/test_look_ahead.py",
        f"{REPLICA}/test_handover.py",
        f"{REPLICA}/test_embeddings.py",
        f"{REPLICA}/test_foresight.py",
    ),
    "shared/replica/scheduler.py": (
        f"{REPLICA}/test_scheduler.py",
        f"{REPLICA}/test_scheduler_words.py",
        f"{REPLICA}/test_readers.py",
    ),
    "shared/replica/offline_pool.py": (
        f"{REPLICA}/test_offline_pool.py",
        f"{REPLICA}/test_scheduler_words.py",
        f"{REPLICA}/test_adapters.py",
    ),
    "shared/replica/sequence.py": (f"{REPLICA}/test_sequence.py", f"{REPLICA}/test_adapters.py"),
    "shared/replica/outputs.py": (f"{REPLICA}/test_sequence.py",),
    "shared/replica/prompt_scores.py": (f"{REPLICA}/test_sequence.py", f"{REPLICA}/test_prompt_scores.py"),
    "shared/replica/prompt_demand.py": (f"{REPLICA}/test_prompt_demand.py",),
    "shared/replica/prompt_hashes.py": (f"{REPLICA}/test_prompt_hashes.py", f"{REPLICA}/test_adapters.py"),
    "shared/replica/step_planner.py": (f"{REPLICA}/test_step_planner.py", f"{REPLICA}/test_readers.py"),
    "shared/replica/told_readers.py": (f"{REPLICA}/test_told_readers.py", f"{REPLICA}/test_readers.py"),
    "shared/replica/block_readers.py": (f"{REPLICA}/test_readers.py",),
    "shared/replica/ahead.py": (f"{REPLICA}/test_ahead.py", f"{REPLICA}/test_look_ahead.py"),
    "shared/replica/handover.py": (f"{REPLICA}/test_handover.py", f"{REPLICA}/test_prompt_scores.py"),
    "shared/simulation": ("tests/shared/simulation",),
}


def nearest_tests(path: str) -> tuple[str, ...]:
    """Files and folders. Raises ``KeyError`` for a module that no tests are named for."""
    around = [each for each in TESTS if path == each or path.startswith(f"{each}/")]
    if not around:
        raise KeyError(path)
    patterns = TESTS[max(around, key=len)]
    return tuple(str(found) for pattern in patterns for found in sorted(Path().glob(pattern)))
