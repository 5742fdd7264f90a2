"""The native module: the hook's other side, the ring, and the session. Built from `agent/python/src`.

Every function is cheap and does nothing when nothing is attached.
"""

__version__: str

class NativeError(RuntimeError):
    """One sentence that says what is wrong and what to do."""

def start(
    *,
    job: str | None = None,
    daemon: str | None = None,
    framework: str,
    conf: str,
    devices: list[tuple[int, str | None, str | None, int | None]],
    labels: dict[str, str] = ...,
    rank: int | None = None,
    world_size: int | None = None,
    attempt: int | None = None,
) -> dict[str, object]:
    """Opens a session. Devices: ordinal, UUID, name, total bytes.

    Returns `mode` (`launcher` or `thread`), `session`, `job`, `rank` and `attempt`. Raises `NativeError`.
    """

def shim_source() -> str:
    """The C++ source of the hook."""

def shim_abi() -> int:
    """What the compiled hook's `memctl_shim_abi()` must return."""

def attach_hook(path: str, device: int | None) -> None:
    """Loads the hook and attaches it to the allocator, once in a process. CUDA must be initialised.

    `device` is the one that will be used most: its ring is made ready now. Raises `NativeError` if the file or the
    allocator refuses.
    """

def check_stacks() -> bool:
    """Compares what the walker sees of the calling frames with `sys._getframe()`; stacks are recorded only if both
    agree on every code object and instruction.
    """

def mark(kind: int, number: int = 0, name: str = "") -> bool:
    """Writes a mark: 1 and 2 begin and end an epoch, 3 and 4 a step, 5 and 6 a phase (1 train, 2 eval, 3 forward,
    4 backward, 5 optimizer), 7 and 8 a region; 9 is a note. Never raises and never blocks.
    """

def counters(
    device: int,
    allocated: int,
    active: int,
    reserved: int,
    peak_allocated: int,
    peak_reserved: int,
    retries: int,
    ooms: int,
) -> bool:
    """Counters in bytes that Python read, where the allocator cannot be hooked."""

def blocks(device: int, segments: list[dict[str, object]]) -> bool:
    """Segments as `torch.cuda.memory_snapshot()` gives them, where the allocator cannot be hooked."""

def status() -> dict[str, object]:
    """`attached`, `mode`, `job`, `rank`, `level`, `produced`, `stored`, `dropped`, `in_flight`, `stacks`, `daemon`,
    `trouble`.
    """

def stop(failure: str | None = None, patience_s: float = 0.25) -> dict[str, object]:
    """Ends the session within `patience_s` seconds: `delivered`, `produced`, `stored`, `dropped`, `refused`."""

def silence() -> None:
    """Closes the gate of this process for ever: in a forked child, at interpreter shutdown."""
