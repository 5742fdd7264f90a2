"""Attaches memctl's agent to Python programs that import torch. `memctl run` puts this folder at the front of
PYTHONPATH.

torch is detected by its import, even if an earlier lookup found nothing. If torch is loaded without an import, it is
detected by the modules that it imports itself.
Guarantees: for a program that does not import torch, nothing more is imported than before. If this `sitecustomize`
hides another one, the other one runs as well. PYTHONPATH stays unchanged for child processes. The result is reported to
the launcher, so that the launcher can explain why nothing was recorded.
If MEMCTL_DISABLED is set, this file does nothing. It runs on every Python 3, and does no harm on Python 2.7.
"""

# This file must also run on old interpreters, so these rules do not apply:
# ruff: noqa: UP004, UP031, SIM105
import os
import sys

# The size limit of the launcher's file. A build may start thousands of Python processes.
_SEEN_BYTES_MAX = 256 << 10


class _TorchWatch(object):
    """A finder of modules that waits for torch. It finds no modules itself."""

    def __init__(self):
        # Number of executions of torch that have not ended. The end of each is reported.
        self.executing = 0

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            if name.startswith("torch."):
                self.look()
            return None
        # The caller may only check whether torch exists. So the next lookup is watched as well.
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self.watch(getattr(spec, "loader", None))
                return spec
        return None

    # Python 2 calls this function. It finds nothing.
    def find_module(self, name, path=None):
        return None

    def watch(self, loader):
        """Makes the loader report when it has executed torch."""
        execute = getattr(loader, "exec_module", None)
        if execute is None or hasattr(execute, "memctl_watch"):
            # torch is a package without code, or the loader is watched already.
            return

        def exec_module(module):
            # The original loader is restored before torch or other code can read it.
            loader.__dict__.pop("exec_module", None)
            self.executing += 1
            try:
                execute(module)
            finally:
                self.executing -= 1
            # (After a failed import, the program may import torch again.)
            self.arm()

        vars(exec_module)["memctl_watch"] = self
        try:
            loader.exec_module = exec_module
        except AttributeError:
            # This kind of loader accepts no attributes. `look` detects torch instead.
            pass

    def look(self):
        """torch imports its own parts, although no import of it was seen. So it was loaded in another way. Its CUDA
        part is among the first parts."""
        torch = None if self.executing else sys.modules.get("torch")
        cuda = None if torch is None else vars(torch).get("cuda")
        if cuda is not None and hasattr(cuda, "_lazy_call"):
            self.arm()

    def arm(self):
        self.leave()
        _arm()

    def enter(self):
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def leave(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _is_disabled():
    return os.environ.get("MEMCTL_DISABLED", "") not in ("", "0")


def _arm():
    if _is_disabled():
        return
    _note("torch")
    try:
        from memctl_agent import _auto
    except Exception as error:
        _tell(error)
        return
    try:
        _auto.arm()
    except Exception as error:
        _tell(error)


def _tell(error):
    """Prints one line, from the first process of the first local rank. Its children inherit an environment variable,
    and so they print nothing."""
    # The wheel is not published. A package with this name in an index would be a different one.
    how = "%s -m pip install memctl_agent-*.whl" % sys.executable
    text = "%s cannot import memctl_agent (%s); install memctl's wheel there: `%s`" % (sys.executable, error, how)
    _note("why " + text)
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) != "0" or "MEMCTL_TOLD" in os.environ:
        return
    os.environ["MEMCTL_TOLD"] = "1"
    try:
        sys.stderr.write("memctl: %s, this program runs unrecorded\n" % text)
    except Exception:
        pass


def _note(text):
    """Writes a line into a file that the launcher created. Without a launcher there is no file."""
    socket = os.environ.get("MEMCTL_RUN_SOCKET")
    if not socket:
        return
    try:
        descriptor = os.open(os.path.join(os.path.dirname(socket), "seen"), os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(descriptor).st_size < _SEEN_BYTES_MAX:
                line = "%d %s" % (os.getpid(), " ".join(text.split()))
                os.write(descriptor, line.encode("utf-8", "replace")[:2000] + b"\n")
        finally:
            os.close(descriptor)
    except Exception:
        # The launcher no longer exists. The program continues.
        pass


def _run_the_hidden_one():
    """Removes this folder from sys.path, and imports the `sitecustomize` that is then found."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if not folder or os.path.abspath(folder) != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401  # pyright: ignore
    except ImportError as error:
        # There is no other `sitecustomize`. (If there is one and it fails, `site` reports its error.)
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        # The import of `sitecustomize` succeeds in both cases.
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


if not _is_disabled() and sys.version_info >= (3,):
    _TorchWatch().enter()
    _note("started")
_run_the_hidden_one()
