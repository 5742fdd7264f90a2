"""The wrappers and hooks through which `_loop` and `_annotations` follow torch.

Guarantees: a wrapper calls the wrapped function exactly once, with its arguments. Result and exception pass unchanged.
memctl's own faults never raise into the program. A wrapper has the name, signature, pickle form and globals of the
wrapped function. TorchScript needs this, because it compiles `record_function` from source and looks up names in the
globals. Under `torch.compile` the wrappers have no effect. `remove` restores the originals. If other code has wrapped a
wrapper meanwhile, the wrapper stays and only passes calls on.
There are no hooks on modules, because they would slow every call.
"""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any, Callable, Optional

from memctl_agent._annotations import Annotations
from memctl_agent._book import Book
from memctl_agent._loop import Loop

# After this many faults of memctl itself, the hooks are disabled for the rest of the session.
FAULTS_MAX = 16


def _nothing() -> None:
    """Does nothing."""


class Hub:
    """The common state of the wrappers, and the switch that disables all of them at once."""

    __slots__ = ("annotations", "book", "faults", "last_fault", "limit_set", "look", "loop", "training_depth")

    def __init__(self, book: Book, loop: Loop, annotations: Annotations) -> None:
        self.book = book
        self.loop: Optional[Loop] = loop
        self.annotations: Optional[Annotations] = annotations
        self.training_depth = 0
        # Looks for libraries that were imported meanwhile (see `_requests`).
        self.look: Callable[[], None] = _nothing
        # Runs after the program has set a limit on its allocator, with the device that it named (see `_limit`).
        self.limit_set: Callable[[Any], None] = lambda device: None
        self.faults = 0
        self.last_fault: Optional[str] = None

    def failed(self, fault: Exception) -> None:
        """Records a fault of memctl itself. The training continues, and `status()` reports the fault."""
        self.faults += 1
        self.last_fault = f"{type(fault).__name__}: {fault}"
        if self.faults >= FAULTS_MAX:
            self.silence()

    def silence(self) -> None:
        """Disables the wrappers. From now on they only pass calls on."""
        self.loop = self.annotations = None


