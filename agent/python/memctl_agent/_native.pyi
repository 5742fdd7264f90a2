"""The native module: the Rust side of the hook, the rings, and the session. It is built from `agent/python/src`.

Without a session, every function does nothing.
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
    """Opens a session. A device has ordinal, UUID, name and total bytes. `child` has the parent's process id and this
    process's name, if `multiprocessing` started it. `holders` states whether requests for holders are allowed.

    Returns `mode` (`launcher` or `thread`), `session`, `job`, `rank` and `attempt`. Raises `NativeError`.
    """

def shim_source() -> str:
    """The C++ source of the hook."""

def shim_abi() -> int:
    """The version that the compiled hook's `memctl_shim_abi()` must return."""

def attach_hook(path: str, device: int | None, build: str) -> None:
    """Loads the hook and attaches it to the allocator, once per process. CUDA must be initialised.

    `device` is the device that will be used most. The pages of its ring are allocated now. `build` is the version and
    the commit of the torch that runs. Raises `NativeError` if the file was built for another torch, or if the allocator
    refuses.
    """

def check_stacks() -> bool:
    """Compares the walk of the calling frames with `sys._getframe()`. Stacks are recorded only if both agree on every
    code object and instruction.
    """

def mark(kind: int, number: int = 0, name: str = "") -> bool:
    """Writes a mark. 1 and 2 begin and end an epoch, 3 and 4 a step, 5 and 6 a phase (1 train, 2 eval, 3 forward, 4
    backward, 5 optimizer), 7 and 8 a region. 9 is a note. 11 records that gradients were freed. 10 ends an epoch with
    the state of the last end of a step or of an evaluation, or of the last 11. Never raises and never blocks.
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
    limit: int | None = None,
) -> bool:
    """Records counters from Python, for allocators that cannot be hooked, and the bytes of NCCL's communicators.

    Unknown figures are None. `limit` is the limit that the program set on its allocator.
    `sharing` states whether CUDA IPC, RDMA and symmetric memory were seen in use.
    """

def blocks(device: int, segments: list[dict[str, object]]) -> bool:
    """Records segments as returned by `torch.cuda.memory_snapshot()`, for allocators that cannot be hooked."""

def holders_asked() -> tuple[int, list[tuple[int, int]], int] | None:
    """The request for holders: its id, at most 256 live blocks (address, bytes) of one site, oldest first, and a budget
    in milliseconds. Each request is returned once. Without a request this only loads one word.
    """

def holders_answer(ask: int, answer_json: str) -> bool:
    """Answers a request with JSON of at most 64 KiB. Never blocks and never raises; False if there was no room."""

def holders_word() -> tuple[int, int] | None:
    """The number of the system call `futex`, and the address of the word that is 0 without a request; None if requests
    are forbidden.
    """

def frame_values(frame: object, first_slot: int, count: int, is_indirect: bool) -> list[object | None]:
    """The values in `count` slots of a frame, from `first_slot` on, read at once."""

# `rules` of the following classes are: function for a tensor's address, classes of tensors, classes of tensors that are
# not read, this package's own classes, the type of frames, function for a class's module, a tuple for the sizes of
# storages (`Tensors.storages`), names of the program's own modules. All functions are of C.

class Walk:
    """Walks from roots down to the tensors on some blocks, in slices. Holds no object between two calls."""

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
    """Walks all objects of the collector, in slices."""

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
    """Records an event of another allocator: 1 allocation, 2 free, 3 segment, 4 out of memory (`addr` is the device's
    free bytes), 5 bytes that the pool holds now (`size`). Any thread with the interpreter's lock may call this.
    """

def device_uuid(ordinal: int) -> str | None:
    """The UUID of a CUDA ordinal as nvidia-smi writes it; None if CUDA is not in use. Creates no context."""

def status() -> dict[str, object]:
    """The session's state: `attached`, `mode`, `job`, `rank`, `level`, `produced`, `stored`, `dropped`, `in_flight`,
    `stacks`, `daemon`, `trouble`.
    """

def stop(failure: str | None = None, patience_s: float = 0.25, leaving: bool = False) -> dict[str, object]:
    """Ends the session within `patience_s` seconds. Returns `delivered`, `produced`, `stored`, `dropped`, `refused`.

    `leaving` means that the process is about to end. A launcher then takes the session's result from its exit code.
    """

def silence() -> None:
    """Closes the gate of this process permanently. For a forked child and for the interpreter's shutdown."""
