"""Describes chains in words: the steps from a root to a tensor, the kind of holder, and a sentence.

Guarantees: texts contain only names of modules, classes, functions, variables, attributes and keys. Their length is
bounded. The same chain gives the same words.
Does not invent names. A container without a name is "a list".

(Over 400 lines: every part of a sentence reads the chain, and the words of one sentence belong together.)
"""

from __future__ import annotations

import _thread
import functools
import types
from dataclasses import dataclass
from typing import Any, Optional

from memctl_agent._holders import _facts, _outputs, _reading
from memctl_agent._holders._facts import FILLED
from memctl_agent._holders._frames import Frames
from memctl_agent._holders._roots import Root

STEPS_MAX = 12
STEP_CHARS_MAX = 200

_HOOK_DICTS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_state_dict_hooks": "state dict hook",
    "_load_state_dict_pre_hooks": "load hook",
}
_TENSOR_HOOKS = "_backward_hooks"
# The dicts of a module that contain its parts.
_PARTS = ("_modules", "_parameters", "_buffers")


@dataclass(frozen=True)
class Edge:
    """How an object of a chain is reached from the previous object: `global`, `attribute`, `cell`, `key`, `item`, …."""

    how: str
    name: str = ""
    owner: str = ""


class Chain:
    """A path from a root to a tensor, and how each of its objects is reached from the previous one."""

    def __init__(
        self,
        path: list[Any],
        root: Optional[Root],
        frames: Frames,
        module: Optional[type],
        tensor: Optional[type] = None,
    ) -> None:
        self.path, self.root, self._frames, self._module, self._tensor = path, root, frames, module, tensor

    @functools.cached_property
    def edges(self) -> list[Edge]:
        """The edges of the chain. They are computed only for chains that are described, because reading an object's
        attributes may create its dict."""
        return [self.edge(at) for at in range(len(self.path))]

    def edge(self, at: int) -> Edge:
        thing = self.path[at]
        if at == 0:
            return self._local_root() if self.root is not None and self.root.kind == "local" else Edge("")
        holder = self.path[at - 1]
        if at == 1 and self.root is not None and self.root.kind == "module":
            return Edge("global", self._global(holder, thing), self.root.name)
        cls = type(holder)
        if cls is types.FrameType:
            name = self._frames.local_of(holder, thing)
            return Edge("local", name or "?", _reading.code_name(holder.f_code))
        if cls is types.GeneratorType or cls is types.CoroutineType or cls is types.AsyncGeneratorType:
            return self._suspended(holder, thing)
        if cls is types.CellType:
            return self._cell(at)
        if cls is types.FunctionType or cls is types.TracebackType or _reading.is_a(holder, BaseException):
            return Edge("")
        word = _reading.container(holder)
        if word == "dict":
            return self._in_dict(at, holder, thing)
        if word is not None:
            return Edge("item")
        if _reading.is_a(holder, type):
            name = _class_attribute(holder, thing)
            return Edge("class", name, _reading.type_name(holder)) if name else Edge("")
        if thing is _reading.instance_dict(holder):
            return Edge("")
        if self._is_tensor(at - 1) and _reading.container(thing) == "dict":
            # C++ keeps the dict of a tensor's hooks, so it is not among the object's attributes.
            return Edge("attribute", _TENSOR_HOOKS, _reading.type_name(cls))
        name = _reading.attribute_of(holder, thing)
        return Edge("attribute", name, _reading.type_name(cls)) if name else Edge("")

    def _global(self, holder: Any, thing: Any) -> str:
        """The name of a module's variable. A variable of the program goes before IPython's names of the same object."""
        name = _reading.key_of(holder, thing) or "?"
        if not name.startswith("_") or holder is not _outputs.namespace():
            return name
        own = _outputs.own_name(holder, thing)
        number = _outputs.number(holder, [thing]) if own is None and _outputs.is_name(name) else None
        return own or (name if number is None else f"Out[{number}]")

    @functools.cached_property
    def output(self) -> Optional[str]:
        """The output of a notebook by which the chain leads to the tensor, such as `Out[5]`."""
        variables = _outputs.namespace()
        if variables is None or len(self.path) < 2:
            return None
        edge = self.edges[1]
        if self.path[0] is variables and edge.how == "global":
            if self.path[1] is variables["_oh"]:
                return "Out"
            if edge.name.startswith("Out[") or _outputs.is_name(edge.name):
                return edge.name
        for above, below in zip(self.edges, self.edges[1:]):
            if above.name == _outputs.HIDDEN and below.how == "key" and _outputs.is_name(below.name):
                return below.name
        return None

    def aside(self) -> str:
        """The end of a sentence about this chain: what a notebook's output history has to do with it; else empty."""
        if self.output is not None:
            return f" ({_outputs.REMEDY})"
        variables = _outputs.namespace()
        if variables is None:
            return ""
        if any(edge.name in _outputs.LAST_EXCEPTION for edge in self.edges) and self.passes(types.TracebackType):
            return f" ({_outputs.EXCEPTION_REMEDY})"
        number = _outputs.number(variables, self.path[1:])
        if number is None:
            return ""
        return f"; `Out[{number}]` of {_outputs.PHRASE} holds it, too ({_outputs.REMEDY})"

    def _local_root(self) -> Edge:
        assert self.root is not None
        return Edge("local", self.root.name, self.root.owner)

    def _suspended(self, holder: Any, thing: Any) -> Edge:
        prefix = {types.GeneratorType: "gi", types.CoroutineType: "cr"}.get(type(holder), "ag")
        frame, code = getattr(holder, f"{prefix}_frame"), getattr(holder, f"{prefix}_code")
        name = self._frames.local_of(frame, thing) if frame is not None else None
        return Edge("local", name or "?", _reading.code_name(code))

    def _in_dict(self, at: int, holder: Any, thing: Any) -> Edge:
        key = _reading.key_of(holder, thing)
        if key is None:
            # The object is a key of the dict.
            return Edge("item")
        if at < 2:
            return Edge("key", key)
        owner = self.path[at - 2]
        if _reading.is_a(owner, type):
            return Edge("class", key, _reading.type_name(owner))
        if at > 2 and _reading.is_a(self.path[at - 3], _thread._local):
            return Edge("thread-local", key)
        if holder is _reading.instance_dict(owner):
            return Edge("attribute", key, _reading.type_name(type(owner)))
        return Edge("key", key)

    def _cell(self, at: int) -> Edge:
        cell = self.path[at - 1]
        function = self.path[at - 3] if at > 2 else None
        if type(function) is types.FunctionType and function.__closure__ is self.path[at - 2]:
            for name, other in zip(function.__code__.co_freevars, function.__closure__ or ()):
                if other is cell:
                    return Edge("cell", _reading.plain(name) or "?", _reading.function_name(function))
        if at == 1 and self.root is not None:
            return self._local_root()
        return Edge("cell", "?", "?")

    def name(self, at: int) -> tuple[Optional[str], Optional[str]]:
        """The name that the program has for an object of the chain, or for its container; and the owner of the name."""
        for place in range(at, -1, -1):
            edge = self.edges[place]
            if self._is_submodule(place):
                return edge.name, self.edges[place - 1].owner or None
            if edge.name not in _PARTS and edge.how in (
                "global",
                "attribute",
                "cell",
                "class",
                "local",
                "thread-local",
            ):
                return edge.name, edge.owner or None
        # A frame or a cell has no name of its own. Its content has one.
        for place in range(at + 1, len(self.path)):
            edge = self.edges[place]
            if edge.how in ("global", "attribute", "cell", "class", "local", "thread-local"):
                return edge.name, edge.owner or None
        return None, None

    def passes(self, *types_: type) -> Optional[int]:
        """The first index at which the chain has an object of one of these types."""
        for at, thing in enumerate(self.path[:-1]):
            if any(_reading.is_a(thing, wanted) for wanted in types_):
                return at
        return None

    def hooks(self) -> Optional[tuple[int, str]]:
        """The index at which the chain has the dict of hooks of a module or a tensor, and the kind of hooks."""
        for at, thing in enumerate(self.path):
            noun = _HOOK_DICTS.get(self.edges[at].name)
            is_hooks = noun is not None and _reading.container(thing) == "dict"
            is_owned = is_hooks and (self._is_module(at) or self._is_tensor(at - 1))
            if noun is not None and is_owned and at + 1 < len(self.path):
                return at, noun
        return None

    def is_buffer(self) -> bool:
        """Whether the tensor is a buffer or a parameter of a module."""
        at = len(self.path) - 2
        return at > 0 and self.edges[at].name in ("_buffers", "_parameters") and self._is_module(at)

    def _is_module(self, at: int) -> bool:
        """Whether the attribute at this place belongs to a `torch.nn.Module`."""
        above = self.path[max(0, at - 2) : at]
        return self._module is not None and any(_reading.is_a(thing, self._module) for thing in above)

    def _is_tensor(self, at: int) -> bool:
        return at >= 0 and self._tensor is not None and _reading.is_a(self.path[at], self._tensor)

    def steps(self, tail: list[str], *, with_counts: bool = True) -> list[str]:
        """The chain as short texts. A long chain is shortened in the middle.

        Without counts of items, the texts stay the same while containers grow.
        """
        steps = []
        if self.root is not None and self.root.kind != "local":
            steps.append(f"{self.root.kind} `{self.root.name}`")
        below = 0
        for at, thing in enumerate(self.path):
            edge = self.edges[at]
            if at < below:
                continue
            names, last = self._submodules(at)
            if names:
                steps += [f"submodule `{'.'.join(names)}`", self._step(last, self.path[last], with_counts) or "module"]
                below = last + 1
                continue
            if at + 1 < len(self.path) and self.edges[at + 1].how == "thread-local":
                # This is the dict with one thread's attributes. Above it is the dict with those of all threads.
                continue
            if at + 2 < len(self.path) and self.edges[at + 2].how == "thread-local":
                continue
            if edge.how in ("global", "attribute", "cell", "key", "class", "thread-local"):
                how = "attribute" if edge.how == "class" else edge.how
                steps.append(f"{how} `{edge.name}`" + (f" of function `{edge.owner}`" if edge.how == "cell" else ""))
            elif edge.how == "local":
                steps.append(f"local `{edge.name}` of function `{edge.owner}`")
            if at > 0 or self.root is None or self.root.kind == "local":
                step = self._step(at, thing, with_counts)
                if step is not None:
                    steps.append(step)
        steps += tail
        if len(steps) > STEPS_MAX:
            half = STEPS_MAX // 2
            steps = [*steps[:half], f"… {len(steps) - STEPS_MAX + 1} more", *steps[-(STEPS_MAX - half - 1) :]]
        return [step[:STEP_CHARS_MAX] for step in steps]

    def _submodules(self, at: int) -> tuple[list[str], int]:
        """The names of nested submodules from a module's table of modules on, and the index of the last one."""
        names, last = [], at
        while at + 1 < len(self.path) and self.edges[at].name == "_modules" and self.edges[at + 1].how == "key":
            names.append(self.edges[at + 1].name)
            last = at + 1
            # After a module comes its table of modules. The dict of the module's attributes may come before the table.
            at += 2
            if at + 1 < len(self.path) and not self.edges[at].how:
                at += 1
        return names, last

    def _is_submodule(self, at: int) -> bool:
        return at > 0 and self.edges[at].how == "key" and self.edges[at - 1].name == "_modules"

    def _step(self, at: int, thing: Any, with_count: bool) -> Optional[str]:
        cls = type(thing)
        following = self.path[at + 1] if at + 1 < len(self.path) else None
        if cls is types.CellType or cls is types.FrameType or (cls is tuple and type(following) is types.CellType):
            return None
        if cls is types.FunctionType:
            return f"function `{_reading.function_name(thing)}`"
        if cls is types.TracebackType:
            return "traceback"
        holder = self.path[at - 1] if at > 0 else None
        if holder is not None and not self.edges[at].how and _reading.container(thing) == "dict":
            # This is the dict of an object's or a class's attributes.
            return None
        word = _reading.container(thing)
        if word is not None:
            return f"{word}, {counted(_reading.length(thing), 'item')}" if with_count else word
        return _reading.type_name(cls) if following is None else f"`{_reading.type_name(cls)}` object"

    def _keeps(self, at: int) -> bool:
        """Whether an object keeps others. Functions, cells, frames, tracebacks and classes do not count."""
        thing = self.path[at]
        walls = (types.CellType, types.FrameType, types.FunctionType, types.TracebackType)
        is_wall = any(type(thing) is wall for wall in walls)
        return not is_wall and not _reading.is_a(thing, type) and self.edges[at].how != ""

    def phrase(self, at: int, deep: int = 0) -> str:
        """An object of the chain as a noun with its name."""
        thing, edge = self.path[at], self.edges[at]
        word = _reading.container(thing) or (
            "tensor" if at == len(self.path) - 1 else f"`{_reading.type_name(type(thing))}` object"
        )
        if self.output is not None and (at == 1 or edge.name == self.output):
            return f"{word} `{self.output}` of {_outputs.PHRASE}"
        if edge.how == "global":
            return f"{word} `{edge.name}` of module `{edge.owner}`"
        if edge.name == "_modules" and edge.owner in FILLED and at > 0:
            # The object above is the module, or the dict of the module's attributes.
            return self.phrase(at - 1 if self.edges[at - 1].how or at < 2 else at - 2, deep)
        if self._is_submodule(at):
            return f"{word} `{edge.name}` of module `{self.edges[at - 1].owner}`"
        if edge.how == "attribute":
            return f"{word} `{edge.name}` of `{edge.owner}`"
        if edge.how == "class":
            return f"{word} `{edge.name}` of class `{edge.owner}`"
        if edge.how == "cell":
            return f"cell `{edge.name}` of function `{edge.owner}`"
        if edge.how == "local":
            return f"{word} `{edge.name}`, a local variable of function `{edge.owner}`"
        if edge.how == "thread-local" and deep < 3:
            return f"{word} `{edge.name}`, local to a thread, of {self.phrase(at - 3, deep + 1)}"
        if edge.how in ("key", "item") and at > 0 and deep < 3:
            above = self.phrase(at - 1, deep + 1)
            return f"{word} under key `{edge.name}` of {above}" if edge.how == "key" else f"{word} in {above}"
        article = "an" if word[0] in "aeiou" else "a"
        if at > 0 and deep < 3 and not edge.how and self._keeps(at - 1):
            # The content of a cache that is written in C has no name of its own.
            return f"{article} {word} in {self.phrase(at - 1, deep + 1)}"
        return f"{article} {word}"


