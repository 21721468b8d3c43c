"""Starts `glint serve` for tests: a free port, its log, and a clean end."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
GLINT = os.environ.get("GLINT_BIN", str(ROOT / "build" / "glint"))
DEMO = ROOT / "models" / "demo"


class Served:
    """A running server on the demo model."""

    def __init__(self, process, log_path, port):
        self.process = process
        self.log_path = log_path
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def client(self, **more):
        settings = {"api_key": "unused", "max_retries": 0, "timeout": 120, **more}
        return openai.OpenAI(base_url=f"{self.url}/v1", **settings)

    def log(self):
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def stop(self, how=signal.SIGTERM):
        """Sends the signal and waits; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(60)


def wait_until_ready(served, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if served.process.poll() is not None:
            raise RuntimeError(f"glint serve ended with {served.process.returncode}:\n{served.log()}")
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(f"{served.url}/health", timeout=5).status == 200:
                return
        time.sleep(0.02)
    raise RuntimeError(f"glint serve was not ready in time:\n{served.log()}")


@contextlib.contextmanager
def serve(*options, model=DEMO):
    """`with serve("--parallel", "1") as served:`"""
    with tempfile.TemporaryDirectory() as folder:
        log_path = os.path.join(folder, "log")
        with open(log_path, "wb") as log:
            command = [GLINT, "serve", str(model), "--port", "0", "--served-model-name", "demo", *options]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        served = Served(process, log_path, 0)
        try:
            end = time.monotonic() + 60
            while not (found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", served.log())):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"glint serve did not listen:\n{served.log()}")
                time.sleep(0.02)
            served = Served(process, log_path, int(found.group(1)))
            wait_until_ready(served)
            yield served
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def eval_items(task, correct_only=True):
    """Items of the demo model's evals; those that the reference answers correctly."""
    reference = json.loads((DEMO / "eval_reference.json").read_text())
    correct = {o["id"] for o in reference["outputs"] if o.get("correct")}
    items = [json.loads(line) for line in (DEMO / "evals.jsonl").read_text().splitlines() if line.strip()]
    return [i for i in items if i["task"] == task and (not correct_only or i["id"] in correct)]
