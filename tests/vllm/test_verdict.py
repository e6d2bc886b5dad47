# SPDX-License-Identifier: Apache-2.0
"""The judge is judged: every check of verdict.py must be able to fail. Needs no vLLM; seconds."""
import store_services
import store_witness
import tiny_llama
import verdict

BLOCK = 32


def outcome(function, *arguments) -> list[str]:
    checks = verdict.Checks("test")
    function(checks, *arguments)
    return [row["status"] for row in checks.rows]


def run_of(tokens, hits=0, cached=None):
    return {"tokens": tokens, "logprobs": [-1.0] * len(tokens), "finish": "length", "hits": hits,
            "cached": hits if cached is None else cached}


def test_partly_filled_block_is_not_expected():
    whole = list(range(100, 200))
    assert verdict.expected_hits(whole, [whole], BLOCK) == 96


def test_last_token_is_never_expected():
    whole = list(range(128))
    assert verdict.expected_hits(whole, [whole], BLOCK) == 96
    assert verdict.expected_hits(whole + [7], [whole], BLOCK) == 128
    assert verdict.expected_hits(whole[:BLOCK], [whole], BLOCK) == 0


def test_prefix_cut_inside_a_block_rounds_down():
    whole = list(range(128))
    assert verdict.expected_hits(whole[:70] + [999] * 58, [whole], BLOCK) == 64


def test_partly_filled_block_of_stored_prompt_is_not_expected():
    stored = list(range(40))
    assert verdict.expected_hits(list(range(128)), [stored], BLOCK) == 32


def test_changed_first_block_expects_nothing():
    whole = list(range(128))
    assert verdict.expected_hits([5] + whole[1:], [whole], BLOCK) == 0
    assert verdict.expected_hits(whole, [], BLOCK) == 0


def test_prompts_run_earlier_count_as_stored():
    prompts = {"a": list(range(100)), "b": list(range(100))}
    assert verdict.with_expectations(["a", "b"], prompts, [], BLOCK) == {"a": 0, "b": 96}


def test_prompt_family_has_the_shapes_the_scenario_needs():
    prompts = tiny_llama.prompts(581, BLOCK)
    whole = prompts["whole"]
    shared = verdict.common_prefix(whole, prompts["half"])
    assert shared % BLOCK != 0 and BLOCK < shared < len(whole) - BLOCK
    assert len(prompts["aligned"]) % BLOCK == 0 and prompts["aligned"] == whole[:len(prompts["aligned"])]
    assert verdict.common_prefix(whole, prompts["changed"]) < BLOCK and whole[5:] == prompts["changed"][5:]
    assert all(2 <= token < tiny_llama.VOCABULARY for one in prompts.values() for token in one)


def test_one_block_too_many_or_too_few_fails():
    for hits in (544, 608):
        assert outcome(verdict.check_hits, "reader", {"whole": run_of([1], hits)}, {"whole": 576}) == ["fail"]
    assert outcome(verdict.check_hits, "reader", {"whole": run_of([1], 576)}, {"whole": 576}) == ["pass"]


def test_hits_without_cached_tokens_fail():
    assert outcome(verdict.check_hits, "reader", {"whole": run_of([1], 576, cached=0)}, {"whole": 576}) == ["fail"]


def test_another_token_or_another_logprob_fails():
    one, other = {"whole": run_of([1, 2])}, {"whole": run_of([1, 3])}
    assert outcome(verdict.check_tokens, "reader", one, other) == ["fail", "pass"]
    other = {"whole": run_of([1, 2]) | {"logprobs": [-1.0, -1.1]}}
    assert outcome(verdict.check_tokens, "reader", one, other) == ["pass", "fail"]


def test_request_that_ended_in_an_error_fails():
    one, other = {"whole": run_of([])}, {"whole": run_of([1, 3])}
    assert outcome(verdict.check_tokens, "reader", one, other) == ["fail", "fail"]


def test_failed_operations_fail():
    good = {"load_get ok": {"calls": 1, "keys": 18, "failed_keys": 0}}
    assert outcome(verdict.check_operations, "reader", good) == ["pass"]
    for name in ("load_get partial_failure", "lookup_exists error"):
        assert outcome(verdict.check_operations, "reader", good | {name: {"calls": 1}}) == ["fail"]
    assert outcome(verdict.check_operations, "reader", {"save_put ok": {"calls": 1, "failed_keys": 1}}) == ["fail"]


def test_no_operation_at_all_fails():
    assert outcome(verdict.check_operations, "reader", {}) == ["fail"]


