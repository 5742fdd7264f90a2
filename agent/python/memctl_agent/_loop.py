"""Infers the epochs, steps and phases of a training loop from calls into torch.

These are the rules. The first optimizer leads: each call of its `step()` ends a step. An optimizer that is newly
created for the same parameters replaces it. The data loader in whose iteration the leading optimizer steps leads the
epochs. Each new iteration of it begins an epoch, if anything was trained since the last one. The forward phase lasts
from the begin of a step to its backward pass. A step begins with its batch, if a loader delivers one. Evaluation begins
with `model.eval()` of the trained model or with loading while gradients are disabled. It lasts until training is seen
again.
Guarantees: this module does not import torch and takes no lock. It has no reference that keeps a model, loader or
optimizer alive. It observes only the training thread. Its guesses have the lowest rank in the book.

(Over 400 lines: the rules share one small state, and each half would need all of it.)
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Optional

from memctl_agent._book import AUTO, BACKWARD, EVAL, FORWARD, OPTIMIZER, TRAIN, Book

# An optimizer takes over after this many steps while the leader does not step.
OVERTAKE_STEPS = 8
# Maximum number of optimizers that are remembered because they have stepped.
MET_MAX = 8
# Maximum number of modules whose ownership is remembered. Beyond this the memory is cleared.
MODULES_MAX = 256

Weak = Callable[[], Any]


def _nothing() -> None:
    """A dead reference."""


def weak(thing: object) -> Weak:
    """A weak reference, or a dead one if the object cannot be weakly referenced."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return _nothing


def first_parameter(optimizer: object) -> Optional[object]:
    """Identifies what an optimizer trains, by its first parameter."""
    try:
        return optimizer.param_groups[0]["params"][0]  # type: ignore[attr-defined]
    except (AttributeError, IndexError, KeyError, TypeError):
        return None


