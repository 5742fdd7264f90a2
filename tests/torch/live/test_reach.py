"""Every process of the command that uses torch is recorded, however it starts; for one that is not, memctl says why.

Children by every start method, launchers that start programs other than Python, interpreters that ignore their
environment; and processes that attach by themselves where no daemon answers.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import pytest

from conftest import Memctl, finish

CHILDREN = """
import multiprocessing, os, sys

def work(name):
    import torch
    kept = [torch.empty(1 << 20, device="cuda") for _ in range(30)]
    # In one piece: the others print at the same time.
    sys.stdout.write(f"{name} {len(kept)}\\n")
    sys.stdout.flush()
    import small, memctl_agent
    status = memctl_agent.status()
    small.tell(f"role-{name}", [status["role"], status["parent_pid"]])
    small.tell(f"parent-{name}", multiprocessing.parent_process() and multiprocessing.parent_process().pid)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=work, args=(n,), name=n) for n in ("rollout-0", "rollout-1")]
    [child.start() for child in children]
    [child.join() for child in children]
    work("main")
    sys.exit(sum(child.exitcode for child in children))
"""


def sessions(memctl: Memctl, job: str) -> int:
    listed = memctl.answer("jobs")["jobs"]
    [found] = [entry for entry in listed if entry["id"] == job]
    return int(found["events"])


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_by_every_start_method(memctl: Memctl, script: Any, method: str) -> None:
    run = memctl.record("children", sys.executable, str(script(CHILDREN)), method)
    assert run.code == 0 and sorted(run.out.splitlines()) == ["main 30", "rollout-0 30", "rollout-1 30"], run
    for name, role in (("rollout-0", "rollout"), ("rollout-1", "rollout"), ("main", None)):
        found, parent = run.reported(f"role-{name}"), run.reported(f"parent-{name}")
        assert found[0] == role and (parent is None or found[1] == parent), (name, run)
    # 30 blocks of 4 MiB in 6 segments, in each of three processes.
    assert sessions(memctl, "children") >= 3 * 36, run


ALONE = "import torch\nkept = [torch.empty(1 << 20, device='cuda') for _ in range(30)]\n"


@pytest.mark.parametrize(
    "command",
    [
        ["{python}", "-c", ALONE],
        ["{python}", "-c", "import importlib.util as u; u.find_spec('torch')\n" + ALONE],
        ["{python}", "-m", "alone"],
        ["sh", "-c", "exec {python} {script}"],
        ["{python}", "-m", "torch.distributed.run", "--standalone", "--no-python", "sh", "{shell}"],
        ["env", "PYTHONSAFEPATH=1", "{python}", "-u", "{script}"],
    ],
    ids=["c", "find_spec", "m", "sh", "no-python", "options"],
)
def test_ways_to_start(memctl: Memctl, script: Any, command: list[str]) -> None:
    path = script(ALONE, "alone.py")
    shell = script(f"exec {sys.executable} {path}\n", "start.sh")
    filled = [word.format(python=sys.executable, script=path, shell=shell) for word in command]
    settings = {"PYTHONPATH": f"{memctl.environment['PYTHONPATH']}:{path.parent}"}
    run = memctl.record("started", *filled, **settings)
    assert run.code == 0, run
    assert sessions(memctl, "started") >= 36, run


def test_a_sitecustomize_of_the_user_runs_too(memctl: Memctl, script: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'here'\n")
    path = script(ALONE + "print(mine)\n")
    settings = {"PYTHONPATH": f"{memctl.environment['PYTHONPATH']}:{tmp_path / 'mine'}"}
    run = memctl.record("mine", sys.executable, str(path), **settings)
    assert run.out == "here\n" and sessions(memctl, "mine") >= 36, run


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["true"], "no Python started that looks at PYTHONPATH"),
        (["{python}", "-c", "print(1)"], "1 Python program started and none imported torch"),
        (["{python}", "-c", "import torch"], "1 program imported torch and none used CUDA"),
        (["{python}", "-I", "{script}"], "-I; leave that out"),
        (["{python}", "-uE", "{script}"], "-E; leave that out"),
    ],
    ids=["no python", "no torch", "no cuda", "isolated", "no environment"],
)
def test_when_nothing_was_recorded_it_says_why(memctl: Memctl, script: Any, command: list[str], said: str) -> None:
    path = script(ALONE)
    filled = [word.format(python=sys.executable, script=path) for word in command]
    run = memctl.record("nothing", *filled)
    assert run.code == 0, run
    [line] = [line for line in run.lines() if "nothing was recorded" in line]
    assert said in line, run


# It runs without the tests' folders, so it cannot import `small`.
WAITING = """
import os, time
deadline = time.monotonic() + 60
while not os.path.exists(os.path.join(os.environ["PAUSES"], "seen.go")):
    assert time.monotonic() < deadline
    time.sleep(0.01)
