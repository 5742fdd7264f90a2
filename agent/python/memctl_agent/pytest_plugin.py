"""The pytest plugin: how much GPU memory tests use, limits for it, and what they leave behind.

`--memctl` prints a table of the tests' peaks. `@pytest.mark.limit_gpu_memory("2 GiB")` fails a test that allocates
more, `@pytest.mark.limit_gpu_leaks("64 KiB", warmups=2)` a test that leaves memory behind; both name the lines. The
fixture `gpu_memory` has the figures during a test.
Guarantees: without the option, a marker or the fixture, no test is touched. Importing this does not import torch.
Refuses: pytest before version 8, whose wrappers cannot fail a test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import pytest  # pyright: ignore[reportMissingImports]

if TYPE_CHECKING:
    from memctl_agent._pytest._measure import Measurer

TOP = 20
PYTEST_MIN = 8
_MARKERS = (
    "limit_gpu_memory(limit): fail the test if the GPU memory that it allocates exceeds the limit, such as "
    '"2 GiB" (memctl)',
    "limit_gpu_leaks(limit, warmups=2): run the test `warmups` times, then once more, and fail it if that run leaves "
    'more GPU memory than the limit, such as "64 KiB" (memctl)',
)


class Line(NamedTuple):
    """A line of code, and the blocks that it allocated."""

    bytes: int
    blocks: int
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.bytes:,} bytes in {self.blocks} blocks  {self.file}:{self.line} in {self.function}"


class GpuMemory:
    """The GPU memory of the running test: the blocks that were allocated since its body began.

    Earlier blocks and those of fixtures do not count. If the body runs several times, because of `limit_gpu_leaks`,
    the figures begin at 0 with each run. All figures are sums over all devices. They are 0 if nothing is measured, and
    `reason` says why.
    """

    def __init__(self, measurer: Measurer) -> None:
        self._measurer = measurer
        self._turn, self._since = -1, list[int]()

    def _now(self) -> Any:
        return self._measurer.now(self._turn, self._since)

    @property
    def reason(self) -> Optional[str]:
        """Why nothing is measured, such as `no CUDA device`; None if it is."""
        return self._now()[3]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were allocated at once since the body began, or since `reset()`."""
        return self._now()[0].peak

    @property
    def device_peaks(self) -> dict[int, int]:
        """Each device's own peak, by its ordinal."""
        return dict(self._now()[0].peaks)

    @property
    def allocated_bytes(self) -> int:
        """The bytes that are allocated now."""
        return self._now()[0].allocated

    def reset(self) -> None:
        """Lets the peak begin again, at what is allocated now. The limits of markers are not affected, and neither are
        torch's own peaks."""
        _, self._turn, self._since, _ = self._now()

    def top_lines(self, count: int = 5) -> list[Line]:
        """The lines with the most bytes at the peak."""
        lines = []
        for line in self._now()[0].at_peak[:count]:
            file, number, function = line.site or ("", 0, self._measurer.text(None))
            lines.append(Line(line.bytes_, line.blocks, file, number, function))
        return lines


def _is_old() -> bool:
    return int(pytest.__version__.partition(".")[0]) < PYTEST_MIN


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("memctl", "GPU memory of tests (memctl)")
    group.addoption("--memctl", action="store_true", default=False, help="print the tests' peaks of GPU memory")
    group.addoption(
        "--memctl-top",
        type=_count,
        default=TOP,
        metavar="N",
        help=f"list the N tests with the largest peaks ({TOP}; 0: all)",
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def pytest_configure(config: Any) -> None:
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    if _is_old():
        if config.getoption("memctl"):
            raise pytest.UsageError(f"--memctl needs pytest {PYTEST_MIN} or later, this is {pytest.__version__}")
        return
    if config.getoption("memctl"):
        _rows(config)


def pytest_sessionstart(session: Any) -> None:
    """Receives results in a controller of pytest-xdist: its workers measure, and it collects no tests itself."""
    if session.config.pluginmanager.hasplugin("dsession") and not _is_old():
        _rows(session.config)


def pytest_collection_finish(session: Any) -> None:
    """Measures if it is asked for, by the option or by one of the collected tests."""
    config = session.config
    marked = [item for item in session.items if _is_marked(item)]
    if not marked and not config.getoption("memctl"):
        return
    if _is_old():
        raise pytest.UsageError(f"memctl's markers and `gpu_memory` need pytest {PYTEST_MIN}")
    from memctl_agent._pytest._limits import limits_of

    if not hasattr(config, "workerinput"):
        # (A usage error would end a worker of pytest-xdist without its text. There, the test itself fails with it.)
        for item in marked:
            limits_of(item)
    _measurer(config)


def _is_marked(item: Any) -> bool:
    if "gpu_memory" in getattr(item, "fixturenames", ()):
        return True
    return any(item.get_closest_marker(name) for name in ("limit_gpu_memory", "limit_gpu_leaks"))


def _rows(config: Any) -> Any:
    """The results, which are registered once."""
    manager = config.pluginmanager
    found = manager.get_plugin("memctl-rows")
    if found is None:
        from memctl_agent._pytest._rows import Rows

        found = Rows(config)
        manager.register(found, "memctl-rows")
    return found


def _measurer(config: Any) -> Any:
    """The hooks around tests, which are registered once."""
    manager = config.pluginmanager
    found = manager.get_plugin("memctl-measurer")
    if found is None:
        from memctl_agent._pytest._measure import Measurer

        found = Measurer(config, _rows(config))
        manager.register(found, "memctl-measurer")
    return found


@pytest.fixture
def gpu_memory(request: Any) -> GpuMemory:
    """The GPU memory of this test: `peak_bytes`, `allocated_bytes`, `device_peaks`, `top_lines()`, `reset()`."""
    return GpuMemory(_measurer(request.config))