class Loop:
    """State of the loop of one session."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._thread: Optional[int] = None
        # Optimizers: the leader, the ones that are inside step() now, and candidates to take over.
        self._leader: Weak = _nothing
        self._has_led = False
        self._stepping: list[Weak] = []
        self._rival: Weak = _nothing
        self._rival_steps = self._rival_missed = 0
        self._met: list[Weak] = []
        self._in_backward = self._in_request = False
        self._step_is_over = False
        # Loaders: the leader, and the state of the one that is being iterated.
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
        # Whether the begin of the next step waits for a batch or a backward pass.
        self._awaits_step = True
        # Whether the observed calls show evaluation, regardless of the sources in the book.
        self._evaluates = False
        self._trains_in_eval = False
        self._root: Weak = _nothing
        self._owned: dict[int, tuple[Weak, bool]] = {}
        self._owner_known = False

    def _is_other_thread(self) -> bool:
        return self._thread is not None and self._thread != threading.get_ident()

    # -- optimizers ----------------------------------------------------------------------------------------

    def optimizer_begins(self, optimizer: object, has_closure: bool) -> None:
        """`optimizer.step()` was entered. With a closure it computes gradients first."""
        if self._is_other_thread() and not self._in_backward:
            return
        for place, entered in enumerate(self._stepping):
            # The optimizer is inside step() already, so the previous call ended with an exception.
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
        """`optimizer.step()` is done."""
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
            return
        if self._in_backward:
            # The optimizer steps in gradient hooks, so the step ends with the backward pass.
            self._step_is_over = True
        else:
            self._end_step()

    def optimizer_failed(self) -> None:
        """An exception left an optimizer's step."""
        if not self._is_other_thread():
            self._stepping.clear()
            self._book.part_end(OPTIMIZER, AUTO)

    def _leads(self, optimizer: object) -> bool:
        """Whether this optimizer leads. A leader that is gone or has stopped is replaced."""
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
        """Whether another optimizer takes over, because it was newly created for the leader's parameters or the leader
        stopped."""
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
        """The leader stepped. One step is over, and the next begins now or with its batch."""
        book = self._book
        book.step_end(AUTO)
        self._count_step_for_loaders()
        # At a loader's end it is unknown whether the next step has a batch. The first time, the step waits for one.
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
        """A computation came before the expected batch."""
        if not self._awaits_step:
            return
        if self._exhausted and not self._waited_at_end:
            # The loader was exhausted before its last batch was trained on, so it is read one batch ahead.
            self._prefetches = True
        self._awaits_step = False
        self._book.step_begin(None, AUTO)

    # -- backward ------------------------------------------------------------------------------------------

    def backward_begins(self) -> bool:
        """`backward()` was entered. Returns whether this is the outermost call, whose end must be reported."""
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
        """The outermost `backward()` is done, or an exception left it."""
        self._in_backward = False
        self._book.part_end(BACKWARD, AUTO)
        if self._stepping:
            # The closure's gradients are done. The rest of `step()` is the optimizer's own work.
            self._book.part_begin(OPTIMIZER, AUTO)
        if self._step_is_over:
            self._step_is_over = False
            self._end_step()

    def forward_begins(self) -> None:
        """The forward pass of the trained model was entered. The annotation of the model's wrapper shows that."""
        if self._is_other_thread() or self._evaluates or self._in_backward:
            return
        if self._awaits_step and not self._exhausted:
            self._begin_step()
        elif self._book.part is None and self._book.step is not None:
            self._book.part_begin(FORWARD, AUTO)

    # -- requests ------------------------------------------------------------------------------------------

    def request_begins(self) -> bool:
        """A request is served, and nothing has trained. Returns whether this is the outermost call, whose end must be
        reported."""
        if self._has_led or self._in_backward or self._in_request or self._is_other_thread():
            return False
        if self._thread is None:
            self._thread = threading.get_ident()
        self._in_request = True
        self._book.step_begin(None, AUTO)
        return True

    def request_ends(self) -> None:
        """The request is over, or an exception left it."""
        self._in_request = False
        if not self._has_led:
            self._book.step_end(AUTO)

    # -- loaders -------------------------------------------------------------------------------------------

    def loader_begins(self, loader: object, grad: bool) -> bool:
        """A loader's iterator is requested. Returns whether that iterator must be passed to `loader_iterates`."""
        if self._is_other_thread():
            return False
        self._look_at_root()
        if not grad:
            self._evaluation()
            return False
        abandoned = self._was_abandoned(loader)
        if self._evaluates and self._loader_steps and loader is self._loader():
            # Some trainers call `train()` only when they have the first batch.
            self._training()
        if not self._evaluates:
            self._lead_epochs(loader, abandoned)
        # The loader is recorded in evaluation mode as well: if an optimizer steps, this was training after all.
        self._current, self._current_trains, self._current_steps = weak(loader), not self._evaluates, 0
        return True

    def loader_iterates(self, iterator: object) -> None:
        """Takes the iterator that was requested."""
        self._iterator = weak(iterator)
        self._batches = 0
        self._exhausted = self._waited_at_end = False

    def _was_abandoned(self, loader: object) -> bool:
        """Whether the last iteration of this loader stopped after one of several batches.

        `next(iter(loader))` in every step is a way to draw samples, not an epoch.
        """
        if self._current() is not loader or self._exhausted or self._batches != 1:
            return False
        try:
            return len(loader) > 1  # type: ignore[arg-type]
        except Exception:
            # A loader of unknown length.
            return True

    def _lead_epochs(self, loader: object, abandoned: bool) -> None:
        leader = self._loader()
        if leader is None:
            self._loader, self._loader_steps = weak(loader), 0
        elif leader is not loader:
            # The loader was trained through before, and the leader was not iterated since. The loop has moved on to
            # this loader.
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
            # Only this loader has been trained through.
            self._loader, self._loader_steps = self._current, 1

    def batch(self, iterator: object, exhausted: bool) -> None:
        """A loader's iterator returned a batch, or is exhausted."""
        if exhausted and self._evaluates and not self._is_other_thread():
            # What the evaluation keeps is live now. If the program ends here, its last epoch has this state.
            self._book.settled()
        if self._iterator() is not iterator or self._is_other_thread():
            return
        self._exhausted = exhausted
        if not exhausted:
            self._batches += 1
            self._batches_since_step += 1
            # A program that draws single batches has no epochs.
            self._book.has_epochs |= self._batches > 1 and not self._evaluates
        if self._evaluates or (exhausted and not self._prefetches):
            return
        if self._awaits_step:
            if not (exhausted and self._batches_since_step):
                self._ensure_train()
                self._begin_step()
        elif self._book.part is None and self._book.step is not None and not exhausted:
            # This is the next batch of a step that accumulates gradients over several batches.
            self._book.part_begin(FORWARD, AUTO)

    # -- training and evaluation -----------------------------------------------------------------------------

    def module_mode(self, module: Any, training: bool) -> None:
        """`module.train()` or `.eval()` was called on a module. The nested calls on its children do not come here."""
        if self._trains_in_eval or self._is_other_thread() or not self._is_trained(module, training):
            return
        self._root = weak(module)
        if training:
            self._training()
        else:
            self._evaluation()

    def _is_trained(self, module: Any, training: bool) -> bool:
        """Whether a module is the trained one: the one with the parameters that the leading optimizer steps.

        If no module has them (sharded optimizers hold copies), and before the first step, the trained module is the one
        that was last put in training mode. A frozen teacher is not.
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
        # The module must have the first and the last parameter. A backbone alone, which is put in evaluation mode to
        # freeze its statistics, is not the model.
        ends = {id(parameter) for parameter in (trained[:1] + trained[-1:])}
        owns = bool(ends) and ends <= {id(parameter) for parameter in module.parameters()}
        if len(self._owned) >= MODULES_MAX:
            self._owned.clear()
        self._owned[id(module)] = (weak(module), owns)
        return owns

    def _look_at_root(self) -> None:
        """Reads the module's flag, because some frameworks restore the training flags without calling `train()`."""
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
        """Training continues, or begins."""
        evaluated, self._evaluates = self._evaluates, False
        self._ensure_train()
        if evaluated and not self._awaits_step and self._book.step is not None:
            self._book.step_again()
            self._book.part_begin(FORWARD, AUTO)

    def _ensure_train(self) -> None:
        if self._book.mode is None or self._book.mode[0] != TRAIN:
            self._book.mode_begin(TRAIN, AUTO)

    def _trains(self) -> None:
        """An optimizer steps, or gradients are computed. This is training, regardless of the flags."""
        if self._evaluates:
            root = self._root()
            if root is not None and not root.training:
                # The model is trained in evaluation mode (frozen statistics), so its flag has no meaning.
                self._trains_in_eval = True
            self._evaluates = False
        self._ensure_train()
