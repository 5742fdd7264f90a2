"""Every way in which a training ends: memctl changes neither exit code nor output, and the job reports how it ended.

All scripts are run plain and recorded at the same time. Those that end abruptly (`os._exit`, signals) are also recorded
to their last event, because the launcher holds the memory that they wrote.
"""

from __future__ import annotations

import sys
from typing import Any, Optional

import pytest

from conftest import Memctl, Plain, both, same

HEAD = """
import atexit, gc, os, signal, sys, threading, time
import torch
import small
training = small.Training()
training.steps(15)
small.tell("produced", small.status().get("produced"))
training.report()
"""
ENDS: dict[str, tuple[str, int, Optional[str]]] = {
    "normal": ("", 0, None),
    "exit_0": ("os._exit(0)", 0, None),
    "exit_7": ("os._exit(7)", 7, "exit code 7"),
    "exception": ('raise ValueError("the loss is gone")', 1, "ValueError: the loss is gone"),
    "chained": (
        """
try:
    raise KeyError("first")
except KeyError as error:
    raise RuntimeError("second") from error
""",
        1,
        "RuntimeError: second",
    ),
    "system_exit": ("raise SystemExit(3)", 3, "exit code 3"),
    "sys_exit": ("sys.exit(5)", 5, "exit code 5"),
    "sys_exit_text": ('sys.exit("no data")', 1, "exit code 1: no data"),
    "interrupt": ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    "sigterm": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -15, "killed by signal 15 (SIGTERM)"),
    "sigterm_handled": (
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""",
        0,
        None,
    ),
    "abort": ("os.abort()", -6, "killed by signal 6 (SIGABRT)"),
}


def check(memctl: Memctl, plain: Plain, path: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """Runs a script plain and recorded; the recorded run and the job's page."""
    recorded, expected = both(lambda: memctl.record(name, sys.executable, str(path)), lambda: plain(memctl, path))
    same(expected, recorded)
    return recorded, memctl.answer("query", "--job", name)


@pytest.mark.parametrize("name", ENDS)
def test_the_end_is_what_it_was(memctl: Memctl, script: Any, plain: Plain, name: str) -> None:
    end, code, failure = ENDS[name]
    run, answer = check(memctl, plain, script(HEAD + end), name)
    assert run.code == (code if code >= 0 else 128 - code), run
    [rank] = answer["ranks"]
    assert rank["failure"] == failure, rank
    assert rank["state"] == ("finished" if failure is None else "failed")
    assert rank["events"] >= run.reported("produced") > 500, rank
    assert rank["completeness"]["events_dropped"] == 0 and rank["completeness"]["gaps"] == 0
    assert rank["steps"] == 15


# Registered before torch is imported, so it runs after memctl's own end: until then the threads allocate. (Threads
# that allocate into the interpreter's finalization abort PyTorch itself.)
SHUTDOWN = (
    """
import atexit, threading
stop, threads, counts = threading.Event(), [], [0, 0, 0]
def halt():
    at_end = sum(counts)
    while sum(counts) < at_end + 3000:
        pass
    stop.set()
    for thread in threads:
        thread.join()
    print("halted", flush=True)
atexit.register(halt)
"""
    + HEAD
    + """
def allocate(number):
    while not stop.is_set():
        torch.empty(1 << 16, device="cuda")
        counts[number] += 1
threads += [threading.Thread(target=allocate, args=(number,), daemon=True) for number in range(3)]
for thread in threads:
    thread.start()
class Late:
    def __init__(self):
        self.tensor = torch.empty(1 << 20, device="cuda")
        self.me = self
    def __del__(self):
        if sys is not None and not sys.is_finalizing():
            self.again = torch.empty(1 << 20, device="cuda")
late = [Late() for _ in range(8)]
atexit.register(late.clear)
sys.kept_too = Late()
torch.kept_to_the_very_end = torch.empty(1 << 20, device="cuda")
while sum(counts) < 3000:
    pass
print("ends", flush=True)
"""
)


def test_interpreter_shutdown_while_others_allocate(memctl: Memctl, script: Any, plain: Plain) -> None:
    """Threads allocate while the session ends; tensors are freed by atexit, the collector and the interpreter's end."""
    run, answer = check(memctl, plain, script(SHUTDOWN), "shutdown")
    # The threads did allocate, before memctl's end and after it.
    assert run.code == 0 and run.out.endswith("ends\nhalted\n"), run
    [rank] = answer["ranks"]
    assert rank["state"] == "finished" and rank["failure"] is None, rank
    assert rank["events"] + rank["completeness"]["events_dropped"] > run.reported("produced") + 6000, rank


def test_what_a_program_does_at_its_exit_may_take_its_time(memctl: Memctl, script: Any, plain: Plain) -> None:
    """A handler that is registered before torch is imported runs after memctl's end. The exit code is seen later."""
    head = "import atexit, time\natexit.register(time.sleep, 7)\n"
    _, answer = check(memctl, plain, script(head + HEAD + "sys.exit(4)"), "uploads")
    assert [(rank["state"], rank["failure"]) for rank in answer["ranks"]] == [("failed", "exit code 4")]


def test_an_exit_in_a_thread_is_no_end(memctl: Memctl, script: Any, plain: Plain) -> None:
    end = """
def leave():
    sys.exit(9)
thread = threading.Thread(target=leave)
thread.start()
thread.join()
training.steps(5)
"""
    _, answer = check(memctl, plain, script(HEAD + end), "thread")
    assert answer["ranks"][0]["failure"] is None and answer["ranks"][0]["steps"] == 20


def test_an_end_by_hand(memctl: Memctl, script: Any, plain: Plain) -> None:
    """Without the launcher: an exception's message arrives, and the daemon sees a death by signal as silence."""
    from conftest import Daemon

    path = script(HEAD.replace("training =", "small.attach_if_wanted()\ntraining =") + 'raise ValueError("by hand")')
    daemon = Daemon(memctl)
    try:
        settings = {"ATTACH": "hand", "MEMCTL_DAEMON": daemon.url}
        run = memctl.start([sys.executable, str(path)], settings).wait()
        same(plain(memctl, path), run)
        answer = memctl.answer("query", "--job", "hand", "--daemon", daemon.url)
        assert answer["ranks"][0]["failure"] == "ValueError: by hand", answer
        assert answer["ranks"][0]["events"] >= run.reported("produced") > 500
    finally:
        daemon.stop()
