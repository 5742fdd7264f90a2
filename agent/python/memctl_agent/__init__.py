"""memctl's agent. It sends the events of the CUDA caching allocator of this process to a memctl daemon.

A program only needs `memctl_agent.attach()`. `epoch`, `step`, `phase`, `region` and `note` add marks that memctl cannot
find by itself. Importing this module has no effect and does not import torch.
Guarantees: no call raises, blocks or changes the training. Without a session no call has an effect.

(PYTEST_DONT_REWRITE: the package has a plugin of pytest, which would warn if the package was imported before it.)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Callable, Optional

from memctl_agent._book import EPOCH_MAX, HAND, PHASES, STEP_MAX
from memctl_agent._book import EVAL as _EVAL
from memctl_agent._session import SESSION as _the_session
from memctl_agent._session import say as _say

__all__ = [
    "Range",
    "attach",
    "detach",
    "epoch",
    "log_to",
    "note",
    "phase",
    "region",
    "show",
    "status",
    "step",
    "summary",
]


def attach(
    job: Optional[str] = None,
    *,
    daemon: Optional[str] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    attempt: Optional[int] = None,
    labels: Optional[Mapping[str, str]] = None,
    role: Optional[str] = None,
    stacks: bool = True,
    auto: bool = True,
    holders: bool = True,
) -> bool:
    """Attaches to this process: at once, or as soon as the program initialises CUDA.

    Missing arguments come from `MEMCTL_*`, torchrun, SLURM, MPI or Kubernetes. `daemon` is an address such as
    `unix:/run/memctl.sock` or `https://daemon:7717`. Under `memctl run` the launcher receives all data, and no address
    is needed. If no daemon answers, the recording waits on disk for the next `memctl` command. `role` is the function
    of this process in the job (`trainer`, `rollout`).
    `stacks=False` omits Python stacks. `auto=False` omits the automatic marks. `holders=False` forbids searches in this
    process for the objects that hold its tensors.
    Returns whether it has attached or will attach. Otherwise one line on stderr gives the reason.
    """
    try:
        wanted: dict[str, Any] = {
            "job": job,
            "daemon": daemon,
            "rank": rank,
            "world_size": world_size,
            "attempt": attempt,
            "labels": {str(name): str(value) for name, value in (labels or {}).items()},
            "role": None if role is None else str(role),
            "holders": None if holders else False,
        }
        return _the_session.attach(wanted, stacks=stacks, auto=auto, quiet=False)
    except Exception as error:
        _say(f"could not attach: {type(error).__name__}: {error}")
        return False


def detach(failure: Optional[str] = None) -> Optional[dict[str, object]]:
    """Ends the session. If `failure` is given, the session ends as failed. Waits at most 0.25 s for the daemon.

    Returns what was delivered, or `None` if no session was attached. `attach` may be called again.
    """
    try:
        return _the_session.detach(failure)
    except Exception as error:
        _say(f"could not detach: {type(error).__name__}: {error}")
        return None


class Range:
    """A range that has begun. It ends with `end`, at the end of a `with` block, or when the next range of its kind
    begins."""

    __slots__ = ("_end",)

    def __init__(self, end: Optional[Callable[[], object]] = None) -> None:
        self._end = end

    def end(self) -> None:
        """Ends the range. Further calls have no effect."""
        end, self._end = self._end, None
        if end is not None:
            _quietly(end)

    def __enter__(self) -> Range:
        return self

    def __exit__(
        self,
        exc_type: Optional[type[BaseException]],
        exc_value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.end()


def _quietly(call: Callable[[], object]) -> object:
    """Calls a function. An exception of memctl is not raised. `status()` reports the last one."""
    try:
        return call()
    except Exception as fault:
        _the_session.trouble = f"{type(fault).__name__}: {fault}"
        return None


def epoch(number: int) -> Range:
    """Begins epoch `number` (0 to 2^32-1) and ends the previous epoch. From then on there are no automatic epochs."""

    def begin() -> Range:
        n, book = _number(number, EPOCH_MAX, "an epoch"), _the_session.book
        return Range(lambda: book.epoch_end(n, HAND)) if book.epoch_begin(n, HAND) else Range()

    return _range(begin)


def step(number: int) -> Range:
    """Begins step `number` and ends the previous step. Numbers count through the whole job. From then on there are no
    automatic steps."""

    def begin() -> Range:
        n, book = _number(number, STEP_MAX, "a step"), _the_session.book
        if not book.step_begin(n, HAND):
            return Range()
        return Range(lambda: book.step_end(HAND, n))

    return _range(begin)


def phase(name: str) -> Range:
    """Begins a phase and ends the previous one: `train` or `eval`, or within them `forward`, `backward` or `optimizer`.

    At the end of a `with` block, `train` and `eval` restore the previous phase.
    """

    def begin() -> Range:
        number, book = PHASES.get(name), _the_session.book
        if number is None:
            raise ValueError(f"phase {name!r} is none of {', '.join(PHASES)}")
        if number > _EVAL:
            return Range(lambda: book.part_end(number, HAND)) if book.part_begin(number, HAND) else Range()
        former = None if book.mode is None or book.mode[0] == number else book.mode[0]
        book.mode_begin(number, HAND)

        def end() -> None:
            if book.mode_end(number, HAND) and former is not None:
                book.mode_begin(former, HAND)

        return Range(end)

    return _range(begin)


def region(name: str) -> Range:
    """Begins a region with a name of your own. Regions may nest and overlap."""

    def begin() -> Range:
        book, text = _the_session.book, str(name)
        return Range(lambda: book.region_end(text)) if book.region_begin(text, HAND) else Range()

    return _range(begin)


def note(text: str) -> None:
    """Records a note with the current time."""
    _quietly(lambda: _the_session.book.note(str(text)))


def status() -> dict[str, object]:
    """The state of the session: what is attached, the level, counts of recorded and dropped events, and the last
    problem."""
    found = _quietly(_the_session.status)
    return found if isinstance(found, dict) else {"attached": False, "level": "off", "trouble": _the_session.trouble}


def show(job: Optional[str] = None, *, height: int = 800) -> None:
    """Shows the report about a job in the notebook: this process's own job unless `job` is given. `height` is in
    pixels.

    The report has everything that was recorded until now. Outside a notebook, or if there is no report, one sentence is
    printed.
    """
    try:
        from memctl_agent._notebook._report import show_report

        show_report(job, height)
    except Exception as error:
        _say(f"no report: {type(error).__name__}: {error}")


def summary(*, daemon_s: float = 0.2) -> dict[str, Any]:
    """This process's memory as a flat dict of numbers and texts. Names of amounts end with their unit.

    `allocated_bytes`, `reserved_bytes`, `peak_allocated_bytes`, `peak_reserved_bytes`, `alloc_retries` and `ooms` are
    PyTorch's counters. `verdict`, `verdict_sentence`, `floor_bytes`, `growth_bytes_per_epoch` and `page_url` come from
    the daemon, for which the call waits at most `daemon_s` seconds; 0 leaves them out. Instead of figures that are
    missing, `reason` and `daemon_reason` say why.
    """
    try:
        from memctl_agent._summary import summary as _of

        return _of(daemon_s)
    except Exception as error:
        return {"reason": f"a fault of memctl ({type(error).__name__}: {error})"}


def log_to(tracker: Any, *, every_steps: int = 10, verdict_s: float = 30.0, prefix: str = "memctl/") -> bool:
    """Logs this process's memory to a tracker, from now on: at the end of each epoch, and of every `every_steps` steps.

    `tracker` is a run of Weights & Biases (or the module `wandb`), the module `mlflow`, a `SummaryWriter` of
    TensorBoard, or a function that is called with a dict of numbers and the step. Logged are PyTorch's counters, the
    levels after the forward and the backward pass, and, when the daemon has answered, its floor, growth, verdict and
    the page's address. A thread asks the daemon after epochs, at most every `verdict_s` seconds.
    Returns whether the tracker is known. Otherwise one line on stderr gives the reason.
    """
    try:
        from memctl_agent._trackers import log_to as _log_to

        return _log_to(tracker, every_steps, verdict_s, prefix)
    except Exception as error:
        _say(f"nothing is logged: {type(error).__name__}: {error}")
        return False


def load_ipython_extension(shell: Any) -> None:
    """For `%load_ext memctl_agent`: adds the magic `%%memctl` to IPython. It is not part of the Python interface."""
    from memctl_agent._notebook import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """For `%unload_ext memctl_agent`."""
    from memctl_agent._notebook import unload

    unload(shell)


def _number(value: object, most: int, what: str) -> int:
    number = int(value)  # type: ignore[call-overload]
    if not 0 <= number <= most:
        raise ValueError(f"{what} is a number from 0 to {most}, not {number}")
    return number


def _range(begin: Callable[[], Range]) -> Range:
    made = _quietly(begin)
    return made if isinstance(made, Range) else Range()


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("memctl-agent")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