def test_missing_traffic_fails():
    full = {"load_get ok": {"keys": 18, "bytes": 576 * 8}}
    short = {"load_get ok": {"keys": 17, "bytes": 544 * 8}}
    assert outcome(verdict.check_traffic, "reader", full, "load_get", 576, BLOCK, 8) == ["pass"]
    assert outcome(verdict.check_traffic, "reader", short, "load_get", 576, BLOCK, 8) == ["fail"]
    assert outcome(verdict.check_traffic, "reader", {}, "load_get", 576, BLOCK, 8) == ["fail"]


def test_complaints_in_the_log_fail():
    assert outcome(verdict.check_log, "reader", "INFO all is well\n") == ["pass"]
    for line in ("ERROR register_buffer failed for addr 0x7f len 5: -600",
                 "WARNING batch_put failed: 1/2 keys failed (codes={-200})",
                 "WARNING Failed to get 3 Mooncake keys from sub-batch (batch_keys=9)",
                 "ERROR Failed to put key ['a'], error: boom"):
        assert outcome(verdict.check_log, "reader", f"INFO start\n{line}\n") == ["fail"]


def test_model_that_ignores_early_tokens_fails():
    same = {"whole": run_of([4, 5]), "changed": run_of([4, 5])}
    assert outcome(verdict.check_sensitivity, same) == ["fail"]
    assert outcome(verdict.check_sensitivity, same | {"changed": run_of([4, 6])}) == ["pass"]


def store_of(**changes) -> dict:
    return {"loaded": True, "module_file": "/build/python/mooncake/store.py", "egmstore_version": "0.1.0",
            "package_file": "/build/python/mooncake/__init__.py", "handle_file": "/build/python/mooncake/store.py",
            "handle_type": "mooncake.store.MooncakeDistributedStore", "doc": "egmstore",
            "distributions": ["egmstore"], "mapped_files": ["/build/python/egmstore/_native.so"]} | changes


def test_store_of_another_maker_fails():
    check = verdict.check_store_is_ours
    assert outcome(check, "reader", store_of(), "/build/python", False) == ["pass"]
    assert outcome(check, "reader", store_of(), "/build/pyth", False) == ["fail"]
    assert outcome(check, "reader", store_of(), "", False) == ["pass"]
    assert outcome(check, "reader", store_of(loaded=False), "", False) == ["fail"]
    assert outcome(check, "reader", store_of(egmstore_version="", doc=""), "/build/python", False) == ["fail"]
    assert outcome(check, "reader", store_of(package_file="/usr/lib/mooncake/__init__.py"), "/build", False) == ["fail"]
    hidden = store_of(mapped_files=["/site/mooncake/store.so"])
    assert outcome(check, "reader", hidden, "/build/python", False) == ["fail"]
    assert outcome(check, "reader", hidden, "", False) == ["fail"]
    foreign = store_of(distributions=["mooncake-transfer-engine-non-cuda"])
    assert outcome(check, "reader", foreign, "", False) == ["fail"]


def test_only_the_stores_own_shared_objects_are_listed():
    assert store_witness.is_store_file("/v/site-packages/mooncake/store.so")
    assert store_witness.is_store_file("/usr/lib/libegmstore.so.0")
    assert not store_witness.is_store_file("/root/.cache/egmstore/vllm-1/lib/yaml/_yaml.so")
    assert not store_witness.is_store_file("/v/site-packages/mooncake/__init__.py")


def test_upstream_services_skip_the_proof_of_ours_visibly():
    assert outcome(verdict.check_store_is_ours, "reader", store_of(), "", True) == ["skip"]


def test_service_killed_by_its_signal_fails():
    assert outcome(verdict.check_services, {"egmstore-master": 0}, False) == ["pass"]
    assert outcome(verdict.check_services, {"egmstore-master": 0, "egmstore-provider": -15}, False) == ["fail"]
    assert outcome(verdict.check_services, {}, False) == ["fail"]
    assert outcome(verdict.check_services, {"mooncake_client": -15}, True) == ["skip"]


def test_config_with_unknown_key_or_error_fails():
    assert outcome(verdict.check_configs, {"a.json": {"values": {}, "ignored_keys": []}}) == ["pass"]
    assert outcome(verdict.check_configs, {"a.json": {"values": {}, "ignored_keys": ["modus"]}}) == ["fail"]
    assert outcome(verdict.check_configs, {"a.json": {"error": "ValueError"}}) == ["fail"]


def test_empty_or_failed_report_does_not_pass():
    assert not verdict.passed([])
    assert not verdict.passed([{"status": "pass"}, {"status": "fail"}])
    assert verdict.passed([{"status": "pass"}, {"status": "skip"}])


def test_embedded_phase_starts_no_pool():
    assert [line[1] for line in store_services.commands("egmstore", 0, [1, 2, 3, 4])] == ["master"]
    assert [line[1] for line in store_services.commands("egmstore", 1, [1, 2, 3, 4])] == ["master", "provider"]
    assert len(set(store_services.free_ports(4))) == 4
