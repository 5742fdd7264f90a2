#!/usr/bin/env python3
"""A throw-away Slurm cluster for tests: genuine slurmctld, slurmd and munged, everything in one folder, on loopback.

    cluster.py start DIR [NODES]   makes the cluster and starts it (4 nodes); prints the environment of its users
    cluster.py stop DIR            ends that cluster, its jobs and nothing else; DIR stays, for its logs

The programs are Debian's (`unpacked.py`). Needs root: slurmd starts the tasks of any user, and each node is a slurmd in
a UTS namespace of its own, so that its tasks see the node's name as the name of their host. Everything else of the
machine (processes, files, network) is common to all nodes.

One process, the keeper, starts all daemons and adopts every process that a step leaves behind. It ends them at `stop`,
and by itself after two hours. If the keeper is killed, the kernel ends the daemons, and `stop` ends the jobs. There is
no accounting (slurmdbd requires a MariaDB): `sacct` does not work, `squeue` and `scontrol` do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Optional

from unpacked import libraries, program, unpack, why_not

NODES = 4
LIMIT_S = 180.0
KEPT_S = 7200
KEEPER_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "MEMCTL_CACHE", "XDG_CACHE_HOME")
CLONE_NEWNS, CLONE_NEWUTS = 0x00020000, 0x04000000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True)

CONFIG = """\
ClusterName=memctl
SlurmctldHost=controller(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until the credentials of its first start have expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=15
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/spool/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.txt
KillWait=5
ReturnToService=2
SlurmdTimeout=60
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=01:00:00 State=UP
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=8 State=UNKNOWN"


def die(text: str) -> None:
    raise SystemExit(f"tests/slurm: {text}")


def free_ports(count: int) -> list[int]:
    """Ports without a listener."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def until(done: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > deadline:
            die(what())
        time.sleep(0.05)


class Cluster:
    """A cluster in a folder."""

    def __init__(self, folder: pathlib.Path, nodes: int = NODES, settings: str = "") -> None:
        """`settings`: further lines of slurm.conf."""
        self.folder, self.root, self.settings = folder.absolute(), unpack(), settings
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.child: Optional[subprocess.Popen[bytes]] = None

    def environment(self) -> dict[str, str]:
        """What a user's commands need, with the caller's own paths behind Slurm's."""
        front = {"PATH": [str(self.root / "usr/bin")], "LD_LIBRARY_PATH": libraries(self.root)}
        paths = {
            name: os.pathsep.join([*added, *filter(None, [os.environ.get(name)])]) for name, added in front.items()
        }
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), **paths}

    def command(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Runs one of Slurm's commands."""
        environment = {**os.environ, **self.environment()}
        return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, env=environment)

    def logs(self) -> str:
        """The last lines that the daemons printed."""
        return "\n".join((self.folder / "keeper.log").read_text("utf-8", "replace").splitlines()[-40:])

    def start(self, *, bound: bool = True) -> None:
        """Starts the cluster and waits until every node is idle. `bound`: it ends together with this process."""
        if self.keeper():
            die(f"a cluster runs in {self.folder}")
        if self.folder.exists():
            if any(self.folder.iterdir()) and not (self.folder / "slurm.conf").exists():
                die(f"{self.folder} has files that are not a cluster's: choose an empty folder")
            self.stop()
            shutil.rmtree(self.folder)
        self.write()
        try:
            self.start_keeper(bound)
            until(self.is_ready, lambda: f"the nodes are {self.states()}, not idle, after {LIMIT_S} s\n{self.logs()}")
        except SystemExit:
            self.stop()
            raise

    def write(self) -> None:
        """Writes the configuration."""
        for name in ("state", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        ports = free_ports(len(self.nodes) + 1)
        nodes = "\n".join(NODE.format(name=name, port=port) for name, port in zip(self.nodes, ports[1:]))
        plugins = libraries(self.root)[0]
        hosts = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", "controller", *self.nodes))
        (self.folder / "hosts").write_text(hosts)
        config = CONFIG.format(controller=ports[0], folder=self.folder, plugins=plugins, nodes=nodes)
        (self.folder / "slurm.conf").write_text(f"{config}{self.settings}\n")

    def start_keeper(self, bound: bool) -> None:
        # The daemons of a real cluster know nothing of the environment of their users.
        own = {name: value for name, value in os.environ.items() if name in KEEPER_VARIABLES}
        with (self.folder / "keeper.log").open("wb") as log:
            argv = [sys.executable, __file__, "keep", str(self.folder), str(len(self.nodes))]
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=own,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) if bound else None,
            )
        (self.folder / "keeper.pid").write_text(str(self.child.pid))

    def is_ready(self) -> bool:
        if self.child and self.child.poll() is not None:
            die(f"the cluster did not start\n{self.logs()}")
        return self.states() == ["idle"] * len(self.nodes)

    def states(self) -> list[str]:
        """The state of each node, once the controller answers."""
        return self.command("sinfo", "--Node", "--noheader", "--format=%t").stdout.split()

    def keeper(self) -> int:
        """The pid of the keeper of this folder, or 0 if it does not run."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.folder / "keeper.pid").read_text())
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return pid if b"keep" in words and str(self.folder).encode() in words else 0
        return 0

    def stop(self) -> None:
        """Ends the cluster, its jobs and every process of theirs."""
        if pid := self.keeper():
            os.kill(pid, signal.SIGTERM)
        until(lambda: not self.keeper(), lambda: f"the keeper {pid} of {self.folder} does not end")
        # Jobs outlive a keeper that was killed.
        until(lambda: not self.kill(), lambda: f"processes of the cluster in {self.folder} do not end")
        if self.child:
            self.child.wait()

    def kill_node(self, name: str) -> None:
        """Kills a node's daemon and all processes of its tasks at once, as a power failure does."""
        space = int((self.folder / f"{name}.uts").read_text())
        until(lambda: not self.kill({space}), lambda: f"processes of {name} do not end")

    def kill(self, spaces: Optional[set[int]] = None) -> bool:
        """Kills all processes of the cluster, or those in these UTS namespaces. Returns whether there were any."""
        found = False
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            # A process belongs to the cluster if it sees the cluster's file of hosts. (A zombie sees nothing any more.)
            with contextlib.suppress(OSError):
                is_own = os.path.samefile(f"/proc/{pid}/root/etc/hosts", self.folder / "hosts")
                if is_own and (spaces is None or uts(pid) in spaces):
                    os.kill(pid, signal.SIGKILL)
                    found = True
        return found

    def keep(self) -> None:
        """Runs the daemons until a signal, the end of the controller, or two hours. This is the keeper's whole life."""
        ended: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, lambda number, _: ended.append(number))
        signal.alarm(KEPT_S)
        assert LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        # Daemons resolve the names of all nodes, and listen on the addresses of these names: on loopback only.
        assert LIBC.unshare(CLONE_NEWNS) == 0, "this user may not make a mount namespace"
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "--bind", str(self.folder / "hosts"), "/etc/hosts"], check=True)
        os.environ.update(self.environment())
        munged = self.daemon("munged", *self.munge_flags())
        until(lambda: (self.folder / "munge.socket").exists(), lambda: "munged does not listen")
        controller = self.daemon("slurmctld", "-D", "-c", host="controller")
        spaces = set()
        for name in self.nodes:
            space = uts(self.daemon("slurmd", "-D", "-N", name, "-d", program("slurmstepd"), host=name))
            (self.folder / f"{name}.uts").write_text(str(space))
            spaces.add(space)
        gone = set()
        while not ended and controller not in gone:
            # Steps end as children of this process, because it adopted them.
            with contextlib.suppress(ChildProcessError):
                while pid := os.waitpid(-1, os.WNOHANG)[0]:
                    gone.add(pid)
            time.sleep(0.05)
        until(lambda: not self.kill(spaces), lambda: "processes of the nodes do not end")
        for pid in (controller, munged):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        # Some machines have an init that reaps nothing.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0):
                pass

    def munge_flags(self) -> list[str]:
        """All files of munged are in the folder."""
        files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log", "pid-file": "munged.pid"}
        files["seed-file"] = "munged.seed"
        return ["--foreground", "--force", *(f"--{flag}={self.folder / name}" for flag, name in files.items())]

    def daemon(self, name: str, *flags: str, host: str = "") -> int:
        """Starts a daemon as a child, in a UTS namespace with this name if there is one. Returns its pid."""

        def prepare() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if host:
                if LIBC.unshare(CLONE_NEWUTS):
                    raise OSError(ctypes.get_errno(), "no UTS namespace")
                socket.sethostname(host)

        return subprocess.Popen([program(name), *flags], stdin=subprocess.DEVNULL, preexec_fn=prepare).pid


def uts(pid: int) -> int:
    """The number of a process's UTS namespace."""
    return os.stat(f"/proc/{pid}/ns/uts").st_ino


def main(words: list[str]) -> None:
    if len(words) not in (2, 3) or words[0] not in ("start", "stop", "keep"):
        raise SystemExit(__doc__)
    cluster = Cluster(pathlib.Path(words[1]), int(words[2]) if len(words) > 2 else NODES)
    if words[0] == "keep":
        cluster.keep()
    elif words[0] == "stop":
        cluster.stop()
    elif reason := why_not():
        die(reason)
    else:
        cluster.start(bound=False)
        for name, value in cluster.environment().items():
            print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main(sys.argv[1:])
