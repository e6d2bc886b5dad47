#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefix reuse between vLLM engines through egmstore, on a CPU.

A small random Llama is written to disk, and vLLM engines with MooncakeStoreConnector, each in a process of
its own, are run on one prompt and its relatives (tiny_llama.py):

  plain        one engine without connector gives the reference tokens and reads the requester files
  standalone   master and provider; a writer computes the prompt and ends; a fresh reader must load it
  embedded     a master only; the writer's own memory is the store, so the writer stays alive while a
               reader with its own memory (and its own lookup socket) loads from it

In both store phases the reader must report exactly the hits that verdict.py expects, generate the plain
engine's tokens, and show no failed store operation in vLLM's metrics or log. Every worker process is asked
which store module it has loaded. The phases run side by side (--jobs), because most of an engine's
life is its start on one core.

Progress goes to standard error, the report (one JSON object) to standard output.
Exit status: 0 all checks passed, 1 a check failed or the run broke, 2 usage.
"""
import argparse
import concurrent.futures
import importlib.util
import json
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import store_services  # noqa: E402
import tiny_llama  # noqa: E402
import verdict  # noqa: E402
from engine_process import Engine, EngineError  # noqa: E402

BLOCK = 32                       # tokens; the CPU attention kernels want multiples of 32
POOL_GIB = 1
PHASES = ("plain", "standalone", "embedded")
READER_PROMPTS = ["whole", "half", "aligned", "changed"]

EXAMPLES = """examples:
  # against the egmstore on PATH and the mooncake package installed in this Python
  env=$(tools/vllm/setup) && "$env/bin/python" tests/vllm/prefix_reuse.py > report.json

  # against a build tree: its Python package first, its command by path
  python tests/vllm/prefix_reuse.py --store-path build/python --egmstore build/egmstore

  # only one phase, keeping model and logs
  python tests/vllm/prefix_reuse.py --phase standalone --work /tmp/prefix

  # prove the driver on upstream's Mooncake, installed in the same Python
  python tests/vllm/prefix_reuse.py --services upstream
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0], epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", choices=("egmstore", "upstream"), default="egmstore",
                        help="whose master and provider to start (default egmstore)")
    parser.add_argument("--egmstore", metavar="EXE", help="the egmstore command (default: from PATH)")
    parser.add_argument("--store-path", metavar="DIR", help="folder put first on the engines' PYTHONPATH; "
                        "the loaded mooncake.store must lie in it")
    parser.add_argument("--phase", choices=("standalone", "embedded", "all"), default="all",
                        help="store phases to run; plain always runs (default all)")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=2, help="phases at a time (default 2)")
    parser.add_argument("--length", type=int, default=581, help="prompt tokens, at most 3000 (default 581)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens to generate (default 16)")
    parser.add_argument("--start-timeout", type=float, metavar="S", default=420,
                        help="bound for one engine's start (default 420 s)")
    parser.add_argument("--work", metavar="DIR", help="keep model and logs here (default: a temporary "
                        "folder, kept only when a check failed)")
    arguments = parser.parse_args()
    if not 6 * BLOCK <= arguments.length <= 3000:
        parser.error(f"--length must be between {6 * BLOCK} and 3000")
    if not importlib.util.find_spec("vllm"):
        parser.error("this Python has no vllm: run it with the one that tools/vllm/setup builds")
    if arguments.egmstore and (Path(arguments.egmstore).name != "egmstore" or not Path(arguments.egmstore).is_file()):
        parser.error(f"--egmstore {arguments.egmstore} is not a file named egmstore")
    # No generated token may fill a block: what the writer stores would then depend on --tokens.
    if arguments.length % BLOCK + arguments.tokens >= BLOCK:
        parser.error(f"--length modulo {BLOCK} plus --tokens must stay below {BLOCK}")
    return arguments