class Hooks:
    """All installed hooks, so that they can be removed."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._patches: list[tuple[Any, str, Any, Any]] = []
        self._handles: list[Any] = []

    def install(self, torch: Any) -> None:
        """Installs the hooks in torch. Functions that a version of torch lacks are not hooked."""
        is_compiling = torch.compiler.is_compiling
        hub = self.hub
        # `torch.optim` deletes the name of this module from its namespace, so it is imported by its full name.
        optimizer = importlib.import_module("torch.optim.optimizer")
        self._handles.append(optimizer.register_optimizer_step_pre_hook(_pre_step(hub, is_compiling)))
        self._handles.append(optimizer.register_optimizer_step_post_hook(_post_step(hub, is_compiling)))
        self._patch(torch.autograd, "backward", lambda original: _backward(original, hub, is_compiling))
        self._patch(torch.nn.Module, "train", lambda original: _train(original, hub, is_compiling))
        annotation = torch.autograd.profiler.record_function
        self._patch(annotation, "__enter__", lambda original: _enter(original, hub))
        self._patch(annotation, "__exit__", lambda original: _exit(original, hub))
        data = torch.utils.data
        self._patch(data.DataLoader, "__iter__", lambda original: _iterate(original, hub, torch))
        iterator = getattr(data.dataloader, "_BaseDataLoaderIter", None)
        if iterator is not None:
            self._patch(iterator, "__next__", lambda original: _next(original, hub))
        self._install_notes(torch)
        # `_requests` imports this module, so it is imported here and not at the top.
        requests = importlib.import_module("memctl_agent._requests")
        hub.look = requests.Requests(hub, self._patch, is_compiling).look
        hub.look()

    def _install_notes(self, torch: Any) -> None:
        hub = self.hub
        places = [torch.cuda, torch.cuda.memory]
        accelerator = getattr(torch, "accelerator", None)
        places += [place for place in (accelerator, getattr(accelerator, "memory", None)) if place is not None]
        for name in ("empty_cache", "reset_peak_memory_stats", "set_per_process_memory_fraction"):
            made: dict[int, Any] = {}
            for place in places:
                self._patch(place, name, functools.partial(_note_once, hub=hub, name=name, made=made))
        self._patch(torch.cuda.memory, "_set_allocator_settings", lambda original: _noted(original, hub, "settings"))
        self._patch(torch._C, "_accelerator_setAllocatorSettings", lambda original: _noted(original, hub, "settings"))

    def _patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner).get(name)
        if original is None or not callable(original):
            return
        wrapper = make(original)
        setattr(owner, name, wrapper)
        self._patches.append((owner, name, original, wrapper))

    def remove(self) -> None:
        """Removes the hooks from torch."""
        self.hub.silence()
        for handle in self._handles:
            handle.remove()
        for owner, name, original, wrapper in reversed(self._patches):
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)
        self._handles.clear()
        self._patches.clear()


def like(original: Callable[..., Any], wrapper: types.FunctionType) -> Callable[..., Any]:
    """The wrapper with the original's name, signature and globals. All names that the wrapper uses must be in its
    closure."""
    if isinstance(original, types.FunctionType):
        wrapper = types.FunctionType(
            wrapper.__code__, original.__globals__, original.__name__, wrapper.__defaults__, wrapper.__closure__
        )
    functools.update_wrapper(wrapper, original)
    return wrapper


def _pre_step(hub: Hub, is_compiling: Callable[[], bool]) -> Callable[..., None]:
    def memctl_pre_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        loop = hub.loop
        if loop is not None:
            try:
                # The first argument is the optimizer. A closure is the second.
                has_closure = (len(args) > 1 and args[1] is not None) or kwargs.get("closure") is not None
                loop.optimizer_begins(optimizer, has_closure)
            except Exception as fault:
                hub.failed(fault)

    return memctl_pre_step


def _post_step(hub: Hub, is_compiling: Callable[[], bool]) -> Callable[..., None]:
    def memctl_post_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        loop = hub.loop
        if loop is not None:
            try:
                loop.optimizer_ends(optimizer)
            except Exception as fault:
                hub.failed(fault)

    return memctl_post_step


def _backward(original: Any, hub: Hub, is_compiling: Callable[[], bool]) -> Any:
    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        loop = hub.loop
        outermost = False
        if loop is not None:
            try:
                outermost = loop.backward_begins()
            except Exception as fault:
                hub.failed(fault)
        if not outermost or loop is None:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            try:
                loop.backward_ends()
            except Exception as fault:
                hub.failed(fault)

    return like(original, backward)  # type: ignore[arg-type]


def _train(original: Any, hub: Hub, is_compiling: Callable[[], bool]) -> Any:
    def train(self: Any, mode: bool = True) -> Any:
        # `train` also calls this wrapper for the children of a module. These calls are passed on directly.
        if hub.training_depth or hub.loop is None or is_compiling():
            return original(self, mode)
        hub.training_depth = 1
        try:
            result = original(self, mode)
        finally:
            hub.training_depth = 0
        loop = hub.loop
        if loop is not None:
            try:
                hub.look()
                loop.module_mode(self, bool(mode))
            except Exception as fault:
                hub.failed(fault)
        return result

    return like(original, train)  # type: ignore[arg-type]


def _enter(original: Any, hub: Hub) -> Any:
    def __enter__(self: Any) -> Any:
        result = original(self)
        annotations = hub.annotations
        if annotations is not None:
            try:
                annotations.enter(self)
            except Exception as fault:
                hub.failed(fault)
        return result

    return like(original, __enter__)  # type: ignore[arg-type]


def _exit(original: Any, hub: Hub) -> Any:
    def __exit__(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
        annotations = hub.annotations
        if annotations is not None:
            try:
                annotations.exit(self, exc_type is not None)
            except Exception as fault:
                hub.failed(fault)
        return original(self, exc_type, exc_value, traceback)

    return like(original, __exit__)  # type: ignore[arg-type]


def _iterate(original: Any, hub: Hub, torch: Any) -> Any:
    is_grad_enabled, is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled

    def __iter__(self: Any) -> Any:
        loop = hub.loop
        heard = False
        if loop is not None:
            try:
                heard = loop.loader_begins(self, is_grad_enabled() and not is_inference())
            except Exception as fault:
                hub.failed(fault)
        result = original(self)
        if heard and loop is not None:
            try:
                loop.loader_iterates(result)
            except Exception as fault:
                hub.failed(fault)
        return result

    return like(original, __iter__)  # type: ignore[arg-type]


def _next(original: Any, hub: Hub) -> Any:
    def __next__(self: Any) -> Any:
        loop = hub.loop
        if loop is None:
            return original(self)
        try:
            result = original(self)
        except StopIteration:
            try:
                loop.batch(self, True)
            except Exception as fault:
                hub.failed(fault)
            raise
        try:
            loop.batch(self, False)
        except Exception as fault:
            hub.failed(fault)
        return result

    return like(original, __next__)  # type: ignore[arg-type]


def _note_once(original: Any, *, hub: Hub, name: str, made: dict[int, Any]) -> Any:
    """Makes one wrapper per function, even if the function has several names."""
    if id(original) not in made:
        made[id(original)] = _noted(original, hub, name)
    return made[id(original)]


def _noted(original: Any, hub: Hub, what: str) -> Any:
    text_of, sets_limit = note_text, what == "set_per_process_memory_fraction"

    def noted(*args: Any, **kwargs: Any) -> Any:
        if hub.loop is not None:
            try:
                hub.book.note(text_of(what, args, kwargs))
            except Exception as fault:
                hub.failed(fault)
        result = original(*args, **kwargs)
        if sets_limit and hub.loop is not None:
            hub.limit_set(args[1] if len(args) > 1 else kwargs.get("device"))
        return result

    return like(original, noted)  # type: ignore[arg-type]


def note_text(what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The text of a note, such as `empty_cache` or `allocator settings: max_split_size_mb:64`. It contains only short
    plain values."""
    values = [*args, *kwargs.values()]
    shown = ", ".join(str(value)[:120] for value in values if isinstance(value, (str, int, float)))
    if what == "settings":
        return f"allocator settings: {shown}"
    return f"{what}({shown})" if shown else what
