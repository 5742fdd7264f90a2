"""Attaches to this process and detaches. The states are off, armed (CUDA is not initialised yet) and attached.

Guarantees: memctl never initialises CUDA. Nothing raises into the program. A failure prints one line on stderr, and
`status()` reports it. There is one session at a time. After `detach` the next session may begin.
Refuses: forked children of an attached process, because they cannot use CUDA; free-threaded interpreters.

(Over 400 lines: the states and their transitions belong together.)
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
from typing import Any, Callable, Optional

from memctl_agent import _lifecycle, _shim, _torch
from memctl_agent._annotations import Annotations
from memctl_agent._asked import HolderAnswerer
from memctl_agent._book import STEP_END, Book
from memctl_agent._fallback import Fallback
from memctl_agent._hooks import Hooks, Hub
from memctl_agent._lifecycle import Lifecycle
from memctl_agent._limit import Limit
from memctl_agent._loop import Loop
from memctl_agent._nccl import Nccl
from memctl_agent._sharing import Sharing

# How long the end of a session may wait for the daemon, in seconds. With a launcher, it does not wait.
PATIENCE_S = 0.25

# The size limit of the launcher's file of notes (see `inject/sitecustomize.py`).
SEEN_BYTES_MAX = 256 << 10

OFF, ARMED, ATTACHED = "off", "armed", "attached"


def is_disabled() -> bool:
    """Whether `MEMCTL_DISABLED` disables memctl. All values except `0` and the empty text disable it."""
    return os.environ.get("MEMCTL_DISABLED", "") not in ("", "0")


def is_first_local_rank() -> bool:
    """Whether this rank prints the messages for its machine."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK"):
        value = os.environ.get(name)
        if value is not None:
            return value == "0"
    return True


def say(text: str) -> None:
    """Prints one line on stderr. Never raises, even if stderr is closed."""
    try:
        sys.stderr.write(f"memctl: {text}\n")
        sys.stderr.flush()
    except Exception:
        # stderr is closed, or it was replaced by an object that cannot write.
        return


