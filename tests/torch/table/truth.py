"""What is true of each job of the table: what its memory does, where it was allocated, and what holds it.

Nothing here was taken from memctl: it follows from the programs, and PyTorch's own counters have to agree
(`assess.proved`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional


class Course(enum.Enum):
    """The course of retained memory over a run."""

    LEAK = "leak"
    BOUNDED = "bounded"
    LEVELS_OFF = "levels off"
    RELEASED = "released"
    STEADY = "steady"


class HeldBy(enum.Enum):
    """Where the holder of the memory is visible."""

    PYTHON = "python"
    CPP = "cpp"  # PyTorch's own objects, which Python cannot look into
    HOST = "host"  # no device block is held


Words = tuple[str, ...]


@dataclass(frozen=True)
class Truth:
    """One job. `holder`: each entry has words that, all together, name the holder; any entry will do."""

    name: str
    program: str
    course: Course
    epochs: bool
    functions: Words
    holder: tuple[Words, ...]
    held_by: HeldBy = HeldBy.PYTHON
    process: str = "main"
    bound_mib: Optional[int] = None
    quick: bool = False

    @property
    def memory(self) -> str:
        """The place of growth in the notation of a verdict."""
        return "host" if self.held_by is HeldBy.HOST else "device"


def _training_leak(name: str, functions: Words, *holder: Words, **more: object) -> Truth:
    return Truth(name, "training_leaks", Course.LEAK, True, functions, holder, **more)  # type: ignore[arg-type]


def _serving_leak(name: str, functions: Words, *holder: Words, **more: object) -> Truth:
    return Truth(name, "serving_leaks", Course.LEAK, False, functions, holder, **more)  # type: ignore[arg-type]


def _bounded(name: str, epochs: bool, functions: Words, *holder: Words, **more: object) -> Truth:
    return Truth(name, "bounded", Course.BOUNDED, epochs, functions, holder, **more)  # type: ignore[arg-type]


def _levels(name: str, epochs: bool, functions: Words, **more: object) -> Truth:
    return Truth(name, "levels", Course.LEVELS_OFF, epochs, functions, (), **more)  # type: ignore[arg-type]


def _released(name: str, epochs: bool, functions: Words, *holder: Words, **more: object) -> Truth:
    return Truth(name, "releases", Course.RELEASED, epochs, functions, holder, **more)  # type: ignore[arg-type]


JOBS: tuple[Truth, ...] = (
    _training_leak("validation_outputs", ("forward", "validate"), ("`OUTPUTS`",), quick=True),
    _training_leak("features_by_step", ("forward",), ("`features`",)),
    _training_leak("metric_window", ("update",), ("`window`",)),
    _training_leak("collector_off", ("forward", "__init__"), ("cycle", "collector"), quick=True),
    _training_leak("forward_hook", ("forward",), ("`seen`",), ("forward hook",)),
    _training_leak("tensor_hooks", ("importance", "weigh"), ("`scale`",), ("hook",)),
    _training_leak("summed_loss", ("forward", "evaluate"), ("`total`",), ("`average`",), ("`Average`",)),
    _training_leak("old_schedules", ("train_step",), ("`schedules`",), ("`AdamW`",), ("optimizer",)),
    _training_leak("growing_buffer", ("remember",), ("buffer", "`seen`"), quick=True),
    _training_leak("smoothed_loss", (), ("`value`",), ("`smoothed`",), held_by=HeldBy.HOST),
    _serving_leak("cached_embeddings", ("forward", "embedding"), ("lru_cache",), ("`embedding`",), quick=True),
    _serving_leak("autocast_left_on", ("forward", "answer_of", "__init__"), ("autocast",), held_by=HeldBy.CPP),
    _serving_leak("tee_of_frames", ("frames",), ("tee",), ("`preview`",)),
    _serving_leak("unread_results", ("forward", "answer"), ("`results`",), ("Queue",)),
    _serving_leak("waiting_threads", ("forward", "deliver"), ("`hidden`",), ("`deliver`",)),
    _serving_leak("kept_exceptions", ("forward", "checked"), ("`failures`",), ("`Refused`",), quick=True),
    _serving_leak("suspended_generators", ("forward", "stream"), ("`STREAMS`",), ("`stream`",), ("`memory`",)),
    _serving_leak("second_order", ("curvature", "fitted"), ("create_graph",), ("autograd",), held_by=HeldBy.CPP),
    _serving_leak("prompt_cache", ("extended", "forward"), ("`keys`",), ("`values`",), ("`Past`",), ("`prompt`",)),
    _serving_leak("one_of_two_workers", ("forward", "work"), ("`answered`",), process="worker 1"),
    _bounded("memory_bank", True, ("forward",), ("`entries`",)),
    _bounded("biases_by_shape", True, ("bias_of",), ("`biases`",)),
    _bounded("lru_of_features", True, ("forward", "features"), ("`_data`",), ("`LRUCache`",)),
    _bounded("logged_scores", True, ("logged_scores",), ("Queue",), ("`logged`",), bound_mib=166),
    _bounded("prepared_images", True, ("__getitem__",), ("`prepared`",)),
    _bounded("recent_frames", False, ("recent_frames",), ("deque",), ("`recent`",), bound_mib=169, quick=True),
    _bounded("cached_lately", False, ("forward", "embedding"), ("lru_cache",), ("`embedding`",), bound_mib=95),
    _bounded("states_of_sessions", False, ("forward", "turn"), ("`states`",), quick=True),
    _bounded("sliding_window", False, ("extended",), ("`keys`",), ("`values`",), ("`Window`",)),
    _bounded("ring_of_outputs", False, ("forward", "ring_of_outputs"), ("`places`",)),
    _levels("unfreezing", True, ("train_step", "forward")),
    _levels("late_averages", True, ("late_averages",)),
    _levels("curriculum", True, ("forward",)),
    _levels("cameras_come", False, ("frame",), quick=True),
    _levels("lazy_masks", False, ("forward",)),
    _released("metric_states", True, ("forward", "train_step"), ("`scores`",)),
    _released("carried_state", True, ("forward",), quick=True),
    _released("tasks_of_a_step", False, ("task",), ("`gradients`",)),
    _released("predictions", False, ("forward", "evaluation"), ("`scores`",)),
    _released("caches_of_requests", False, ("generate",), ("`keys`",), ("`values`",), quick=True),
)


def _more(name: str, course: Course, epochs: bool, functions: Words, *holder: Words) -> Truth:
    return Truth(name, "more", course, epochs, functions, holder)


# In addition to the forty, for work on verdicts and holders: run by hand, not counted.
MORE: tuple[Truth, ...] = (
    _more("closure", Course.LEAK, False, ("forward", "features"), ("`history`",)),
    _more("default_argument", Course.LEAK, False, ("forward", "features"), ("`seen`",), ("default", "`smoothed`")),
    _more("finalizers", Course.LEAK, False, ("forward", "features"), ("finalize",), ("`state`", "`Session`")),
    _more("context_variable", Course.LEAK, False, ("forward", "features"), ("`TRACE`",), ("context",)),
    _more("buffered_log", Course.LEAK, True, ("forward", "train_step"), ("`buffer`",), ("`MemoryHandler`",)),
    _more("collector_thresholds", Course.LEAK, False, ("forward", "features"), ("cycle", "threshold")),
    _more("cached_method", Course.LEAK, False, ("load", "__init__"), ("lru_cache",), ("`anchors`",)),
    _more("library_cache", Course.LEAK, False, ("turn",), ("`DynamicCache`",), ("`DynamicLayer`",), ("`stored`",)),
    _more("unfinished_tasks", Course.LEAK, False, ("forward", "features"), ("`waiting`",), ("`answer`",), ("Task",)),
    _more("thread_local", Course.LEAK, False, ("forward", "features"), ("`answers`",)),
    _more("bursts", Course.RELEASED, False, ("forward", "features"), ("`answers`",)),
    _more("lengths_that_differ", Course.STEADY, True, ()),
    _more("notebook", Course.STEADY, False, ()),
)

BY_NAME = {truth.name: truth for truth in (*JOBS, *MORE)}
