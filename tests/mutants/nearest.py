"""Which tests are tried on a module's mutants: its own where they are named, else those of the nearest folder."""

from pathlib import Path

CORE = "tests/shared/scheduling"
KV = f"{CORE}/kv"
ORDERS = f"{CORE}/orders"
REPLICA = "tests/shared/replica"
QUEUE = "tests/shared/offline_queue"
SIMULATION = "tests/shared/simulation"
TEXT = "tests/shared/text"
WATCH = "tests/shared/watch"
OPENAI = "tests/shared/openai"
COMPLETIONS = f"{OPENAI}/completions"
BLEND = (f"{ORDERS}/test_density.py", f"{ORDERS}/test_blend_order.py", f"{ORDERS}/test_running_batch.py")
TRIES = (f"{ORDERS}/test_prefix_trie.py", f"{ORDERS}/test_offline_orders.py", f"{QUEUE}/test_prompt_demand.py")
POOLS = (f"{KV}/test_bidirectional.py", f"{KV}/test_prefix_cache.py", f"{KV}/test_sharing.py")
BOTH_ENDS = (f"{KV}/test_bidirectional*.py", f"{KV}/test_sharing.py")
PACKINGS = (f"{CORE}/test_two_phase_packing.py", f"{CORE}/test_packings.py")
DEADLINES = (f"{CORE}/test_deadline_queue.py", f"{CORE}/test_deadline_packing.py")
KV_AWARE = (f"{CORE}/test_kv_aware_packing.py", f"{CORE}/test_worth.py")
SKIPPED = "not interrupted and not grows"  # what is asserted of time and sizes finds no mutant, and takes half of it
TESTS = {
    "shared/latency": ("tests/shared/latency/test_*.py",),
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
    "shared/scheduling/packing/deadlines/deadline.py": (*DEADLINES, f"{CORE}/test_packings.py"),
    "shared/scheduling/packing/deadlines/deadline_queue.py": (*DEADLINES, f"{CORE}/test_kv_aware_packing.py"),
    "shared/scheduling/packing/arrival.py": (f"{CORE}/test_arrival_packing.py", f"{CORE}/test_packings.py"),
    "shared/scheduling/packing/packing.py": (f"{CORE}/test_arrival_packing.py", f"{CORE}/test_packings.py"),
    "shared/scheduling/packing/kv_aware/kv_aware.py": KV_AWARE,
    "shared/scheduling/packing/kv_aware/kv_changes.py": KV_AWARE,
    "shared/scheduling/packing/kv_aware/offline_decodes.py": KV_AWARE,
    "shared/scheduling/packing/kv_aware/offline_line.py": KV_AWARE,
    "shared/scheduling/packing/kv_aware/worth.py": KV_AWARE,
    "shared/scheduling/packing/online_limit.py": (*KV_AWARE, f"{CORE}/test_mix_decoding_packing.py"),
    "shared/scheduling/packing/mix_decoding.py": (
        f"{CORE}/test_mix_decoding_packing.py",
        f"{CORE}/test_gating.py",
        f"{CORE}/test_giving_way.py",
        f"{CORE}/test_worked_example.py",
    ),
    "shared/scheduling/packing/gating.py": (f"{CORE}/test_gating.py", f"{CORE}/test_pace.py"),
    "shared/scheduling/packing/pace.py": (f"{CORE}/test_pace.py", f"{CORE}/test_tolerance.py"),
    "shared/scheduling/packing/deadlines/token_slo.py": (f"{CORE}/test_token_slo.py",),
    "shared/scheduling/credit.py": (f"{CORE}/test_credit.py", f"{CORE}/test_tolerance.py"),
    "shared/scheduling/limits.py": (f"{CORE}/test_limits.py",),
    "shared/scheduling/packed_prompt.py": (f"{ORDERS}/test_offline_orders.py", f"{REPLICA}/test_adapters.py"),
    "shared/scheduling/policy.py": (f"{CORE}/test_policy.py",),
    "shared/scheduling/request.py": (f"{CORE}/test_request.py",),
    "shared/scheduling/step_sizes.py": (f"{CORE}/test_step_sizes.py",),
    "shared/scheduling/strategy.py": (f"{CORE}/test_strategy.py",),
    "shared/scheduling/table.py": (
        f"{CORE}/test_request_table.py",
        f"{CORE}/test_table_and_mirror.py",
        f"{ORDERS}/test_online_orders.py",
    ),
    "shared/scheduling/kv": (KV,),
    "shared/scheduling/kv/bidirectional.py": BOTH_ENDS,
    "shared/scheduling/kv/block_hash.py": (
        f"{KV}/test_prefix_cache.py",
        f"{REPLICA}/test_prompt_scores.py",
        f"{REPLICA}/test_adapters.py",
    ),
    "shared/scheduling/kv/cache_log.py": (*POOLS, f"{KV}/test_blocks.py"),
    "shared/scheduling/kv/page_cache.py": (*POOLS, f"{KV}/test_bidirectional_machine.py"),
    "shared/scheduling/kv/pages.py": BOTH_ENDS,
    "shared/scheduling/kv/pool.py": POOLS,
    "shared/scheduling/kv/prefix_cache.py": (*POOLS, f"{KV}/test_request_cache.py"),
    "shared/scheduling/kv/reserve.py": (f"{KV}/test_reserve.py",),
    "shared/scheduling/kv/slot_transfers.py": (f"{KV}/test_slot_transfers.py", f"{KV}/test_bidirectional.py"),
    "shared/scheduling/orders": (ORDERS,),
    "shared/scheduling/orders/online": (f"{ORDERS}/test_online_orders.py",),
    "shared/scheduling/orders/offline/density": BLEND,
    "shared/scheduling/orders/offline/blend.py": BLEND,
    "shared/scheduling/orders/offline/fair_share.py": (f"{ORDERS}/test_fair_share.py",),
    "shared/scheduling/orders/offline/length_buckets.py": (f"{ORDERS}/test_kv_aware_order.py",),
    "shared/scheduling/orders/offline/prefix_node.py": TRIES,
    "shared/scheduling/orders/offline/prefix_tree.py": (*TRIES, *BLEND),
    "shared/scheduling/orders/offline/prefix_trie.py": TRIES,
    "shared/scheduling/orders/offline/prefix_walk.py": TRIES,
    "shared/scheduling/orders/offline/psm_fair.py": (
        f"{ORDERS}/test_kv_aware_order.py",
        f"{ORDERS}/test_offline_orders.py",
    ),
    "shared/scheduling/orders/offline/rate.py": (f"{ORDERS}/test_offline_rate.py",),
    "shared/scheduling/orders/offline/share.py": (f"{ORDERS}/test_fair_share.py",),
    "shared/scheduling/orders/offline/ranks.py": (f"{ORDERS}/test_fair_share.py", f"{ORDERS}/test_turns.py"),
    "shared/scheduling/orders/offline/turns.py": (f"{ORDERS}/test_fair_share.py", f"{ORDERS}/test_turns.py"),
    "shared/scheduling/orders/offline/urgency.py": (f"{ORDERS}/test_fair_share.py",),
    "shared/scheduling/placement": (
        f"{CORE}/test_output_lengths.py",
        f"{CORE}/test_pulling.py",
        f"{CORE}/test_role.py",
        f"{CORE}/test_routing.py",
    ),
    "shared/scheduling/planning": (
        f"{CORE}/test_pipeline.py",
        f"{CORE}/test_table_and_mirror.py",
        f"{CORE}/test_mirror_of_a_pool.py",
        f"{CORE}/test_expected_cache.py",
        f"{CORE}/test_paused_requests.py",
        f"{REPLICA}/test_readers.py",
        f"{QUEUE}/test_scheduler.py",
    ),
    "shared/scheduling/planning/pipeline.py": (f"{CORE}/test_pipeline.py",),
    "shared/scheduling/planning/expected_cache.py": (
        f"{CORE}/test_expected_cache.py",
        f"{CORE}/test_mirror_of_a_pool.py",
    ),
    "shared/replica": (REPLICA,),
    "shared/offline_queue": (QUEUE,),
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
    "shared/replica/live_sequences.py": (
        f"{REPLICA}/test_replica.py",
        f"{REPLICA}/test_look_ahead.py",
        f"{REPLICA}/test_handover.py",
        f"{REPLICA}/test_embeddings.py",
        f"{REPLICA}/test_prompt_scores.py",
        f"{REPLICA}/test_foresight.py",
        f"{REPLICA}/test_readers.py",
    ),
    "shared/replica/returning.py": (f"{REPLICA}/test_returning.py",),
    "shared/replica/suspects.py": (f"{REPLICA}/test_suspects.py", f"{REPLICA}/test_replica.py"),
    "shared/replica/wanted.py": (f"{REPLICA}/test_wanted.py",),
    "shared/replica/engine.py": (f"{REPLICA}/test_replica.py",),
    "shared/offline_queue/scheduler.py": (
        f"{QUEUE}/test_scheduler.py",
        f"{QUEUE}/test_scheduler_words.py",
        f"{REPLICA}/test_readers.py",
    ),
    "shared/offline_queue/offline_pool.py": (
        f"{QUEUE}/test_offline_pool.py",
        f"{QUEUE}/test_scheduler_words.py",
        f"{REPLICA}/test_adapters.py",
    ),
    "shared/replica/sequence.py": (f"{REPLICA}/test_sequence.py", f"{REPLICA}/test_adapters.py"),
    "shared/replica/outputs.py": (f"{REPLICA}/test_sequence.py",),
    "shared/replica/prompt_scores.py": (f"{REPLICA}/test_sequence.py", f"{REPLICA}/test_prompt_scores.py"),
    "shared/offline_queue/prompt_demand.py": (f"{QUEUE}/test_prompt_demand.py",),
    "shared/offline_queue/prompt_hashes.py": (f"{QUEUE}/test_prompt_hashes.py", f"{REPLICA}/test_adapters.py"),
    "shared/replica/step_planner.py": (f"{REPLICA}/test_step_planner.py", f"{REPLICA}/test_readers.py"),
    "shared/offline_queue/told_readers.py": (f"{QUEUE}/test_told_readers.py", f"{REPLICA}/test_readers.py"),
    "shared/replica/block_readers.py": (f"{REPLICA}/test_readers.py",),
    "shared/replica/ahead.py": (f"{REPLICA}/test_ahead.py", f"{REPLICA}/test_look_ahead.py"),
    "shared/replica/handover.py": (f"{REPLICA}/test_handover.py", f"{REPLICA}/test_prompt_scores.py"),
    "shared/openai/completions/answers.py": (f"{COMPLETIONS}/test_answers.py",),
    "shared/openai/completions/bad_words.py": (f"{COMPLETIONS}/test_vllm_fields.py",),
    "shared/openai/completions/bodies.py": (f"{COMPLETIONS}/test_requests.py",),
    "shared/openai/completions/chunks.py": (f"{COMPLETIONS}/test_chunks.py", f"{COMPLETIONS}/test_answers.py"),
    "shared/openai/completions/prompt_fields.py": (
        f"{COMPLETIONS}/test_prompt_fields.py",
        f"{OPENAI}/test_tokenization.py",
    ),
    "shared/openai/completions/prompts.py": (f"{COMPLETIONS}/test_prompts.py",),
    "shared/openai/completions/reasoning_chunks.py": (f"{OPENAI}/test_reasoning.py",),
    "shared/openai/completions/requests.py": (
        f"{COMPLETIONS}/test_requests.py",
        f"{COMPLETIONS}/test_prompt_fields.py",
        f"{OPENAI}/test_reasoning.py",
        f"{TEXT}/test_tool_prompts.py",
    ),
    "shared/openai/completions/sampling.py": (COMPLETIONS, f"{OPENAI}/tools/test_call_grammars.py"),
    "shared/openai/embeddings": (f"{OPENAI}/embeddings",),
    "shared/openai/errors.py": (f"{OPENAI}/test_fields.py",),
    "shared/openai/fields.py": (f"{OPENAI}/test_fields.py",),
    "shared/openai/grammars.py": (f"{OPENAI}/test_grammars.py", f"{OPENAI}/tools/test_call_grammars.py"),
    "shared/openai/objects.py": (f"{COMPLETIONS}/test_answers.py",),
    "shared/openai/reasoning.py": (f"{OPENAI}/test_reasoning.py",),
    "shared/openai/responses": (f"{OPENAI}/responses",),
    "shared/openai/served_model.py": (f"{OPENAI}/test_served_model.py",),
    "shared/openai/shown_prompt.py": (f"{OPENAI}/test_shown_prompt.py",),
    "shared/openai/shown_text.py": (f"{OPENAI}/test_shown_text.py",),
    "shared/openai/structured_outputs.py": (f"{COMPLETIONS}/test_vllm_fields.py",),
    "shared/openai/tokenization.py": (f"{OPENAI}/test_tokenization.py",),
    "shared/openai/tools/calls.py": (f"{OPENAI}/tools/test_calls.py",),
    "shared/openai/tools/definitions.py": (f"{OPENAI}/tools/test_definitions.py",),
    "shared/protocol": ("tests/shared/protocol",),
    "shared/text/chat_options.py": (f"{TEXT}/test_chat_options.py",),
    "shared/text/detokenizer.py": (f"{TEXT}/test_tokenizer.py",),
    "shared/text/embedding_sizes.py": (f"{TEXT}/test_embedding_sizes.py",),
    "shared/text/overlap.py": (f"{TEXT}/test_overlap.py",),
    "shared/text/token_bytes.py": (f"{TEXT}/test_token_bytes.py",),
    "shared/text/token_stream.py": (f"{TEXT}/test_tokenizer.py", f"{TEXT}/test_token_stream.py"),
    "shared/settings": ("tests/shared/settings",),
    "shared/watch/batch_counts.py": (f"{WATCH}/test_batch_counts.py",),
    "shared/watch/follower.py": (f"{WATCH}/test_follower.py",),
    "shared/watch/key_totals.py": (f"{WATCH}/test_key_totals.py",),
    "shared/watch/pools.py": (f"{WATCH}/test_pools.py",),
    "shared/watch/probe.py": (f"{WATCH}/test_probe.py",),
    "shared/watch/stack_status.py": (f"{WATCH}/test_stack_status.py",),
    "shared/watch/stack_watch.py": (f"{WATCH}/test_stack_watch.py",),
    "shared/watch/tuning.py": (f"{WATCH}/test_tuning.py",),
    "shared/watch/usage_ledger.py": (f"{WATCH}/test_usage_ledger.py",),
    "shared/watch/windows.py": (f"{WATCH}/test_windows.py",),
    "shared/simulation": ("tests/shared/simulation",),
    "shared/simulation/executor.py": (f"{SIMULATION}/test_executor.py", f"{SIMULATION}/test_handover_messages.py"),
    "loadgen/report": ("tests/loadgen/report",),
    "loadgen/client/counters.py": ("tests/loadgen/client/test_counters.py", "tests/loadgen/report/test_metrics.py"),
    "loadgen/client/records.py": ("tests/loadgen/client/test_records.py",),
    "loadgen/client/sse.py": ("tests/loadgen/client/test_sse.py",),
    "loadgen/offline": ("tests/loadgen/offline",),
    "loadgen/replay.py": ("tests/loadgen/test_replay.py",),
    "loadgen/workload": ("tests/loadgen/workload",),
}


def nearest_tests(path: str) -> tuple[str, ...]:
    """Files and folders. Raises ``KeyError`` for a module that no tests are named for."""
    around = [each for each in TESTS if path == each or path.startswith(f"{each}/")]
    if not around:
        raise KeyError(path)
    patterns = TESTS[max(around, key=len)]
    return tuple(str(found) for pattern in patterns for found in sorted(Path().glob(pattern)))
