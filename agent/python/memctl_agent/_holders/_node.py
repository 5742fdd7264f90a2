"""Reads nodes of autograd graphs, with one reader for each type of node.

Guarantees: only functions of torch that are written in C++ are called. A type that may be freed is not kept.
"""

from __future__ import annotations

import types
from typing import Any, ClassVar

from memctl_agent._holders import _reading

_RAW = "_raw_saved_"


class Reader:
    """Reads nodes of one type. It has functions that return a node's next nodes and its number. For each attribute with
    saved tensors it has two functions: one returns the saved tensors unread, and one unpacks them."""

    static: ClassVar[dict[int, Reader]] = {}

    def __init__(self, cls: type, function: type) -> None:
        self.name = _reading.type_name(cls)
        self.is_gathering = self.name == "AccumulateGrad"
        # The node belongs to a function written in Python. Its object may keep more than the saved tensors.
        self.is_function = _reading.derives(cls, function)
        self.following: Any = None
        self.made: Any = None
        self.pairs: list[tuple[Any, Any]] = []
        for base in _reading.bases(cls):
            names = _reading.table(base)
            if self.following is None:
                self.following = _getter(names.get("next_functions"))
            if self.made is None and type(names.get("_sequence_nr")) is types.MethodDescriptorType:
                self.made = names["_sequence_nr"]
            for name, raw in names.items():
                # `_raw_saved_tensors` of a function written in Python belongs to `saved_tensors`.
                if type(name) is str and name.startswith(_RAW) and type(raw) is types.GetSetDescriptorType:
                    unpacked = _getter(names.get(name[4:]) or names.get(name[5:]))
                    if unpacked is not None:
                        self.pairs.append((raw.__get__, unpacked))


def _getter(descriptor: Any) -> Any:
    return descriptor.__get__ if type(descriptor) is types.GetSetDescriptorType else None
