"""Logs this process's memory to an experiment tracker: Weights & Biases, MLflow, TensorBoard, or a function.

At the end of each epoch and of every few steps, the training's thread reads PyTorch's counters and passes them on. A
thread of memctl asks the daemon for its verdict, after epochs or, without epochs, once in a while. It also makes all
calls that may wait for a server.
Guarantees: nothing raises into the training, and the training does not wait for the daemon. A tracker that fails is
left alone, and one line on stderr has the reason. Only numbers, texts and the tracker itself are kept.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

from memctl_agent import _command, _summary
from memctl_agent._book import BACKWARD, EPOCH_END, EPOCH_ENDED, FORWARD, PHASE_END, STEP_END
from memctl_agent._session import OFF, SESSION, say

# Time limits in seconds: for a question to the daemon, and for the daemon to store what was recorded before it is
# asked.
ASK_S = 60.0
SETTLE_S = 5.0
# How long the end of the session waits for what was not passed on yet, in seconds.
END_S = 2.0
# Values that wait for a tracker that is slow. Further ones are dropped.
WAITING_MAX = 1_000

# What is logged under the prefix at a step's or an epoch's end, as far as it is known.
_PHASES = {FORWARD: "allocated_after_forward_bytes", BACKWARD: "allocated_after_backward_bytes"}
_OF_DAEMON = ("floor_bytes", "growth_bytes_per_epoch", "epoch_peak_allocated_bytes")
_TEXTS = ("verdict", "verdict_sentence", "page_url")

Values = Mapping[str, Any]


class Tracker:
    """One tracker. `numbers` gets values and a step. `texts` gets texts when they change, in memctl's thread. If
    `may_wait` is true, `numbers` may wait for a server, so it runs in memctl's thread, too."""

    def __init__(
        self,
        name: str,
        numbers: Callable[[Values, int], object],
        texts: Callable[[Values, int], object],
        may_wait: bool = False,
    ) -> None:
        self.name, self.numbers, self.texts, self.may_wait = name, numbers, texts, may_wait


def tracker_of(target: Any) -> Optional[Tracker]:
    """The tracker for the user's object; None if the object is not a tracker."""
    if callable(getattr(target, "add_scalar", None)):
        return _tensorboard(target)
    if callable(getattr(target, "log_metrics", None)) and callable(getattr(target, "active_run", None)):
        return _mlflow(target)
    if callable(getattr(target, "log", None)) and hasattr(target, "define_metric"):
        return _wandb(target)
    if callable(target):
        return Tracker("the function", lambda values, step: target(dict(values), step), lambda values, step: None)
    return None