# Types below which no tensors are counted.
_WALLS = (type, types.ModuleType, types.FrameType)


def is_passable(thing: Any) -> bool:
    """Whether tensors are counted below an object."""
    return not _reading.is_atom(thing) and not any(
        base is wall for base in _reading.bases(type(thing)) for wall in _WALLS
    )


def _class_attribute(cls: type, value: Any) -> Optional[str]:
    for name, held in _reading.table(cls).items():
        if held is value:
            return _reading.plain(name)
    return None


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as `1,440 tensors`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def may_gather(chain: Chain, at: int) -> bool:
    """Whether an object of a chain may hold many others. These are containers that the program fills, and caches."""
    if _facts.is_cache(chain.path[at]):
        return True
    return _reading.container(chain.path[at]) is not None and not _is_namespace(chain, at)


def _is_namespace(chain: Chain, at: int) -> bool:
    """Whether a container is a part of an object or a class, such as the dict of its attributes."""
    edge = chain.edge(at)
    if edge.name == "_modules" and edge.owner in FILLED:
        return False
    return edge.name in _PARTS or (not edge.how and _reading.container(chain.path[at]) == "dict")


def kind_and_sentence(chain: Chain, at: int, tensors: Optional[int]) -> tuple[str, str]:
    """The kind of holder at a place of the chain, and the sentence about it."""
    many = f", {counted(tensors, 'tensor')}" if tensors else ""
    exception = chain.passes(BaseException)
    frame = chain.passes(types.FrameType)
    if exception is not None and frame is not None and exception < frame:
        name = _reading.type_name(type(chain.path[exception]))
        inner = max(at, frame) + 1
        what = chain.phrase(min(inner, len(chain.path) - 1))
        return "exception", f"{what}, kept by the traceback of exception `{name}`{_kept(chain, exception)}{many}"
    traceback = chain.passes(types.TracebackType)
    if traceback is not None and frame is not None and traceback < frame:
        what = chain.phrase(min(max(at, frame) + 1, len(chain.path) - 1))
        return "exception", f"{what}, kept by a traceback{_kept(chain, traceback)}{many}"
    local = chain.passes(_thread._local)
    if local is not None:
        return "thread_local", f"{chain.phrase(_named(chain, at))}{many}"
    hooks = chain.hooks()
    if hooks is not None:
        return "hook", _hook_sentence(chain, at, hooks, many)
    if chain.is_buffer() and at >= len(chain.path) - 2:
        edge, owner = chain.edges[-1], chain.edges[len(chain.path) - 2].owner
        what = "buffer" if chain.edges[len(chain.path) - 2].name == "_buffers" else "parameter"
        return "module_buffer", f"{what} `{edge.name}` of module `{owner}`{many}"
    if chain.passes(types.CellType) is not None:
        return "closure", f"{chain.phrase(_named(chain, at))}{many}"
    return _plain_kind(chain, at, many)