def note(text: str) -> None:
    """Writes one line into a file of the launcher. At the end, the launcher prints from it why nothing was recorded."""
    socket = os.environ.get("MEMCTL_RUN_SOCKET")
    if not socket:
        return
    try:
        descriptor = os.open(os.path.join(os.path.dirname(socket), "seen"), os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(descriptor).st_size < SEEN_BYTES_MAX:
                line = f"{os.getpid()} why {' '.join(text.split())}"
                os.write(descriptor, line.encode("utf-8", "replace")[:2000] + b"\n")
        finally:
            os.close(descriptor)
    except OSError:
        # The launcher no longer exists.
        return


def is_free_threaded() -> bool:
    """Whether this interpreter was built without the global lock. In such an interpreter, a thread's frames can change
    during a walk."""
    return "t" in getattr(sys, "abiflags", "")


def load_native() -> Any:
    """The native module; `None` if this package was installed without one."""
    try:
        from memctl_agent import _native
    except ImportError:
        return None
    return _native


class Session:
    """The state of memctl in this process. It has the only session and the book to which the public functions write."""

    def __init__(self) -> None:
        self.state = OFF
        self.book = Book()
        self.trouble: Optional[str] = None
        self.level = "off"
        self.shim_origin: Optional[str] = None
        self._native: Any = None
        self._torch: Any = None
        self._hooks: Optional[Hooks] = None
        self._lifecycle: Optional[Lifecycle] = None
        self._wanted: dict[str, Any] = {}
        self._stacks = self._auto = True
        self._quiet = False
        self._started: dict[str, object] = {}
        self._watches_forks = False
        self._at_end: Optional[Callable[[], None]] = None
        self._asked = HolderAnswerer(lambda: self.book.has_epochs)
        self._nccl = Nccl()
        self._sharing = Sharing()
        self._limit = Limit()
        # What passes the figures on to trackers (`_trackers.Log`). They stay when a session ends.
        self.logs: list[Any] = []

    # -- attaching -------------------------------------------------------------------------------------------

    def attach(self, wanted: dict[str, Any], *, stacks: bool, auto: bool, quiet: bool) -> bool:
        """Attaches now, or as soon as CUDA is initialised. Returns whether it has attached or will attach."""
        if is_disabled():
            return False
        if self.state != OFF:
            return self._join(wanted, stacks=stacks, auto=auto, quiet=quiet)
        native = self._usable_native()
        if native is None:
            return False
        try:
            import torch  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            return self._refuse(f"torch cannot be imported ({error}); memctl records PyTorch jobs")
        if self.state != OFF:
            # Under `memctl run`, the import of torch has armed the session meanwhile.
            return self._join(wanted, stacks=stacks, auto=auto, quiet=quiet)
        if not _torch.has_cuda(torch):
            # A program that uses no GPU has nothing to record. Only an explicit `attach()` prints a message about this.
            text = f"torch {torch.__version__} was built without CUDA; install a CUDA build of torch"
            self.trouble = text
            if quiet:
                note(text)
            return False if quiet else self._refuse(text)
        self._native, self._torch, self._wanted = native, torch, wanted
        self._stacks, self._auto, self._quiet = stacks, auto, quiet
        self.book, self.trouble, self.level = Book(), None, "off"
        self.state = ARMED
        self._watch_forks()
        self._lifecycle = Lifecycle(functools.partial(self.detach, leaving=True))
        self._lifecycle.install()
        # If CUDA is initialised, the callback runs at once. Otherwise it runs within the call that initialises CUDA. It
        # never raises.
        torch.cuda._lazy_call(functools.partial(self._cuda_is_there, self.book))
        return self.state != OFF

    def _usable_native(self) -> Any:
        """The native module. If there is no usable one, reports the reason and returns `None`."""
        if is_free_threaded():
            version = ".".join(map(str, sys.version_info[:2]))
            self._refuse(
                f"CPython {version}t is free-threaded, which memctl does not record; run with the python{version} that "
                "has the interpreter lock"
            )
            return None
        native = load_native()
        if native is None:
            self._refuse("the native module is missing; reinstall memctl-agent for this Python and platform")
        return native

    def _join(self, wanted: dict[str, Any], *, stacks: bool, auto: bool, quiet: bool) -> bool:
        """Handles a further call of `attach`. Its arguments take effect only if recording has not begun.

        Under a launcher, job and daemon do not change, because otherwise the ranks of one job could be in two jobs.
        """
        if self.state == ARMED and not quiet:
            fixed = {"job", "daemon"} if "MEMCTL_RUN_SOCKET" in os.environ else set()
            self._wanted = self._wanted | {
                name: value for name, value in wanted.items() if value is not None and name not in fixed
            }
            self._stacks, self._auto = stacks, auto
        elif not quiet and "MEMCTL_RUN_SOCKET" not in os.environ:
            job, known = wanted.get("job"), self._started.get("job")
            if job is not None and known is not None and job != known:
                say(f"this process stays recorded as job {known}; for {job} call memctl_agent.detach() first")
        return True

    def _refuse(self, text: str) -> bool:
        self.trouble = text
        note(text)
        if is_first_local_rank():
            say(text)
        return False

    def _cuda_is_there(self, book: Book) -> None:
        """CUDA has been initialised in this process, or in a child of it. Never raises, because an exception here would
        end torch's initialisation."""
        if self.state != ARMED or self.book is not book or is_disabled():
            return
        try:
            if self._is_loader_worker():
                # This is a worker of a data loader that uses CUDA. Its loops are not training loops.
                self._auto = False
                self._wanted = self._wanted | {"role": self._wanted.get("role") or "loader"}
            self._begin()
        except Exception as error:
            self._give_up(f"could not attach: {type(error).__name__}: {error}")

    def _is_loader_worker(self) -> bool:
        return self._torch.utils.data.get_worker_info() is not None

    def _begin(self) -> None:
        torch, native = self._torch, self._native
        hookable = _torch.hookable(torch)
        devices = _torch.devices(torch)
        wanted = self._wanted
        if wanted.get("rank") is None:
            wanted = wanted | _torch.group(torch)
        try:
            self._started = native.start(
                framework=_torch.framework(torch),
                conf=_torch.allocator_conf(torch),
                devices=devices,
                child=_lifecycle.child_of(),
                **wanted,
            )
        except native.NativeError as error:
            self._give_up(str(error))
            return
        self.state = ATTACHED
        self._nccl = Nccl()
        self._sharing = Sharing()
        self._limit = Limit()
        self.level, why = hookable.level, hookable.why
        if self.level == "full":
            self.level, why = self._hook()
        if self.level == "full" and not self._stacks:
            self.level = "no-stacks"
        elif self.level == "full" and not self._has_stacks():
            self.level = "no-stacks"
            why = f"Python stacks are off: the frame layout of CPython {sys.version.split()[0]} is unknown"
        before_end = self._begin_fallback([device[0] for device in devices]) if self.level == "blocks" else None
        self.book.open(self._mark, before_end)
        if self._auto:
            self._watch_loop()
        self._asked.begin(native)
        if not self._quiet:
            self._say_where_to_look()
        if why:
            self._refuse(f"level {self.level}: {why}")

    def _say_where_to_look(self) -> None:
        """For a user who called `attach()`: prints one line with the job's name and the command that shows the job."""
        if self._started.get("mode") != "thread" or not is_first_local_rank():
            return
        job = shlex.quote(str(self._started.get("job")))
        daemon = self.daemon()
        place = "" if daemon is None else f" --daemon {daemon}"
        say(f"recording as job {job}; `memctl query {job}{place}` shows the job, `memctl ui{place}` shows its page")

    def _has_stacks(self) -> bool:
        try:
            return bool(self._native.check_stacks())
        except Exception:
            # A recording without stacks is better than none.
            return False

    def _hook(self) -> tuple[str, str]:
        """Attaches the hook through the shim. Returns the level of recording, and the reason if the level is not
        `full`."""
        native = self._native
        try:
            shim = _shim.ensure(self._torch, native.shim_source(), lambda text: None if self._quiet else say(text))
            native.attach_hook(str(shim.path), self._likely_device(), _shim.build_of(self._torch))
        except (_shim.ShimError, native.NativeError, OSError) as error:
            return "blocks", f"counters and block snapshots only: {error}"
        self.shim_origin = shim.origin
        return "full", ""

    def _likely_device(self) -> int:
        """The device that this rank will probably use most. This is a hint, because most programs choose their device
        later."""
        local = os.environ.get("LOCAL_RANK", "")
        if local.isdecimal() and int(local) < self._torch.cuda.device_count():
            return int(local)
        return int(self._torch.cuda.current_device())

    def attach_other(
        self,
        start: dict[str, Any],
        *,
        begin: Callable[[], str],
        boundary: Callable[[bool], None],
        end: Callable[[], None],
    ) -> bool:
        """Attaches at once, for a framework other than PyTorch.

        `start` has the arguments of the native module's `start`. `begin` runs after `start` and returns the level.
        `boundary` runs before the end of a step (False) or of an epoch (True). `end` runs when the session has ended.
        """
        native = self._usable_native()
        if native is None:
            return False
        if self.state != OFF:
            return self._refuse(
                "this process is recorded already, and a process has one source of events; call memctl_agent.detach() "
                "first to record another"
            )
        if "MEMCTL_RUN_SOCKET" in os.environ:
            # The launcher determines the job and the daemon.
            start = start | {"job": None, "daemon": None}
        self._native, self._torch = native, None
        self.book, self.trouble, self.level = Book(), None, "off"
        self._watch_forks()
        self._lifecycle, self._at_end = Lifecycle(functools.partial(self.detach, leaving=True)), end
        self._lifecycle.install()
        try:
            self._started = native.start(**start)
            self.state = ATTACHED
            self.level = begin()
        except Exception as error:
            self._give_up(str(error))
            return False
        self.book.open(self._mark, self._guarded(boundary))
        return True

    def _guarded(self, boundary: Callable[[bool], None]) -> Callable[[bool], None]:
        """Wraps `boundary`. An error does not raise into the training loop. `status()` reports it."""

        def before_end(is_epoch: bool) -> None:
            try:
                boundary(is_epoch)
            except Exception as error:
                self.trouble = f"counters cannot be read: {type(error).__name__}: {error}"

        return before_end

    def _begin_fallback(self, ordinals: list[int]) -> Any:
        fallback = Fallback(self._torch, self._native, ordinals)
        self._at_end = fallback.end
        fallback.begin(self._guarded(fallback.by_clock))
        return self._guarded(fallback.boundary)

    def _mark(self, kind: int, number: int, name: str) -> None:
        if self._lifecycle is not None:
            self._lifecycle.goes_on()
        self._native.mark(kind, number, name)
        if kind == STEP_END:
            self._asked.step_ended()
            if self._torch is not None:
                self._nccl.step_ended(self._torch, self._native)
                self._sharing.step_ended(self._torch, self._native)
                self._limit.step_ended(self._torch, self._native)
        for log in self.logs:
            log.mark(kind, number)

    def _watch_loop(self) -> None:
        loop = Loop(self.book)
        hub = Hub(self.book, loop, Annotations(self.book, loop))
        hub.limit_set = lambda device: self._limit.look(self._torch, self._native, device)
        self._hooks = Hooks(hub)
        try:
            self._hooks.install(self._torch)
        except Exception as error:
            self._hooks.remove()
            self._hooks = None
            self._refuse(f"no automatic marks: {type(error).__name__}: {error}; mark epochs and steps by hand")

    def _give_up(self, text: str) -> None:
        begun, native = self.state == ATTACHED, self._native
        self._let_go()
        if begun:
            native.stop("the agent gave up: " + text, 0.0)
        self._refuse(text)

    # -- detaching ---------------------------------------------------------------------------------------------

    def detach(self, failure: Optional[str] = None, leaving: bool = False) -> Optional[dict[str, object]]:
        """Ends the open ranges, removes the hooks, and ends the native module's session. Returns `None` if there was no
        session."""
        if self.state == OFF:
            return None
        attached, native = self.state == ATTACHED, self._native
        self._unhook()
        if attached:
            for log in self.logs:
                log.prepare_end()
            self.book.close(failure is not None)
            if self._torch is not None:
                self._sharing.look(self._torch, native)
            for log in self.logs:
                log.end()
        started = self._started
        # (If the launcher was killed, this process continues the session itself, and then it waits for the daemon.)
        patience = 0.0 if attached and native.status().get("mode") == "launcher" else PATIENCE_S
        self._let_go()
        if not attached:
            return None
        outcome = native.stop(failure, patience, leaving)
        waiting = int(outcome.get("waiting") or 0)
        if waiting and is_first_local_rank():
            say(
                f"{waiting:,} events of job {started.get('job')} wait on disk, because the daemon at "
                f"{started.get('daemon')} did not accept them; the next query (`memctl query`) imports them"
            )
        return outcome

    def _unhook(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    def _let_go(self) -> None:
        self._unhook()
        self._asked.end()
        if self._lifecycle is not None:
            self._lifecycle.remove()
            self._lifecycle = None
        self.state, self.level, self._started, self.shim_origin = OFF, "off", {}, None
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()
        # From now on the public functions have no effect. The open ranges belonged to the ended session.
        self.book = Book()

    def _watch_forks(self) -> None:
        if not self._watches_forks:
            self._watches_forks = True
            _lifecycle.at_fork(self._forked)

    def _forked(self) -> None:
        """Runs in a forked child. An attached session belongs to the parent. An armed session may become the child's
        own."""
        if self.state != ATTACHED:
            return
        try:
            self._native.silence()
            # The parent's threads that answer requests and feed trackers do not exist in the child.
            self.logs = []
            self._asked = HolderAnswerer(lambda: self.book.has_epochs)
            self._let_go()
        except Exception:
            self.state = OFF

    def daemon(self) -> Optional[str]:
        """The address of the daemon to which this process sends; None for this user's own daemon or local service, and
        if there is no session."""
        is_local = self.state != ATTACHED or self._started.get("is_local")
        return None if is_local else str(self._started.get("daemon"))

    # -- status ------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """The native module's figures, and figures that only the Python part has."""
        found: dict[str, object] = {"attached": False, "level": "off", "trouble": None}
        if self._native is not None and self.state == ATTACHED:
            found.update(self._native.status())
            found["level"] = self.level
        found["state"] = self.state
        if self._torch is not None:
            found["torch"] = str(self._torch.__version__)
            found["torch_tried"] = _torch.is_tried(self._torch)
        found["shim"] = self.shim_origin
        found["automatic_marks"] = self._hooks is not None
        hub = self._hooks.hub if self._hooks is not None else None
        found["hook_faults"] = 0 if hub is None else hub.faults
        found["trouble"] = found.get("trouble") or self.trouble or (None if hub is None else hub.last_fault)
        return found


SESSION = Session()
