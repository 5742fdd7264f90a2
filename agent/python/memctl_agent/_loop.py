"""Infers the epochs, steps and phases of a training loop from calls into torch.

The rules:
- The first optimizer leads. Each return of its `step()` ends a step. A new optimizer for the same parameters replaces
  it.
- The data loader that is iterated while the leading optimizer steps leads the epochs. Each new iteration of this loader
  begins an epoch, if something was trained since the previous epoch began.
- A step begins with its batch, if a loader delivers one. Its forward phase lasts until its backward pass.
- Evaluation begins with `model.eval()` of the trained model, or when a loader is iterated while gradients are disabled.
  It lasts until training is seen again.

Guarantees: this module does not import torch and takes no lock. Its references keep no model, loader or optimizer
alive. It observes only the training thread. Its marks have the lowest rank in the book.

(Over 400 lines: the rules share one small state, and each half would need all of it.)
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Optional

from memctl_agent._book import AUTO, BACKWARD, EVAL, FORWARD, OPTIMIZER, TRAIN, Book

# If the leader does not step, another optimizer leads after this many steps of its own.
OVERTAKE_STEPS = 8
# Maximum number of optimizers that are remembered as known.
MET_MAX = 8
# Maximum number of modules for which it is remembered whether they are the trained one. If there are more, all are
# forgotten.
MODULES_MAX = 256

Weak = Callable[[], Any]


def _nothing() -> None:
    """A weak reference to nothing."""


def weak(thing: object) -> Weak:
    """A weak reference; a reference to nothing if the object cannot be weakly referenced."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return _nothing


def first_parameter(optimizer: object) -> Optional[object]:
    """The first parameter of an optimizer, which identifies what it trains."""
    try:
        return optimizer.param_groups[0]["params"][0]  # type: ignore[attr-defined]
    except (AttributeError, IndexError, KeyError, TypeError):
        return None


