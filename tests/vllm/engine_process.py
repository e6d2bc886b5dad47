# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine in a process of its own, and the driver's handle on it.

The two halves talk JSON, one object a line, over a socket pair that the child inherits: standard
output and error belong to vLLM's logs. The child does one command after another:

    start          options            -> versions, seconds
    generate       tokens, count      -> tokens, logprobs, cached, seconds
    settle         (none)             -> saves_pending    waits for the connector's save queue
    counters       (none)             -> hits, queries, operations
    store          (none)             -> what store_witness.py found inside the worker process
    parse_configs  files              -> what vLLM's own reader makes of each requester file
    stop           (none)             -> seconds          the child exits afterwards

A command that raises is answered with {"error": text}; a child that dies is seen as the end of the
stream. An engine can therefore stay alive between commands while another one runs, which embedded
mode needs: there the writer's memory is the store.
"""
import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
SAVE_WAIT_S = 60
STOP_WAIT_S = 60


class EngineError(Exception):
    """An engine process failed, died, or did not answer in time; the text says which and where its log is."""


# ---- in the engine's process -----------------------------------------------------------------------


class Commands:
    """The child's half: one method per command, keyword arguments from the JSON object."""

    def __init__(self):
        self.llm = None

    def start(self, model: str, block: int, context: int, kv_cache_bytes: int,
              transfer: dict | None) -> dict:
        began = time.monotonic()
        import torch
        import vllm

        extra = {}
        if transfer:
            extra = {"kv_transfer_config": transfer, "worker_extension_cls": "store_witness.StoreWitness"}
        self.llm = vllm.LLM(
            model=model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, seed=0,
            block_size=block, max_model_len=context, max_num_seqs=2, enable_prefix_caching=True,
            kv_cache_memory_bytes=kv_cache_bytes, disable_log_stats=False, **extra)
        return {"seconds": time.monotonic() - began, "vllm": vllm.__version__, "torch": torch.__version__,
                "python": sys.version.split()[0]}

    def generate(self, tokens: list[int], count: int) -> dict:
        """Greedy tokens for one prompt; the engine's own prefix cache is emptied first, the store is not."""
        from vllm import SamplingParams

        self.llm.reset_prefix_cache()
        sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=0, detokenize=False)
        hits = self.counters()["hits"]
        began = time.monotonic()
        result = self.llm.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)[0]
        seconds = time.monotonic() - began
        best = result.outputs[0]
        return {"tokens": list(best.token_ids), "seconds": seconds, "finish": best.finish_reason,
                "logprobs": [step[token].logprob for step, token in zip(best.logprobs or [], best.token_ids)],
                "cached": result.num_cached_tokens, "hits": self.counters()["hits"] - hits}

    def settle(self) -> dict:
        """Saves run behind the forward pass: wait for their queue, then step once so their statistics arrive."""
        deadline = time.monotonic() + SAVE_WAIT_S
        while (pending := sum(self.llm.collective_rpc("egm_saves_pending"))) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.generate([2, 3, 4], 2)
        return {"saves_pending": pending}

    def counters(self) -> dict:
        """External prefix cache counters, and the store operations as {"save_put ok": {"keys": n, ...}}."""
        hits = queries = 0
        operations: dict[str, dict[str, int]] = {}
        for metric in self.llm.get_metrics():
            if metric.name == "vllm:external_prefix_cache_hits":
                hits += int(metric.value)
            elif metric.name == "vllm:external_prefix_cache_queries":
                queries += int(metric.value)
            elif metric.name.startswith("vllm:mooncake_store_operation") and hasattr(metric, "value"):
                row = operations.setdefault(f"{metric.labels['operation']} {metric.labels['status']}", {})
                what = metric.name.removeprefix("vllm:mooncake_store_operation").strip("_") or "calls"
                row[what] = row.get(what, 0) + int(metric.value)
        return {"hits": hits, "queries": queries, "operations": operations}

    def store(self) -> dict:
        return self.llm.collective_rpc("egm_describe_store")[0] | {"engine_pid": os.getpid()}

    def parse_configs(self, files: list[str]) -> dict:
        import dataclasses

        from vllm.distributed.mooncake_store import MooncakeStoreConfig

        known = {field.name for field in dataclasses.fields(MooncakeStoreConfig)}
        answer = {}
        for file in files:
            try:
                parsed = MooncakeStoreConfig.from_file(file)
                ignored = sorted(set(json.loads(Path(file).read_text())) - known)
                answer[file] = {"values": dataclasses.asdict(parsed), "ignored_keys": ignored}
            except (ValueError, TypeError, OSError) as problem:
                answer[file] = {"error": f"{type(problem).__name__}: {problem}"}
        return answer

    def stop(self) -> dict:
        """Shuts the workers down, so that the connector closes its store handle before the process ends."""
        began = time.monotonic()
        if self.llm:
            self.llm.llm_engine.engine_core.shutdown()
        return {"seconds": time.monotonic() - began}


def serve(channel: socket.socket) -> None:
    commands = Commands()
    with channel, channel.makefile("r", encoding="utf-8") as requests:
        for line in requests:
            request = json.loads(line)
            name = request.pop("do")
            try:
                answer = getattr(commands, name)(**request)
            except Exception as problem:                      # the driver decides what a failure means
                traceback.print_exc()
                answer = {"error": f"{type(problem).__name__}: {problem}"}
            channel.sendall(json.dumps(answer).encode() + b"\n")
            if name == "stop":
                return


# ---- in the driver's process -----------------------------------------------------------------------


class Engine:
    """The driver's half. Use as a context manager: leaving it ends the child's whole process group."""

    def __init__(self, role: str, log: Path, environment: dict[str, str], python: str = sys.executable):
        self.role, self.log = role, log
        ours, theirs = socket.socketpair()
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [python, str(HERE / "engine_process.py"), "--channel", str(theirs.fileno())],
                env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        self._channel = ours
        self._answers = ours.makefile("r", encoding="utf-8")

    def ask(self, command: str, seconds: float = 120, **arguments) -> dict:
        self._channel.settimeout(seconds)
        try:
            self._channel.sendall(json.dumps({"do": command, **arguments}).encode() + b"\n")
            line = self._answers.readline()
        except TimeoutError:
            raise EngineError(f"{self.role} engine: no answer to '{command}' within {seconds:.0f} s, log {self.log}")
        except OSError as problem:
            raise EngineError(f"{self.role} engine: {problem} at '{command}', log {self.log}") from problem
        if not line:
            raise EngineError(f"{self.role} engine: process ended during '{command}', log {self.log}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.role} engine: '{command}' failed: {answer['error']}, log {self.log}")
        return answer

    def stop(self) -> int:
        """Orderly end; returns the exit status."""
        self.ask("stop", seconds=STOP_WAIT_S)
        try:
            return self.process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self.role} engine: process did not end after 'stop', log {self.log}") from None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self._answers.close()
        self._channel.close()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)       # its session: workers that outlived it
        except ProcessLookupError:
            pass
        self.process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Engine process of prefix_reuse.py; not run by hand.")
    parser.add_argument("--channel", type=int, required=True, help="inherited descriptor of a socket")
    serve(socket.socket(fileno=parser.parse_args().channel))
