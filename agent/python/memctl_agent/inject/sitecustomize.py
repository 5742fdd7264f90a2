"""Put in front of PYTHONPATH by `memctl run`: attaches memctl's agent to Python programs that import torch.

Guarantees: a program that does not import torch imports nothing more than before; the `sitecustomize` that
this one hides runs as if this one were not there; PYTHONPATH stays as it is, for the children.
Refuses: to do anything where MEMCTL_DISABLED is set. Runs on any Python 3, and on 2.7 does no harm.
"""

# Written for old interpreters too:
# ruff: noqa: UP004, UP031, SIM105
import os
import sys


class _TorchWatch(object):
    """Waits for the import of torch; finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        self.leave()
        import importlib.util

        spec = importlib.util.find_spec(name)
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            # Not found yet, or a package without code.
            self.enter()
            return spec
        execute = loader.exec_module

        def exec_module(module):
            # The loader is left as it was before torch, or anything else, looks at it.
            loader.__dict__.pop("exec_module", None)
            try:
                execute(module)
            except BaseException:
                # It may be tried again.
                self.enter()
                raise
            _arm()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            # A loader of some other kind that takes no attributes: torch is imported unwatched.
            pass
        return spec

    # Python 2 asks this way and gets no answer.
    def find_module(self, name, path=None):
        return None

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
    """One line, from the first process of the first local rank: what it starts inherits the note of it."""
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) != "0" or "MEMCTL_TOLD" in os.environ:
        return
    os.environ["MEMCTL_TOLD"] = "1"
    try:
        sys.stderr.write(
            "memctl: %s cannot import memctl_agent (%s); install it there with `pip install memctl-agent`, "
            "this program runs unrecorded\n" % (sys.executable, error)
        )
    except Exception:
        pass


def _run_the_hidden_one():
    """Removes this folder from sys.path and imports what `sitecustomize` means without it."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if not folder or os.path.abspath(folder) != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401  # pyright: ignore
    except ImportError as error:
        # There is none. (What the hidden one fails with is its own and goes on to `site`, which reports it.)
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        # Whoever asks for the module gets one either way.
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


if not _is_disabled() and sys.version_info >= (3,):
    _TorchWatch().enter()
_run_the_hidden_one()
