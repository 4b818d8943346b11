"""Which tests are tried on a module's mutants: its own where they are named, else those of the nearest folder."""

from pathlib import Path

CORE = "tests/shared/scheduling"
REPLICA = "tests/shared/replica"
PACKINGS = (f"{CORE}/test_two_phase_packing.py", f"{CORE}/test_packings.py")
DEADLINES = (f"{CORE}/test_deadline_queue.py", f"{CORE}/test_deadline_packing.py")
KV_AWARE = (f"{CORE}/test_kv_aware_packing.py", f"{CORE}/test_worth.py")
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
    "shared/scheduling/packing/victims.py": (*PACKINGS, f"{CORE}/test_arrival_packing.py"),
    "shared/scheduling/packing/giving_way.py": (f"{CORE}/test_giving_way.py",),
    "shared/scheduling/packing/deadline.py": (*DEADLINES, f"{CORE}/test_packings.py"),
    "shared/scheduling/packing/deadline_queue.py": (*DEADLINES, f"{CORE}/test_kv_aware_packing.py"),
    "shared/scheduling/packing/arrival.py": (f"{CORE}/test_arrival_packing.py", f"{CORE}/test_packings.py"),
    "shared/scheduling/packing/packing.py": (f"{CORE}/test_arrival_packing.py", f"{CORE}/test_packings.py"),
    "shared/scheduling/packing/kv_aware.py": KV_AWARE,
    "shared/scheduling/packing/kv_changes.py": KV_AWARE,
    "shared/scheduling/packing/offline_decodes.py": KV_AWARE,
    "shared/scheduling/packing/offline_line.py": KV_AWARE,
    "shared/scheduling/packing/worth.py": KV_AWARE,
    "shared/scheduling/packing/online_limit.py": (*KV_AWARE, f"{CORE}/test_mix_decoding_packing.py"),
    "shared/scheduling/packing/mix_decoding.py": (
        f"{CORE}/test_mix_decoding_packing.py",
        f"{CORE}/test_gating.py",
        f"{CORE}/test_giving_way.py",
        f"{CORE}/test_worked_example.py",
    ),
    "shared/scheduling/packing/gating.py": (f"{CORE}/test_gating.py", f"{CORE}/test_pace.py"),
    "shared/scheduling/packing/pace.py": (f"{CORE}/test_pace.py", f"{CORE}/test_tolerance.py"),
    "shared/scheduling/packing/token_slo.py": (f"{CORE}/test_token_slo.py",),
    "shared/scheduling/kv": (f"{CORE}/kv",),
    "shared/scheduling/orders": (f"{CORE}/orders",),
    "shared/scheduling/planning": (
        f"{CORE}/test_pipeline.py",
        f"{CORE}/test_table_and_mirror.py",
        f"{CORE}/test_mirror_of_a_pool.py",
        f"{CORE}/test_expected_cache.py",
        f"{CORE}/test_paused_requests.py",
        f"{REPLICA}/test_readers.py",
        f"{REPLICA}/test_scheduler.py",
    ),
    "shared/scheduling/planning/pipeline.py": (f"{CORE}/test_pipeline.py",),
    "shared/scheduling/planning/expected_cache.py": (
        f"{CORE}/test_expected_cache.py",
        f"{CORE}/test_mirror_of_a_pool.py",
    ),
    "shared/replica": (REPLICA,),
    "shared/replica/kv_allocation.py": (
        f"{REPLICA}/test_kv_allocation.py",
        f"{REPLICA}/test_handover.py",
        f"{REPLICA}/test_bidirectional_replica.py",
        f"{REPLICA}/test_look_ahead.py",
    ),
    "shared/replica/replica.py": (f"{REPLICA}/test_replica.py", f"{REPLICA}/test_kv_allocation.py"),
    "shared/replica/scheduler.py": (f"{REPLICA}/test_scheduler.py",),
    "shared/simulation": ("tests/shared/simulation",),
}


def nearest_tests(path: str) -> tuple[str, ...]:
    """Files and folders. Raises ``KeyError`` for a module that no tests are named for."""
    around = [each for each in TESTS if path == each or path.startswith(f"{each}/")]
    if not around:
        raise KeyError(path)
    patterns = TESTS[max(around, key=len)]
    return tuple(str(found) for pattern in patterns for found in sorted(Path().glob(pattern)))