def _tensorboard(writer: Any) -> Tracker:
    """A `SummaryWriter`. It has a queue and a thread of its own."""

    def numbers(values: Values, step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    def texts(values: Values, step: int) -> None:
        for name, value in values.items():
            writer.add_text(name, value, step)

    return Tracker("TensorBoard", numbers, texts)


def _wandb(run: Any) -> Tracker:
    """A run, or the module `wandb`. The values join the program's next `log`, so the program's step
    numbers do not change. The run's own process sends the values."""

    def numbers(values: Values, step: int) -> None:
        run.log(dict(values), commit=False)

    def texts(values: Values, step: int) -> None:
        # (The module has the summary of its run as an attribute, too.)
        run.summary.update(dict(values))

    return Tracker("Weights & Biases", numbers, texts)


def _mlflow(mlflow: Any) -> Tracker:
    """The module `mlflow`. Values belong to the run that is active now, or to a new one."""
    run = mlflow.active_run() or mlflow.start_run()
    identity, client = run.info.run_id, mlflow.MlflowClient()

    def numbers(values: Values, step: int) -> None:
        for name, value in values.items():
            client.log_metric(identity, name, value, step=step)

    def texts(values: Values, step: int) -> None:
        for name, value in values.items():
            client.set_tag(identity, name, value)

    return Tracker("MLflow", numbers, texts, may_wait=True)


class Log:
    """Logs to one tracker, from the marks of the session."""

    def __init__(self, tracker: Tracker, every_steps: int, verdict_s: float, prefix: str) -> None:
        self._tracker, self._every, self._prefix = tracker, max(1, every_steps), prefix
        self._verdict_s = max(0.1, verdict_s)
        # Steps until the next one that is logged, and the number of the last step.
        self._left, self._step = 1, 0
        self._levels: dict[str, int] = {}
        # The devices to read: those in use when all were last read. All are read first, and again at each epoch's end.
        self._used: list[int] = []
        self._of_daemon: dict[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._has_failed = self._is_ending = False
        # What the thread is to do: values to pass on with their step, or a question to the daemon (None).
        self._queue: queue.SimpleQueue[Optional[tuple[dict[str, Any], int]]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._is_over = False

    # -- in the training's thread --------------------------------------------------------------------------------

    def mark(self, kind: int, number: int) -> None:
        """A mark was written. Never raises."""
        if self._has_failed:
            return
        try:
            if kind == PHASE_END:
                if self._left <= 1 and number in _PHASES:
                    self._levels[_PHASES[number]] = _summary.counters(self._used).get("allocated_bytes", 0)
            elif kind == STEP_END:
                self._step, self._left = number, self._left - 1
                if self._left <= 0:
                    self._left = self._every
                    self._log({})
            elif kind in (EPOCH_END, EPOCH_ENDED):
                self._used.clear()
                self._log({"epoch": number})
                self._ask()
        except Exception as error:
            self._failed(error)

    def _log(self, more: dict[str, Any]) -> None:
        values = {**_summary.counters(self._used), **self._levels, **self._of_daemon, "step": self._step, **more}
        self._levels = {}
        values = {f"{self._prefix}{name}": value for name, value in values.items() if type(value) in (int, float)}
        if not self._tracker.may_wait:
            self._tracker.numbers(values, self._step)
        elif self._queue.qsize() < WAITING_MAX:
            self._queue.put((values, self._step))
        self._start()

    def _ask(self) -> None:
        self._start()
        self._queue.put(None)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._is_over = False
            self._thread = threading.Thread(target=self._run, name="memctl-tracker", daemon=True)
            self._thread.start()

    def _failed(self, error: Exception) -> None:
        if not self._has_failed and not self._is_ending:
            self._has_failed = True
            say(f"{self._tracker.name} gets no further values: {type(error).__name__}: {error}")

    def prepare_end(self) -> None:
        """The session is about to end, and writes its last marks. The tracker may have ended before, as trackers do
        when the process ends, so its errors are not reported."""
        self._is_ending = True

    def end(self) -> None:
        """The session has ended. Calls that wait for a server get `END_S` at most."""
        self._is_ending = False
        thread, self._thread = self._thread, None
        if thread is None or thread is threading.current_thread():
            return
        self._is_over = True
        # (This wakes the thread. It takes what is in the queue before it ends.)
        self._queue.put(({}, -1))
        if self._tracker.may_wait:
            thread.join(END_S)

    # -- in memctl's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        asked_at, is_asked = time.monotonic() - self._verdict_s, False
        while not self._has_failed:
            try:
                item = self._queue.get(timeout=self._verdict_s)
            except queue.Empty:
                item = None
            if item is None:
                is_asked = True
            elif item[0]:
                self._pass(self._tracker.numbers, *item)
            if self._is_over and self._queue.empty():
                return
            now = time.monotonic()
            if is_asked and not self._is_over and now - asked_at >= self._verdict_s:
                asked_at, is_asked = now, False
                self._look()

    def _look(self) -> None:
        _command.settle(SETTLE_S)
        found = _summary.of_daemon(ASK_S)
        self._of_daemon = {name: found[name] for name in _OF_DAEMON if found.get(name) is not None}
        texts = {name: str(found[name]) for name in _TEXTS if found.get(name) is not None}
        changed = {f"{self._prefix}{name}": text for name, text in texts.items() if self._texts.get(name) != text}
        self._texts.update(texts)
        if changed:
            self._pass(self._tracker.texts, changed, self._step)

    def _pass(self, call: Callable[[Values, int], object], values: Values, step: int) -> None:
        try:
            call(values, step)
        except Exception as error:
            self._failed(error)


def log_to(target: Any, every_steps: int, verdict_s: float, prefix: str) -> bool:
    """Begins to log; see `memctl_agent.log_to`."""
    tracker = tracker_of(target)
    if tracker is None:
        say(
            "log_to() takes a run of Weights & Biases, the module mlflow, a SummaryWriter of TensorBoard, or a "
            f"function of values and a step; this is a {type(target).__name__}"
        )
        return False
    if SESSION.state == OFF:
        say(f"{tracker.name} gets values when the recording has begun: call memctl_agent.attach()")
    SESSION.logs.append(Log(tracker, every_steps, verdict_s, prefix))
    return True