class Loop:
    """The state of the training loop in one session."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._thread: Optional[int] = None
        # Optimizers: the leader, those whose `step()` is running, and the one that may become the leader.
        self._leader: Weak = _nothing
        self._has_led = False
        self._stepping: list[Weak] = []
        self._rival: Weak = _nothing
        self._rival_steps = self._rival_missed = 0
        self._met: list[Weak] = []
        self._in_backward = self._in_request = False
        self._step_is_over = False
        # Loaders: the leader, and the loader that is being iterated with its state.
        self._loader: Weak = _nothing
        self._loader_steps = 0
        self._current: Weak = _nothing
        self._current_steps = 0
        self._current_trains = False
        self._iterator: Weak = _nothing
        self._batches_since_step = 0
        self._batches = 0
        self._exhausted = self._waited_at_end = False
        self._prefetches = False
        # Whether the next step begins with the next batch or backward pass.
        self._awaits_step = True
        # Whether the observed calls show evaluation. The book may state otherwise, from a higher source.
        self._evaluates = False
        self._trains_in_eval = False
        self._root: Weak = _nothing
        self._owned: dict[int, tuple[Weak, bool]] = {}
        self._owner_known = False

    def _is_other_thread(self) -> bool:
        return self._thread is not None and self._thread != threading.get_ident()

    # -- optimizers ----------------------------------------------------------------------------------------

    def optimizer_begins(self, optimizer: object, has_closure: bool) -> None:
        """`optimizer.step()` was entered. If it has a closure, it computes gradients first."""
        if self._is_other_thread() and not self._in_backward:
            return
        for place, entered in enumerate(self._stepping):
            # The optimizer's `step()` is already running, so the previous call ended with an exception.
            if entered() is optimizer:
                del self._stepping[place:]
                break
        self._stepping.append(weak(optimizer))
        if len(self._stepping) > 1:
            return
        if not self._has_led:
            self._has_led, self._leader = True, weak(optimizer)
            if self._thread is None:
                self._thread = threading.get_ident()
            self._met = [self._leader]
        if self._in_backward:
            return
        self._trains()
        self._begin_awaited_step()
        if not has_closure:
            self._book.part_begin(OPTIMIZER, AUTO)

    def optimizer_ends(self, optimizer: object) -> None:
        """`optimizer.step()` has returned."""
        for place, entered in enumerate(self._stepping):
            if entered() is optimizer:
                del self._stepping[place:]
                break
        else:
            return
        if self._stepping:
            return
        self._book.worked()
        if not self._in_backward:
            self._book.part_end(OPTIMIZER, AUTO)
        if not self._leads(optimizer):
            # The leader's step ended before. The state of an epoch's end has this optimizer's gradients as well.
            self._book.settled()
            return
        if self._in_backward:
            # The optimizer steps in hooks of gradients, so the step ends with the backward pass.
            self._step_is_over = True
        else:
            self._end_step()

    def optimizer_failed(self) -> None:
        """`optimizer.step()` ended with an exception."""
        if not self._is_other_thread():
            self._stepping.clear()
            self._book.part_end(OPTIMIZER, AUTO)

    def _leads(self, optimizer: object) -> bool:
        """Whether this optimizer leads. If the leader no longer exists or no longer steps, another optimizer replaces
        it."""
        leader = self._leader()
        if leader is optimizer:
            self._rival, self._rival_steps, self._rival_missed = _nothing, 0, 0
            return True
        if leader is not None and not self._overtakes(leader, optimizer):
            return False
        self._leader, self._rival, self._rival_steps = weak(optimizer), _nothing, 0
        self._owned.clear()
        self._owner_known = False
        return True

    def _overtakes(self, leader: object, optimizer: object) -> bool:
        """Whether this optimizer replaces the leader. It does if it is new and has the leader's parameters, or if the
        leader no longer steps."""
        if not any(known() is optimizer for known in self._met):
            self._met = [known for known in self._met[-MET_MAX:] if known() is not None] + [weak(optimizer)]
            if first_parameter(optimizer) is not None and first_parameter(optimizer) is first_parameter(leader):
                return True
        if self._rival() is not optimizer:
            self._rival_missed += 1
            if self._rival() is not None and self._rival_missed < OVERTAKE_STEPS:
                return False
            self._rival, self._rival_steps = weak(optimizer), 0
        self._rival_missed = 0
        self._rival_steps += 1
        return self._rival_steps >= OVERTAKE_STEPS

    def _end_step(self) -> None:
        """Ends a step, because the leader has stepped. The next step begins now, or with its batch."""
        book = self._book
        book.step_end(AUTO)
        self._count_step_for_loaders()
        # When a loader is exhausted, it is unknown whether the next step has a batch. The first time, the step waits
        # for a batch.
        at_end = self._exhausted and not self._waited_at_end
        self._waited_at_end = self._exhausted
        self._awaits_step = self._batches_since_step > 0 or at_end
        self._batches_since_step = 0
        if not self._awaits_step:
            self._begin_step()

    def _begin_step(self) -> None:
        self._awaits_step = False
        self._book.step_begin(None, AUTO)
        self._book.part_begin(FORWARD, AUTO)

    def _begin_awaited_step(self) -> None:
        """A computation began before the expected batch, so the awaited step begins now."""
        if not self._awaits_step:
            return
        if self._exhausted and not self._waited_at_end:
            # The loader was exhausted before its last batch was trained on. So the loop reads one batch ahead.
            self._prefetches = True
        self._awaits_step = False
        self._book.step_begin(None, AUTO)

    # -- backward ------------------------------------------------------------------------------------------

    def backward_begins(self) -> bool:
        """`backward()` was entered. Returns whether this is the outermost call. Its end must be reported."""
        if self._in_backward or self._is_other_thread():
            return False
        if self._thread is None:
            self._thread = threading.get_ident()
        self._in_backward = True
        self._look_at_root()
        if not self._evaluates:
            self._trains()
            self._begin_awaited_step()
        self._book.worked()
        self._book.part_begin(BACKWARD, AUTO)
        return True

    def backward_ends(self) -> None:
        """The outermost `backward()` has returned, or it ended with an exception."""
        self._in_backward = False
        self._book.part_end(BACKWARD, AUTO)
        if self._stepping:
            # The closure has computed the gradients. The rest of `step()` is the optimizer's own work.
            self._book.part_begin(OPTIMIZER, AUTO)
        if self._step_is_over:
            self._step_is_over = False
            self._end_step()

    def forward_begins(self) -> None:
        """The forward pass of the trained model has begun. The annotation of the model's wrapper
        (`DistributedDataParallel`) shows this."""
        if self._is_other_thread() or self._evaluates or self._in_backward:
            return
        if self._awaits_step and not self._exhausted:
            self._begin_step()
        elif self._book.part is None and self._book.step is not None:
            self._book.part_begin(FORWARD, AUTO)

    # -- requests ------------------------------------------------------------------------------------------

    def request_begins(self) -> bool:
        """A request has begun, and no optimizer has stepped so far. Returns whether this is the outermost call. Its end
        must be reported."""
        if self._has_led or self._in_backward or self._in_request or self._is_other_thread():
            return False
        if self._thread is None:
            self._thread = threading.get_ident()
        self._in_request = True
        self._book.step_begin(None, AUTO)
        return True

    def request_ends(self) -> None:
        """The request has ended, normally or with an exception."""
        self._in_request = False
        if not self._has_led:
            self._book.step_end(AUTO)

    # -- loaders -------------------------------------------------------------------------------------------

    def loader_begins(self, loader: object, grad: bool) -> bool:
        """The program requests an iterator of a loader. Returns whether this iterator must be passed to
        `loader_iterates`."""
        if self._is_other_thread():
            return False
        self._look_at_root()
        if not grad:
            self._evaluation()
            return False
        abandoned = self._was_abandoned(loader)
        if self._evaluates and self._loader_steps and loader is self._loader():
            # Some trainers call `train()` only after the first batch.
            self._training()
        if not self._evaluates:
            self._lead_epochs(loader, abandoned)
        # The loader is recorded in evaluation mode as well. If an optimizer steps then, it is training.
        self._current, self._current_trains, self._current_steps = weak(loader), not self._evaluates, 0
        return True

    def loader_iterates(self, iterator: object) -> None:
        """Takes the requested iterator."""
        self._iterator = weak(iterator)
        self._batches = 0
        self._exhausted = self._waited_at_end = False

    def _was_abandoned(self, loader: object) -> bool:
        """Whether the last iteration of this loader stopped after its first batch, although it has several.

        A program that calls `next(iter(loader))` in every step draws samples. It does not begin an epoch.
        """
        if self._current() is not loader or self._exhausted or self._batches != 1:
            return False
        try:
            return len(loader) > 1  # type: ignore[arg-type]
        except Exception:
            # The loader's length is unknown.
            return True

    def _lead_epochs(self, loader: object, abandoned: bool) -> None:
        leader = self._loader()
        if leader is None:
            self._loader, self._loader_steps = weak(loader), 0
        elif leader is not loader:
            # A whole iteration of this loader was trained on before, and the leader was not iterated since. So this
            # loader becomes the leader.
            if self._current() is not loader or self._current_steps == 0:
                return
            self._loader, self._loader_steps = weak(loader), 0
        if self._book.epoch_worked and not abandoned:
            self._book.epoch_begin(self._book.next_epoch, AUTO)

    def _count_step_for_loaders(self) -> None:
        current = self._current()
        if current is None:
            return
        self._current_steps += 1
        if current is self._loader():
            self._loader_steps += 1
        elif self._loader_steps == 0:
            # Training used only this loader so far.
            self._loader, self._loader_steps = self._current, 1

    def batch(self, iterator: object, exhausted: bool) -> None:
        """An iterator of a loader has returned a batch, or is exhausted."""
        is_own = self._iterator() is iterator
        if exhausted and (self._evaluates or is_own) and not self._is_other_thread():
            # The variables of the last step's functions are freed, and the memory that an evaluation keeps is live. If
            # the program ends next, this is the state of its last epoch.
            self._book.settled()
        if not is_own or self._is_other_thread():
            return
        self._exhausted = exhausted
        if not exhausted:
            self._batches += 1
            self._batches_since_step += 1
            # If a program draws only single batches, it has no epochs.
            self._book.has_epochs |= self._batches > 1 and not self._evaluates
        if self._evaluates or (exhausted and not self._prefetches):
            return
        if self._awaits_step:
            if not (exhausted and self._batches_since_step):
                self._ensure_train()
                self._begin_step()
        elif self._book.part is None and self._book.step is not None and not exhausted:
            # This is a further batch of a step that accumulates gradients.
            self._book.part_begin(FORWARD, AUTO)

    # -- training and evaluation -----------------------------------------------------------------------------

    def module_mode(self, module: Any, training: bool) -> None:
        """`module.train()` or `module.eval()` was called. The nested calls for its children are not reported."""
        if self._trains_in_eval or self._is_other_thread() or not self._is_trained(module, training):
            return
        self._root = weak(module)
        if training:
            self._training()
        else:
            self._evaluation()

    def _is_trained(self, module: Any, training: bool) -> bool:
        """Whether a module is the trained one, which has the parameters of the leading optimizer.

        Before the first step, and with optimizers that hold copies of the parameters (sharded optimizers), no such
        module is known. Then the trained module is the one that was last put into training mode. A module without
        trainable parameters, such as a frozen teacher, is not the trained one.
        """
        known = self._owned.get(id(module))
        owns = known[1] if known is not None and known[0]() is module else self._owns(module)
        if owns:
            self._owner_known = True
        if owns or self._owner_known:
            return owns
        root = self._root()
        if training or root is None:
            return any(parameter.requires_grad for parameter in module.parameters())
        return module is root

    def _owns(self, module: Any) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        trained = [parameter for group in leader.param_groups for parameter in group["params"]]
        # The module must have the first and the last parameter. A part of the model is not enough: programs put a
        # backbone into evaluation mode to freeze its statistics.
        ends = {id(parameter) for parameter in (trained[:1] + trained[-1:])}
        owns = bool(ends) and ends <= {id(parameter) for parameter in module.parameters()}
        if len(self._owned) >= MODULES_MAX:
            self._owned.clear()
        self._owned[id(module)] = (weak(module), owns)
        return owns

    def _look_at_root(self) -> None:
        """Reads the module's `training` flag, because some frameworks restore it without a call of `train()`."""
        root = self._root()
        if root is None or self._trains_in_eval:
            return
        if root.training and self._evaluates:
            self._training()
        elif not root.training and not self._evaluates:
            self._evaluation()

    def _evaluation(self) -> None:
        if self._evaluates:
            return
        self._evaluates = True
        self._book.part_end(FORWARD, AUTO)
        self._book.mode_begin(EVAL, AUTO)

    def _training(self) -> None:
        """Training begins or continues."""
        evaluated, self._evaluates = self._evaluates, False
        self._ensure_train()
        if evaluated and not self._awaits_step and self._book.step is not None:
            self._book.step_again()
            self._book.part_begin(FORWARD, AUTO)

    def _ensure_train(self) -> None:
        if self._book.mode is None or self._book.mode[0] != TRAIN:
            self._book.mode_begin(TRAIN, AUTO)

    def _trains(self) -> None:
        """An optimizer steps, or gradients are computed. So this is training, regardless of the flags."""
        if self._evaluates:
            root = self._root()
            if root is not None and not root.training:
                # The model is trained in evaluation mode (with frozen statistics), so its flag has no meaning.
                self._trains_in_eval = True
            self._evaluates = False
        self._ensure_train()