def _plain_kind(chain: Chain, at: int, many: str) -> tuple[str, str]:
    word = _reading.container(chain.path[at])
    last = chain.edges[-1]
    is_direct = at == max(0, len(chain.path) - 2)
    if is_direct and last.how in ("attribute", "class", "global", "local"):
        kind = {"class": "attribute", "local": "frame"}.get(last.how, last.how)
        return kind, chain.phrase(len(chain.path) - 1)
    if word is not None:
        return word, f"{chain.phrase(at)}{many}"
    return "object", f"{chain.phrase(at)}{many}"


def _named(chain: Chain, at: int) -> int:
    """The index itself if its object has a name. Otherwise (a cell or a frame) the next index with a name."""
    while at < len(chain.path) - 1 and not chain.edges[at].how:
        at += 1
    return at


def _kept(chain: Chain, exception: int) -> str:
    edge = chain.edges[exception]
    if edge.how in ("global", "attribute", "class", "local", "cell", "thread-local"):
        return f", which is {chain.phrase(exception)}".replace(f"`{_name_at(chain, exception)}` object ", "")
    if edge.how in ("item", "key") and exception > 0:
        return f" in {chain.phrase(exception - 1)}"
    return ""


def _name_at(chain: Chain, at: int) -> str:
    return _reading.type_name(type(chain.path[at]))


def _hook_sentence(chain: Chain, at: int, hooks: tuple[int, str], many: str) -> str:
    place, noun = hooks
    registered, owner = chain.path[place], chain.edges[place].owner
    cells = [thing for thing in chain.path if type(thing) is types.CellType]
    count = 0
    for hook in list(dict.values(registered)):
        closure = hook.__closure__ if type(hook) is types.FunctionType else None
        shares = any(mine is cell for mine in closure or () for cell in cells)
        # If the holder is the dict of hooks itself, all of its hooks count.
        count += bool(at == place or shares or hook is chain.path[place + 1])
    what = chain.phrase(_named(chain, at)) if at > place else chain.phrase(len(chain.path) - 1)
    return f"{what}{many}, referenced by {counted(count, noun)} of `{owner}`"
