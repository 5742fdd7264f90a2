"""The end of a process and its report; the checks of the shim's cache; the package without a session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import memctl_agent
from memctl_agent import _shim, _torch
from memctl_agent._lifecycle import Lifecycle, describe, exit_failure

PACKAGE = Path(__file__).resolve().parents[3] / "agent" / "python"


def test_out_of_memory_is_recognised_behind_what_was_raised() -> None:
    try:
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
        except RuntimeError as error:
            raise ValueError("wrapped") from error
    except ValueError as error:
        assert describe(error) == "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB."


def test_failures_in_words() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(KeyError("x\ny")) == r"KeyError: 'x\ny'"
    assert describe(ValueError("first\nsecond")) == "ValueError: first"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert describe(Silent()) == "Silent"
    assert len(describe(ValueError("x" * 10_000))) == 500
    assert describe(ValueError("One fact. " * 60)) == "ValueError: " + ("One fact. " * 48).rstrip()


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (None, None),
        (0, None),
        (False, None),
        (3, "exit code 3"),
        ("usage", "exit code 1: usage"),
        ("", "exit code 1: "),
    ],
)
def test_exit_codes(code: object, failure: object) -> None:
    assert exit_failure(code) == failure


ENDS = """
import sys
sys.path.insert(0, {package!r})
from memctl_agent._lifecycle import Lifecycle
def end(failure):
    lifecycle.remove()
    print("ended:", failure, flush=True)
