"""The native module: the hook's counterpart, the ring, and the session. Built from `agent/python/src`.

Every function is cheap and does nothing when nothing is attached.
"""

__version__: str

class NativeError(RuntimeError):
    """One sentence that names the problem and the remedy."""

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
    role: str | None = None,
    child: tuple[int, str] | None = None,
    holders: bool | None = None,
) -> dict[str, object]:
    """Opens a session. Devices: ordinal, UUID, name, total bytes. `child`: the parent's process id and this process's
    name, where `multiprocessing` started it. `holders`: whether requests for holders are allowed.

    Returns `mode` (`launcher` or `thread`), `session`, `job`, `rank` and `attempt`. Raises `NativeError`.
    """

def shim_source() -> str:
    """The C++ source of the hook."""

def shim_abi() -> int:
    """What the compiled hook's `memctl_shim_abi()` must return."""

def attach_hook(path: str, device: int | None, build: str) -> None:
    """Loads the hook and attaches it to the allocator, once in a process. CUDA must be initialised.

    `device` is the one that will be used most: its ring is made ready now. `build` is the torch that runs, version
    and commit. Raises `NativeError` if the file was built for another torch, or the allocator refuses.
    """

def check_stacks() -> bool:
    """Compares the walk of the calling frames with `sys._getframe()`; stacks are recorded only if both agree on every
    code object and instruction.
    """

def mark(kind: int, number: int = 0, name: str = "") -> bool:
    """Writes a mark: 1 and 2 begin and end an epoch, 3 and 4 a step, 5 and 6 a phase (1 train, 2 eval, 3 forward,
    4 backward, 5 optimizer), 7 and 8 a region; 9 is a note; 10 ends an epoch as of the last end of a step or of an
    evaluation, or of 11: gradients were freed. Never raises and never blocks.
    """

def counters(
    device: int,
    allocated: int | None = None,
    active: int | None = None,
    reserved: int | None = None,
    peak_allocated: int | None = None,
    peak_reserved: int | None = None,
    retries: int | None = None,
    ooms: int | None = None,
    device_used: int | None = None,
    device_total: int | None = None,
    nccl: int | None = None,
    sharing: tuple[bool, bool, bool] | None = None,
) -> bool:
    """Counters in bytes from Python, where the allocator cannot be hooked, and the bytes of NCCL's communicators.

    Unknown figures are None. `sharing`: whether CUDA IPC, RDMA and symmetric memory were seen in use.
    """

def blocks(device: int, segments: list[dict[str, object]]) -> bool:
    """Segments as returned by `torch.cuda.memory_snapshot()`, where the allocator cannot be hooked."""

def holders_asked() -> tuple[int, list[tuple[int, int]], int] | None:
    """The request for holders: its id, live blocks (address, bytes) of one site, oldest first, at most 256, and a
    budget in milliseconds. Each request is returned once; without a request this loads one word.
    """

def holders_answer(ask: int, answer_json: str) -> bool:
    """Answers a request with JSON of at most 64 KiB. Never blocks and never raises; False if there was no room."""

def holders_word() -> tuple[int, int] | None:
    """The number of the system call `futex`, and the address of the word that is 0 without a request; None where
    requests are forbidden.
    """

def frame_values(frame: object, first_slot: int, count: int, is_indirect: bool) -> list[object | None]:
    """The values in the first slots of a frame, read in one go."""

# `rules` of the two below: reader of a tensor's address, classes of tensors, classes of tensors that are not read, this
# package's own classes, the type of frames, reader of a class's module, names of the program's own modules.

class Walk:
    """From roots down to the tensors on some blocks, in slices; holds no object between two calls."""

    def __init__(self, blocks: list[tuple[int, int]]) -> None: ...
    def root(self, rules: tuple[object, ...], object: object) -> int | None: ...
    def go(self, rules: tuple[object, ...], roots: list[tuple[int, object]], slice_us: int, is_late: bool) -> bool: ...
    def adopt(self, rules: tuple[object, ...], roots: list[tuple[int, object]], holder: int, held: int) -> bool: ...
    def shelve(self) -> None: ...
    def has_all(self) -> bool: ...
    def is_cut(self) -> bool: ...
    def found(self) -> list[tuple[int, int]]: ...
    def starts(self) -> list[int]: ...
    def counts(self) -> tuple[int, int]: ...
    def roots(self, entries: list[int]) -> list[int]: ...
    def chains(self, entries: list[int]) -> list[list[int]]: ...
    def types(self, entries: list[int]) -> list[int]: ...
    def number(self, id: int) -> int | None: ...
    def paths(
        self, rules: tuple[object, ...], roots: list[tuple[int, object]], entries: list[int]
    ) -> list[list[object] | None]: ...

class Heap:
    """All objects of the collector, in slices."""

    def __init__(self, blocks: list[tuple[int, int]]) -> None: ...
    def can_tell(self) -> bool: ...
    def counts(self) -> tuple[int, bool]: ...
    def taken(self) -> list[int]: ...
    def rewind(self) -> None: ...
    def tensors(self, rules: tuple[object, ...], slice_us: int) -> tuple[bool, list[tuple[int, object]]]: ...
    def generators(self, slice_us: int) -> tuple[bool, list[object]]: ...
    def holders(
        self, rules: tuple[object, ...], wanted: list[int], slice_us: int
    ) -> tuple[bool, list[tuple[object, int]]]: ...

def attach_foreign() -> None:
    """Switches the session to events from `record`. Raises `NativeError` if PyTorch's hook feeds it."""

def record(device: int, action: int, addr: int, size: int, stream: int = 0) -> bool:
    """An event of another allocator: 1 allocation, 2 free, 3 segment, 4 out of memory (`addr`: the device's free
    bytes), 5 bytes that the pool holds now (`size`). From any thread that holds the interpreter's lock.
    """

def device_uuid(ordinal: int) -> str | None:
    """UUID of a CUDA ordinal as nvidia-smi writes it; None where CUDA is not in use. Makes no context."""

def status() -> dict[str, object]:
    """`attached`, `mode`, `job`, `rank`, `level`, `produced`, `stored`, `dropped`, `in_flight`, `stacks`, `daemon`,
    `trouble`.
    """

def stop(failure: str | None = None, patience_s: float = 0.25, leaving: bool = False) -> dict[str, object]:
    """Ends the session within `patience_s` seconds: `delivered`, `produced`, `stored`, `dropped`, `refused`.

    `leaving`: the process is about to end; a launcher uses its exit code to determine how the session ended.
    """

def silence() -> None:
    """Closes the gate of this process permanently: in a forked child, at interpreter shutdown."""