class Run:
    """Everything the phases share; written before they start, read-only for them."""

    def __init__(self, arguments: argparse.Namespace, work: Path, sockets: Path):
        self.arguments, self.work, self.sockets = arguments, work, sockets
        self.prompts = tiny_llama.prompts(arguments.length, BLOCK)
        self.began = time.monotonic()

    def say(self, phase: str, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {phase}: {text}", file=sys.stderr, flush=True)

    def folder(self, phase: str) -> Path:
        folder = self.work / phase
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def service_environment(self, phase: str) -> dict[str, str]:
        runtime = self.sockets / phase
        runtime.mkdir(mode=0o700, exist_ok=True)
        bins = [sysconfig.get_path("scripts")]
        if self.arguments.egmstore:
            bins.insert(0, str(Path(self.arguments.egmstore).resolve().parent))
        return store_services.environment(dict(os.environ), bins, str(runtime))

    def engine_environment(self, phase: str, requester: Path | None) -> dict[str, str]:
        """PYTHONHASHSEED is taken away on purpose: 0.32 must find equal block hashes without it."""
        environment = self.service_environment(phase)
        environment.pop("PYTHONHASHSEED", None)
        path = [str(HERE)]
        if self.arguments.store_path:
            path.insert(0, str(Path(self.arguments.store_path).resolve()))
        environment |= {
            "PYTHONPATH": os.pathsep.join(path), "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": store_services.HOST,
            "VLLM_RPC_BASE_PATH": str(self.sockets / phase),
            "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": store_services.HOST}
        environment.pop("MOONCAKE_CONFIG_PATH", None)
        if requester:
            environment["MOONCAKE_CONFIG_PATH"] = str(requester)
        return environment

    def start_engine(self, phase: str, role: str, requester: Path | None = None, socket_number: int = 0) -> Engine:
        log = self.folder(phase) / f"{role}.log"
        engine = Engine(role, log, self.engine_environment(phase, requester))
        transfer = None
        if requester:
            transfer = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both",
                        "kv_connector_extra_config": {"lookup_rpc_port": socket_number}}
        context = self.arguments.length + 64
        blocks = 4 * (context // BLOCK + 1)
        try:
            started = engine.ask("start", seconds=self.arguments.start_timeout, model=str(self.work / "model"),
                                 block=BLOCK, context=context, transfer=transfer,
                                 kv_cache_bytes=max(blocks * BLOCK * tiny_llama.KV_BYTES_PER_TOKEN, 32 << 20))
        except BaseException:
            engine.__exit__()
            raise
        engine.started = started
        self.say(phase, f"{role} engine is up after {started['seconds']:.0f} s (vLLM {started['vllm']})")
        return engine

    def generate(self, phase: str, engine: Engine, names: list[str]) -> dict:
        runs = {}
        for name in names:
            runs[name] = engine.ask("generate", tokens=self.prompts[name], count=self.arguments.tokens)
            self.say(phase, f"{engine.role} prompt {name}: {runs[name]['hits']} of {len(self.prompts[name])} tokens "
                     f"from the store, {runs[name]['seconds']:.2f} s")
        return runs


def requester_file(run: Run, phase: str, source: str, master_address: str) -> Path:
    """The shipped file with the master of this run in it."""
    values = json.loads((HERE / source).read_text())
    values["master_server_address"] = master_address
    target = run.folder(phase) / source
    target.write_text(json.dumps(values, indent=4) + "\n")
    return target


def shipped_configs() -> list[str]:
    """Every requester file of the repository that a user may hand to vLLM."""
    found = []
    for file in [*HERE.glob("*.json"), *(HERE.parents[1] / "examples").glob("**/*.json")]:
        values = json.loads(file.read_text())
        if isinstance(values, dict) and "master_server_address" in values:
            found.append(str(file))
    return sorted(found)


def finish_engine(run: Run, checks: verdict.Checks, engine: Engine) -> None:
    """Ends an engine and checks that it ended well and that its log is clean."""
    began = time.monotonic()
    code = engine.stop()
    checks.add(f"{engine.role}_ends_orderly", code == 0, {"exit_status": code, "seconds": time.monotonic() - began})
    verdict.check_log(checks, engine.role, engine.log.read_text(errors="replace"))


def plain_phase(run: Run) -> dict:
    checks = verdict.Checks("plain")
    with run.start_engine("plain", "plain") as engine:
        runs = run.generate("plain", engine, READER_PROMPTS)
        configs = engine.ask("parse_configs", files=shipped_configs())
        started = engine.started
        finish_engine(run, checks, engine)
    verdict.check_sensitivity(checks, runs)
    verdict.check_configs(checks, configs)
    return {"checks": checks, "engines": {"plain": {"started": started, "runs": runs}}}


def use_store(run: Run, checks: verdict.Checks, engine: Engine, names: list[str], stored: list[str]) -> dict:
    """Runs prompts on an engine with connector and applies every check that does not need the reference."""
    phase, role = checks.phase, engine.role
    store = engine.ask("store")
    run.say(phase, f"{role} worker (pid {store['pid']}) has loaded {store['module_file'] or 'no store'}")
    expected_under = str(Path(run.arguments.store_path).resolve()) if run.arguments.store_path else ""
    verdict.check_store_is_ours(checks, role, store, expected_under, run.arguments.services == "upstream")
    runs = run.generate(phase, engine, names)
    settled = engine.ask("settle")
    checks.add(f"{role}_saves_finish", settled["saves_pending"] == 0, settled)
    counters = engine.ask("counters")
    expected = verdict.with_expectations(names, run.prompts, stored, BLOCK)
    verdict.check_hits(checks, role, runs, expected)
    verdict.check_operations(checks, role, counters["operations"])
    operation, tokens = "load_get", sum(expected.values())
    if not stored:
        operation, tokens = "save_put", sum(len(run.prompts[name]) // BLOCK * BLOCK for name in names)
    verdict.check_traffic(checks, role, counters["operations"], operation, tokens, BLOCK,
                          tiny_llama.KV_BYTES_PER_TOKEN)
    return {"started": engine.started, "runs": runs, "counters": counters, "store": store}


def standalone_phase(run: Run) -> dict:
    checks, engines = verdict.Checks("standalone"), {}
    folder = run.folder("standalone")
    environment = run.service_environment("standalone")
    with store_services.Services(run.arguments.services, POOL_GIB, folder, environment) as pool:
        run.say("standalone", f"services are up, master {pool.master_address}")
        requester = requester_file(run, "standalone", "standalone.json", pool.master_address)
        with run.start_engine("standalone", "writer", requester) as writer:
            engines["writer"] = use_store(run, checks, writer, ["whole"], stored=[])
            finish_engine(run, checks, writer)
        with run.start_engine("standalone", "reader", requester) as reader:
            engines["reader"] = use_store(run, checks, reader, READER_PROMPTS, stored=["whole"])
            finish_engine(run, checks, reader)
        pool.check()
    verdict.check_services(checks, pool.exit_codes, run.arguments.services == "upstream")
    return {"checks": checks, "engines": engines}


def embedded_phase(run: Run) -> dict:
    checks, engines = verdict.Checks("embedded"), {}
    folder = run.folder("embedded")
    environment = run.service_environment("embedded")
    with store_services.Services(run.arguments.services, 0, folder, environment) as master:
        run.say("embedded", f"services are up, master {master.master_address}")
        requester = requester_file(run, "embedded", "embedded.json", master.master_address)
        with run.start_engine("embedded", "writer", requester, socket_number=1) as writer:
            engines["writer"] = use_store(run, checks, writer, ["whole"], stored=[])
            with run.start_engine("embedded", "reader", requester, socket_number=2) as reader:
                engines["reader"] = use_store(run, checks, reader, READER_PROMPTS, stored=["whole"])
                finish_engine(run, checks, reader)
            finish_engine(run, checks, writer)
        master.check()
    verdict.check_services(checks, master.exit_codes, run.arguments.services == "upstream")
    return {"checks": checks, "engines": engines}


def guarded(run: Run, phase: str) -> dict:
    """A phase that breaks becomes a failed check: the other phases' results are still reported."""
    try:
        result = {"plain": plain_phase, "standalone": standalone_phase, "embedded": embedded_phase}[phase](run)
    except (EngineError, store_services.ServiceError, OSError, ValueError) as problem:
        run.say(phase, f"broken: {problem}")
        checks = verdict.Checks(phase)
        checks.add("phase_runs_to_its_end", False, str(problem))
        return {"checks": checks, "engines": {}}
    run.say(phase, "done")
    return result


def compare_with_plain(results: dict) -> None:
    reference = results["plain"]["engines"].get("plain")
    for phase in results:
        for role, engine in results[phase]["engines"].items():
            if reference and role != "plain":
                verdict.check_tokens(results[phase]["checks"], role, engine["runs"], reference["runs"])


def main() -> int:
    arguments = parse_arguments()
    # Ctrl-C ends this process at once: engines end when their channel closes, services with their thread.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    work = Path(arguments.work or tempfile.mkdtemp(prefix="egmstore-vllm-")).resolve()
    sockets = Path(tempfile.mkdtemp(prefix="egm-"))          # short: a socket's path has at most 107 bytes
    run = Run(arguments, work, sockets)
    try:
        tiny_llama.write(work / "model")
        names = [name for name in PHASES if arguments.phase in ("all", name) or name == "plain"]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as workers:
            pending = {name: workers.submit(guarded, run, name) for name in names}
            results = {name: future.result() for name, future in pending.items()}
        compare_with_plain(results)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    rows = [row for result in results.values() for row in result["checks"].rows]
    good = verdict.passed(rows)
    for row in rows:
        if row["status"] != "pass":
            run.say(row["phase"], f"{row['status']}: {row['check']}: {json.dumps(row['seen'])[:400]}")
    counts = {status: sum(row["status"] == status for row in rows) for status in ("pass", "fail", "skip")}
    run.say("result", f"{counts['pass']} checks passed, {counts['fail']} failed, {counts['skip']} skipped"
            + ("" if good or arguments.work else f", logs kept in {work}"))
    json.dump({"pass": good, "services": arguments.services, "wall_s": round(time.monotonic() - run.began, 1),
               "counts": counts, "checks": rows, "prompts": {name: len(run.prompts[name]) for name in run.prompts},
               "block": BLOCK, "work": str(work),
               "phases": {name: result["engines"] for name, result in results.items()}}, sys.stdout, indent=1)
    print()
    if good and not arguments.work:
        shutil.rmtree(work, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