sys.excepthook = lambda kind, error, traceback: print("theirs:", error, flush=True)
lifecycle = Lifecycle(end)
lifecycle.install()
{code}
"""


@pytest.mark.parametrize(
    ("code", "output", "status"),
    [
        ("pass", "ended: None\n", 0),
        ("raise ValueError('broken')", "theirs: broken\nended: ValueError: broken\n", 1),
        ("sys.exit(3)", "ended: exit code 3\n", 3),
        ("sys.exit()", "ended: None\n", 0),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    lifecycle.goes_on()", "ended: None\n", 0),
        ("import threading; t = threading.Thread(target=sys.exit, args=(2,)); t.start(); t.join()", "ended: None\n", 0),
        ("import os; os._exit(5)", "", 5),
    ],
)
def test_ends_of_a_process(code: str, output: str, status: int) -> None:
    text = ENDS.format(package=str(PACKAGE), code=code)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (output, status), done.stderr


def test_hooks_of_the_interpreter_come_back() -> None:
    before = (sys.excepthook, sys.exit)
    lifecycle = Lifecycle(lambda failure: None)
    lifecycle.install()
    assert (sys.excepthook, sys.exit) != before
    lifecycle.remove()
    assert (sys.excepthook, sys.exit) == before


def test_an_interrupt_at_the_end_prints_nothing() -> None:
    def interrupted(failure: object) -> None:
        raise KeyboardInterrupt

    Lifecycle(interrupted)._at_exit()


def test_import_has_no_side_effect() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); hook = sys.excepthook; import memctl_agent; "
        "print('torch' in sys.modules, hook is sys.excepthook, memctl_agent.status()['state'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False True off\n", "")


def test_without_a_session_every_call_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMCTL_DISABLED", "1")
    assert memctl_agent.attach() is False
    with memctl_agent.epoch(1), memctl_agent.step(2), memctl_agent.phase("train"), memctl_agent.region("r"):
        memctl_agent.note("n")
    assert memctl_agent.detach() is None
    assert memctl_agent.status()["attached"] is False


# -- the shim's cache ----------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMCTL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shim"


SOURCE = '#include <c10/macros/Macros.h>\nextern "C" int memctl_shim_abi() { return 1; }\n'


def test_compiled_once_then_found(cache: Path) -> None:
    made = _shim.ensure(torch, SOURCE)
    assert made.origin == "compiled" and made.path.parent == cache
    assert _shim.ensure(torch, SOURCE) == _shim.Shim(made.path, "cache")
    assert {path.suffix for path in cache.iterdir()} == {".so", ".lock"}
    assert _shim.ensure(torch, SOURCE + "//").path != made.path


def test_a_source_that_does_not_compile_names_the_log(cache: Path) -> None:
    with pytest.raises(_shim.ShimError, match=r"could not compile the shim for torch .*; see .*\.log") as raised:
        _shim.ensure(torch, "this is no C++")
    assert b"error" in Path(str(raised.value).rsplit("see ", 1)[1]).read_bytes()
    assert not list(cache.glob("*.so"))


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-there")
    with pytest.raises(_shim.ShimError, match=r"install g\+\+ or set CXX"):
        _shim.ensure(torch, SOURCE)


def test_a_folder_that_others_can_write_is_not_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    made = _shim.ensure(torch, SOURCE)
    assert cache not in made.path.parents and made.origin == "compiled"
    made.path.unlink()
    made.path.parent.rmdir()


def test_the_packages_hook_is_for_exactly_one_build(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged, hook = tmp_path / "packaged.so.gz", tmp_path / "hook.so"
    monkeypatch.setattr(_shim, "prebuilt", lambda torch: packaged)

    def packs(text: bytes) -> bytes:
        hook.write_bytes(text)
        _shim.pack(hook, packaged)
        return text

    fits = packs(b"\x7fELF\0memctl-hook-for: " + _shim.build_of(torch).encode() + b"\0rest")
    taken = _shim.ensure(torch, SOURCE)
    assert taken.origin == "package" and taken.path.parent == cache and taken.path.read_bytes() == fits
    assert _shim.ensure(torch, SOURCE) == _shim.Shim(taken.path, "cache")
    assert [file.name for file in cache.iterdir()] == [taken.path.name], "nothing half unpacked is left"
    # A packaged hook for another commit, one without a build, and one that is cut short: each is compiled instead.
    packs(f"memctl-hook-for: {torch.__version__} {'0' * 40}\0".encode())
    assert _shim.ensure(torch, SOURCE + "// another").origin == "compiled"
    packs(b"")
    assert _shim.ensure(torch, SOURCE + "//").origin == "compiled"
    packs(fits)
    packaged.write_bytes(packaged.read_bytes()[:-4])
    assert _shim.ensure(torch, SOURCE + "// short").origin == "compiled"
    # If it cannot be compiled, the error gives both reasons.
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-there")
    packs(b"memctl-hook-for: 1.0.0 abc\0")
    both = r"no C\+\+ compiler .*package's shim was built for torch 1\.0\.0 abc, this"
    with pytest.raises(_shim.ShimError, match=both):
        _shim.ensure(torch, SOURCE + "// other")


def test_a_compiled_hook_says_what_it_was_built_for(cache: Path) -> None:
    source = (PACKAGE.parent / "shim" / "shim.cpp").read_text()
    assert _shim.built_for(_shim.ensure(torch, source).path) == _shim.build_of(torch)


def test_ranks_compile_once(cache: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); import torch; from memctl_agent import _shim; "
        f"print(_shim.ensure(torch, {SOURCE!r}).origin)"
    )
    ranks = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(rank.communicate(timeout=300)[0].strip() for rank in ranks) == ["cache", "cache", "compiled"]


def test_facts_about_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.cuda.init()
    assert _torch.hookable(torch).level == "full"
    devices = _torch.devices(torch)
    assert len(devices) == torch.cuda.device_count() and devices[0][3] == torch.cuda.mem_get_info(0)[1]
    assert devices[0][1] is None or devices[0][1].startswith("GPU-")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")
    assert _torch.hookable(torch).level == "off"


@pytest.mark.parametrize(
    ("conf", "code", "level"),
    [("backend:cudaMallocAsync", "", "blocks"), ("", "torch.cuda.memory.change_current_allocator(a)", "off")],
)
def test_allocators_that_cannot_be_watched(conf: str, code: str, level: str, tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(
        '#include <cstddef>\nextern "C" void* make(size_t, int, void*) { return nullptr; }\n'
        'extern "C" void drop(void*, size_t, int, void*) {}\n'
    )
    library = tmp_path / "a.so"
    subprocess.run(["g++", "-shared", "-fPIC", str(tmp_path / "a.cpp"), "-o", str(library)], check=True)
    text = (
        f"import sys; sys.path.insert(0, {str(PACKAGE)!r})\nimport torch\nfrom memctl_agent import _torch\n"
        f"a = torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, 'make', 'drop')\n{code}\n"
        "print(_torch.hookable(torch).level)\n"
    )
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": conf}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == f"{level}\n", done.stderr
