# SPDX-License-Identifier: Apache-2.0
"""What must hold, and whether it does: pure functions over what the engines answered.

The rule for external hits (vLLM 0.32, one full-attention cache group): a prompt finds the longest run of
whole blocks, counted from its start, whose tokens equal a stored prompt's; but never its last token,
because the engine needs one position to compute. With block size B, c tokens in common and n tokens in
the prompt that is

    min(c // B, (n - 1) // B) * B

Blocks are stored only when full, so a stored prompt of n tokens counts with n // B blocks.
"""
import posixpath
import re

LOGPROB_BOUND = 1e-3             # float32, only batch shapes differ: measured 1e-6

# What vLLM 0.32 writes to its log when a store call failed; some of these reach no metric.
COMPLAINTS = re.compile(
    r"register_buffer failed|batch_put failed|Boundary-state put failed|Failed to (put|get|check)[^\n]*(key|Mooncake)"
    r"|Remote connection failed in lookup|Async Mooncake lookup failed|offloading pressure \(NO_AVAILABLE"
    r"|Error closing MooncakeDistributedStore|in-flight requests at close")


class Checks:
    """An ordered list of named outcomes: pass, fail or skip, each with what was seen."""

    def __init__(self, phase: str):
        self.phase = phase
        self.rows: list[dict] = []

    def add(self, name: str, holds: bool, seen) -> None:
        self.rows.append({"phase": self.phase, "check": name, "status": "pass" if holds else "fail", "seen": seen})

    def skip(self, name: str, why: str) -> None:
        self.rows.append({"phase": self.phase, "check": name, "status": "skip", "seen": why})


def common_prefix(left: list[int], right: list[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return index
    return min(len(left), len(right))


def expected_hits(prompt: list[int], stored: list[list[int]], block: int) -> int:
    shared = max((min(common_prefix(prompt, one), len(one) // block * block) for one in stored), default=0)
    return min(shared // block, (len(prompt) - 1) // block) * block


def with_expectations(names: list[str], prompts: dict, stored: list[str], block: int) -> dict[str, int]:
    """Hits for prompts run one after the other, each of which is itself stored afterwards."""
    known = [prompts[name] for name in stored]
    expected = {}
    for name in names:
        expected[name] = expected_hits(prompts[name], known, block)
        known.append(prompts[name])
    return expected


def check_hits(checks: Checks, role: str, runs: dict, expected: dict[str, int]) -> None:
    seen = {name: {"hits": runs[name]["hits"], "cached": runs[name]["cached"], "expected": expected[name]}
            for name in runs}
    checks.add(f"{role}_external_hits_are_exact",
               all(row["hits"] == row["cached"] == row["expected"] for row in seen.values()), seen)


def check_tokens(checks: Checks, role: str, runs: dict, reference: dict) -> None:
    differing = {name: {"finish": run["finish"], "tokens": run["tokens"], "plain": reference[name]["tokens"]}
                 for name, run in runs.items() if run["tokens"] != reference[name]["tokens"]}
    distances = [abs(a - b) for name in runs for a, b in zip(runs[name]["logprobs"], reference[name]["logprobs"])]
    worst = max(distances, default=None)
    checks.add(f"{role}_tokens_equal_plain_engine", not differing, {"differing_prompts": differing})
    checks.add(f"{role}_logprobs_equal_plain_engine", worst is not None and worst < LOGPROB_BOUND,
               {"largest_difference": worst, "bound": LOGPROB_BOUND})


def check_operations(checks: Checks, role: str, operations: dict) -> None:
    """Nothing but "ok", and no failed key inside an "ok"."""
    bad = {name: row for name, row in operations.items()
           if (not name.endswith(" ok") and row.get("calls", 0) > 0) or row.get("failed_keys", 0) > 0}
    checks.add(f"{role}_no_failed_store_operation", bool(operations) and not bad, bad or operations)


def check_traffic(checks: Checks, role: str, operations: dict, operation: str, tokens: int, block: int,
                  token_bytes: int) -> None:
    """The blocks and bytes that vLLM says it moved are those of the expected tokens."""
    row = operations.get(f"{operation} ok", {})
    want = {"keys": tokens // block, "bytes": tokens * token_bytes}
    seen = {key: row.get(key, 0) for key in want}
    checks.add(f"{role}_{operation}_moved_all_blocks", seen == want, {"seen": seen, "expected": want})


def check_log(checks: Checks, role: str, text: str) -> None:
    lines = [line.strip()[:300] for line in text.splitlines() if COMPLAINTS.search(line)]
    checks.add(f"{role}_log_has_no_store_complaint", not lines, lines[:5])


def check_sensitivity(checks: Checks, runs: dict) -> None:
    checks.add("changed_early_token_changes_output", runs["whole"]["tokens"] != runs["changed"]["tokens"],
               {name: runs[name]["tokens"] for name in ("whole", "changed")})


def is_inside(file: str, folder: str) -> bool:
    return bool(file) and (not folder or file.startswith(folder.rstrip("/") + "/"))


def check_store_is_ours(checks: Checks, role: str, store: dict, expected_under: str, upstream: bool) -> None:
    """The worker process holds egmstore's module: it says so itself, and it lies where it was expected.

    Upstream's module satisfies neither half; with upstream's services the check is reported as skipped.
    """
    name = f"{role}_store_is_egmstore"
    if upstream:
        checks.skip(name, f"run with --services upstream on {store['module_file']}")
        return
    home = expected_under or posixpath.dirname(posixpath.dirname(store["module_file"]))
    says_so = bool(store["egmstore_version"]) or "egmstore" in store["doc"].lower()
    placed = {what: is_inside(store[what], expected_under) for what in ("module_file", "package_file")}
    foreign = [file for file in store["mapped_files"]
               if posixpath.basename(posixpath.dirname(file)).startswith("mooncake") and not is_inside(file, home)]
    if not expected_under:               # behind ours on the path, upstream's is no harm; beside ours it is
        foreign += [owner for owner in store["distributions"] if owner.startswith("mooncake-transfer-engine")]
    checks.add(name, store["loaded"] and says_so and all(placed.values()) and not foreign,
               {"says_so": says_so, "expected_under": expected_under or "(anywhere)", "placed": placed,
                "foreign": foreign, **{key: store[key] for key in (
                    "module_file", "handle_file", "handle_type", "egmstore_version", "mapped_files")}})


def check_services(checks: Checks, exit_codes: dict[str, int], upstream: bool) -> None:
    """SIGTERM is an orderly end: status 0. Upstream's client does not catch it, so upstream is not judged."""
    if upstream:
        checks.skip("services_end_orderly", f"upstream's services ended with {exit_codes}")
    else:
        checks.add("services_end_orderly", bool(exit_codes) and not any(exit_codes.values()), exit_codes)


def check_configs(checks: Checks, answers: dict) -> None:
    for file, answer in answers.items():
        holds = "error" not in answer and not answer["ignored_keys"]
        checks.add(f"vllm_reads {file}", holds, answer)


def passed(rows: list[dict]) -> bool:
    return bool(rows) and not any(row["status"] == "fail" for row in rows)