"""


def test_a_path_that_was_replaced_is_seen_while_it_runs(memctl: Memctl, script: Any) -> None:
    command = ["env", "PYTHONPATH=/nowhere", sys.executable, str(script(ALONE + WAITING))]
    going = memctl.start_recorded("nothing", *command, settings={"MEMCTL_LOG": "memctl=info"}, pausing=True)
    going.until(lambda: "is not recorded" in going.now().err, "that it is seen in the middle of things")
    going.go_on("seen")
    run = going.wait()
    assert run.code == 0, run
    [line] = [line for line in run.lines() if "nothing was recorded" in line]
    assert "runs with another PYTHONPATH" in line, run


def test_a_hook_that_cannot_be_built_is_said_at_the_end(memctl: Memctl, script: Any, tmp_path: pathlib.Path) -> None:
    settings = {"CXX": "/bin/false", "MEMCTL_CACHE": str(tmp_path / "empty")}
    run = memctl.record("unbuilt", sys.executable, str(script(ALONE)), **settings)
    last = [line for line in run.lines() if "no allocator events were recorded" in line]
    assert last and "could not compile the shim" in last[0], run


def test_a_hook_for_another_build_of_torch_is_refused(memctl: Memctl, script: Any) -> None:
    text = (
        "import torch, small, memctl_agent\nfrom memctl_agent import _native, _shim\n"
        "shim = _shim.ensure(torch, _native.shim_source())\n"
        "other = torch.version.git_version[::-1]\n"
        "build, _shim.build_of = _shim.build_of(torch), lambda torch: f'{torch.__version__} {other}'\n"
        "_shim.ensure = lambda *_: shim\n"
        "memctl_agent.attach()\nkept = torch.empty(1 << 20, device='cuda')\n"
        "small.tell('status', small.status())\nsmall.tell('build', build)\n"
    )
    run = memctl.record("misfit", sys.executable, str(script(text)))
    status = run.reported("status")
    assert run.code == 0 and status["level"] == "blocks", run
    assert f"was built for torch {run.reported('build')}, this is torch" in status["trouble"], status


ATTACHED = """
import os, signal, sys, torch
import memctl_agent, small
memctl_agent.attach("alone")
training = small.Training()
training.steps(300 if sys.argv[1] == "kill" else 5)
small.tell("produced", memctl_agent.status()["produced"])
if sys.argv[1] == "kill":
    small.pause("before-kill")
    os.kill(os.getpid(), signal.SIGKILL)
training.report()
"""


def test_who_attaches_alone_is_found_by_the_next_question(memctl: Memctl, script: Any) -> None:
    # The address is given explicitly, and no daemon listens there.
    run = finish([sys.executable, str(script(ATTACHED)), "end"], {**memctl.environment, "MEMCTL_DAEMON": NOBODY})
    assert run.code == 0, run
    [line] = [line for line in run.lines() if "wait on disk" in line]
    assert "events of job alone" in line and NOBODY in line, line
    spool = pathlib.Path(memctl.environment["XDG_DATA_HOME"]) / "memctl"
    assert list(spool.rglob("*.spool")), list(spool.rglob("*"))


def test_what_waits_at_the_default_address_is_in_the_local_store(memctl: Memctl, script: Any) -> None:
    run = finish([sys.executable, str(script(ATTACHED)), "end"], memctl.environment)
    assert run.code == 0, run
    answer = asked(memctl, "query", "--job", "alone")
    [rank] = answer["ranks"]
    assert rank["events"] >= run.reported("produced") > 100 and rank["state"] == "finished", answer
    assert answer["completeness"]["exact"], answer
    # The spool is imported exactly once.
    assert not list(pathlib.Path(memctl.environment["XDG_DATA_HOME"]).rglob("*.spool"))
    assert asked(memctl, "query", "--job", "alone")["ranks"][0]["events"] == rank["events"]


def test_what_was_on_disk_survives_a_kill(memctl: Memctl, script: Any) -> None:
    path = script(ATTACHED)
    going = memctl.start([sys.executable, str(path), "kill"], {}, pausing=True)
    going.until_paused("before-kill")
    folder = pathlib.Path(memctl.environment["XDG_DATA_HOME"])
    # The worker packs new events within a second and writes them to disk, because no daemon accepts them.
    going.until(lambda: sum(file.stat().st_size for file in folder.rglob("*.spool")) > 4096, "something on disk")
    produced = going.now().reported("produced")
    # A query made meanwhile reports that a process still records to disk.
    asking = finish([memctl.command, "jobs"], memctl.environment)
    assert f"process {going.pid} records job alone to disk" in asking.err, asking
    going.go_on("before-kill")
    assert going.wait().code == -9
    answer = asked(memctl, "query", "--job", "alone")
    [rank] = answer["ranks"]
    # Events that were not packed are lost with the process, and its end is not recorded.
    assert 0 < rank["events"] <= produced and answer["job"]["state"] in ("running", "lost"), (produced, answer)


NOBODY = "http://127.0.0.1:1"


def asked(memctl: Memctl, *arguments: str) -> Any:
    """A query that names no daemon and no folder, as a user would type it."""
    import json

    run = finish([memctl.command, *arguments, "-o", "json"], memctl.environment)
    assert run.code == 0, run
    return json.loads(run.out)


@pytest.fixture(autouse=True)
def no_daemon_answers_by_default(memctl: Memctl, tmp_path: pathlib.Path) -> None:
    """These tests use the user's own daemon; in this folder none runs."""
    memctl.environment["XDG_RUNTIME_DIR"] = str(tmp_path)
    assert "MEMCTL_DAEMON" not in os.environ or os.environ.pop("MEMCTL_DAEMON")
