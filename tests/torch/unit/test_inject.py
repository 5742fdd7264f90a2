"""The effects of the injected `sitecustomize` in a genuine interpreter, and above all what it does not change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "agent" / "python"
INJECT = PACKAGE / "memctl_agent" / "inject"
# A package that only has the name: the hook is about its import. Genuine torch is imported in one test below.
NAMED_TORCH = "import sys\nsys.stdout.write('torch runs\\n')\n"


@pytest.fixture
def named_torch(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(NAMED_TORCH)
    return folder


def run(
    code: str, *folders: Path, options: tuple[str, ...] = (), env: Optional[dict[str, str]] = None
) -> subprocess.CompletedProcess[str]:
    """A Python in the environment of `memctl run`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMCTL_")}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, (INJECT, *folders))), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("LOCAL_RANK", None)
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        env=environment | (env or {}),
        timeout=300,
        check=False,
    )


def test_without_torch_nothing_is_imported() -> None:
    done = run(
        "import sys, os, json; print([m for m in sys.modules if 'memctl' in m], "
        f"{str(INJECT)!r} in sys.path, os.environ['PYTHONPATH'].startswith({str(INJECT)!r}))",
        PACKAGE,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[] False True\n", "", 0)


def test_torch_attaches_once_it_is_there(named_torch: Path) -> None:
    code = "import torch, sys; print('memctl_agent._auto' in sys.modules, vars(torch.__spec__.loader).keys())"
    done = run(code, PACKAGE, named_torch)
    assert done.stdout.startswith("torch runs\nTrue dict_keys(['name', 'path'])"), done
    assert done.returncode == 0


# Ways in which programs import torch; after each, torch must be observed exactly once.
WAYS = {
    "asked for first": "import importlib.util as u; u.find_spec('torch'); u.find_spec('torch'); import torch",
    "asked for by finders": "import sys; [f.find_spec('torch', None) for f in list(sys.meta_path)]; import torch",
    "import_module": "import importlib; importlib.import_module('torch')",
    "a part first": "import torch.cuda",
    "from": "from torch import cuda",
    "spec and loader by hand": (
        "import importlib.util as u, sys; spec = u.find_spec('torch'); module = u.module_from_spec(spec); "
        "sys.modules['torch'] = module; spec.loader.exec_module(module)"
    ),
    "from its file": (
        "import importlib.util as u, sys; path = u.find_spec('torch').origin; "
        "spec = u.spec_from_file_location('torch', path); module = u.module_from_spec(spec); "
        "sys.modules['torch'] = module; spec.loader.exec_module(module)"
    ),
    "lazily": (
        "import importlib.util as u, sys; spec = u.find_spec('torch'); spec.loader = u.LazyLoader(spec.loader); "
        "module = u.module_from_spec(spec); sys.modules['torch'] = module; spec.loader.exec_module(module); "
        "assert 'memctl_agent' not in sys.modules; module.cuda"
    ),
    "a finder in front": (
        "import importlib.machinery as m, sys\n"
        "class Front:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        return m.PathFinder.find_spec(name, path) if name == 'torch' else None\n"
        "sys.meta_path.insert(0, Front)\nimport torch"
    ),
    "several threads": (
        "import threading\nthreads = [threading.Thread(target=__import__, args=('torch',)) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_way_torch_comes_in_it_is_seen_once(way: str, named_torch: Path, tmp_path: Path) -> None:
    # As torch does: parts of it are imported by itself, behind its CUDA part.
    (named_torch / "torch" / "__init__.py").write_text("from torch import cuda\nfrom torch import parts\n")
    (named_torch / "torch" / "cuda.py").write_text("def _lazy_call(call): pass\n")
    (named_torch / "torch" / "parts.py").write_text("")
    seen = tmp_path / "seen"
    seen.touch()
    code = WAYS[way] + "\nimport sys; print('memctl_agent._auto' in sys.modules, len(sys.meta_path))"
    plain = run("import sys; print(len(sys.meta_path))", named_torch, env={"MEMCTL_DISABLED": "1"})
    done = run(code, PACKAGE, named_torch, env={"MEMCTL_RUN_SOCKET": str(tmp_path / "socket")})
    more = int(way == "a finder in front")
    assert done.stdout == f"True {int(plain.stdout) + more}\n" and done.returncode == 0, done
    words = [line.split(" ", 2)[1] for line in seen.read_text().splitlines()]
    assert words[:2] == ["started", "torch"] and "torch" not in words[2:], words


def test_a_question_alone_attaches_nothing(named_torch: Path) -> None:
    code = "import importlib.util as u, sys; print(u.find_spec('torch').name, 'memctl_agent' in sys.modules)"
    assert run(code, PACKAGE, named_torch).stdout == "torch False\n"


def test_without_a_launcher_nothing_is_written(named_torch: Path, tmp_path: Path) -> None:
    done = run("import torch", PACKAGE, named_torch, env={"MEMCTL_RUN_SOCKET": str(tmp_path / "gone" / "socket")})
    assert done.returncode == 0 and list(tmp_path.iterdir()) == [named_torch], done


def test_disabled(named_torch: Path) -> None:
    code = "import torch, sys; print('memctl_agent' in sys.modules)"
    done = run(code, PACKAGE, named_torch, env={"MEMCTL_DISABLED": "1"})
    assert (done.stdout, done.stderr) == ("torch runs\nFalse\n", "")


@pytest.mark.parametrize("options", [("-I",), ("-S",), ("-E",), ("-s",), ("-O",)])
def test_switches_of_the_interpreter(options: tuple[str, ...]) -> None:
    done = run("print(1)", PACKAGE, options=options)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


def test_package_missing_is_told_once(named_torch: Path) -> None:
    code = (
        "import torch, subprocess, sys, os\n"
        "sys.exit(subprocess.run([sys.executable, '-c', 'import torch']).returncode)\n"
    )
    done = run(code, named_torch)
    assert done.returncode == 0
    assert done.stdout == "torch runs\n" * 2
    assert len(done.stderr.splitlines()) == 1 and "-m pip install memctl_agent-*.whl" in done.stderr
    assert run(code, named_torch, env={"LOCAL_RANK": "1"}).stderr == ""


def test_the_hidden_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.hidden = __file__\n")
    done = run("import sitecustomize; print(hidden == sitecustomize.__file__, hidden)", PACKAGE, tmp_path)
    assert done.stdout == f"True {tmp_path / 'sitecustomize.py'}\n" and done.stderr == ""


def test_errors_of_the_hidden_sitecustomize_are_reported_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import a_module_that_is_not_there\n")
    ours = run("print(1)", PACKAGE, tmp_path)
    plain = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert ours.stdout == plain.stdout == "1\n"
    assert ours.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1] != ""


def test_torch_that_fails_to_import_fails_as_ever_and_may_be_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "packages" / "torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import os\nif 'READY' not in os.environ: raise OSError('libcudart')\n")
    code = (
        "import os, sys\n"
        "try:\n    import torch\nexcept OSError as error:\n    print(error, 'torch' in sys.modules)\n"
        "os.environ['READY'] = '1'\nimport torch\nprint('memctl_agent._auto' in sys.modules)\n"
    )
    done = run(code, PACKAGE, folder.parent)
    assert done.stdout == "libcudart False\nTrue\n", done


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_inherit(named_torch: Path, tmp_path: Path, method: str) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "def child():\n    import torch\n    print('memctl_agent._auto' in sys.modules, flush=True)\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=child)\n"
        "    process.start(); process.join(); sys.exit(process.exitcode)\n"
    )
    done = run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", PACKAGE, named_torch, tmp_path)
    assert "torch runs\nTrue\n" in done.stdout and done.returncode == 0, done


def test_genuine_torch_is_imported_and_cuda_left_alone() -> None:
    code = "import torch; print(torch.cuda.is_initialized(), torch.zeros(2).sum().item(), torch.__spec__.loader.name)"
    done = run(code, PACKAGE)
    assert done.stdout == "False 0.0 torch\n" and done.returncode == 0, done
