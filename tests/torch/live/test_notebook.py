"""The magic `%%memctl` and `show()` in a real Jupyter kernel on the fake GPU. nbclient runs whole notebooks.

A notebook takes seconds, so one has most of what is tested; its cells are found by a name in their first comment.
"""

from __future__ import annotations

import html
import json
import os
import pathlib
import re
import sys
from typing import Any

import pytest

from conftest import Daemon, Memctl

nbformat = pytest.importorskip("nbformat", reason="Jupyter is installed for the last torch only")

# As in the other live tests: a busy machine takes minutes.
LIMIT_S = 600


class Cell:
    """A cell that has run: its number, its texts and its HTML, and the exception if it raised one."""

    def __init__(self, cell: Any) -> None:
        outputs = cell.outputs
        self.number = cell.execution_count
        shown = [output.data for output in outputs if output.output_type == "display_data"]
        self.text = "\n".join(data["text/plain"] for data in shown)
        self.html = "\n".join(data.get("text/html", "") for data in shown)
        self.result = [output.data["text/plain"] for output in outputs if output.output_type == "execute_result"]
        self.stdout = "".join(output.text for output in outputs if output.get("name") == "stdout")
        self.stderr = "".join(output.text for output in outputs if output.get("name") == "stderr")
        self.error = next(((one.ename, one.evalue) for one in outputs if one.output_type == "error"), None)
        self.kinds = [output.output_type for output in outputs]

    def line(self, words: str) -> list[str]:
        """The row with these words, and the holders below it."""
        lines = self.text.splitlines()
        at = next(at for at, line in enumerate(lines) if words in line)
        rows = [lines[at]]
        for line in lines[at + 1 :]:
            if "held by:" not in line:
                break
            rows.append(line.split("held by: ", 1)[1])
        return rows


def run_notebook(memctl: Memctl, cells: str, monkeypatch: pytest.MonkeyPatch, **settings: str) -> dict[str, Cell]:
    """Runs a notebook in a kernel of this venv. The name of a cell is in the comment `# -- NAME` before it."""
    from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

    kernel = memctl.folder / "jupyter" / "kernels" / "fake"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    environment = {**memctl.environment, "IPYTHONDIR": str(memctl.folder / "ipython"), **settings}
    spec = {"argv": argv, "display_name": "fake", "language": "python", "env": environment}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    # Jupyter's own files stay with the test, and no other kernel of this machine is found.
    monkeypatch.setenv("JUPYTER_PATH", str(memctl.folder / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(memctl.folder / "runtime"))
    for name in [name for name in os.environ if name.startswith("MEMCTL_")]:
        monkeypatch.delenv(name)
    parts = re.split(r"^# -- (.+)\n", cells, flags=re.MULTILINE)[1:]
    names, sources = parts[::2], [text.strip("\n") for text in parts[1::2]]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=LIMIT_S, startup_timeout=LIMIT_S, kernel_name="fake", allow_errors=True).execute(
        cwd=str(memctl.folder)
    )
    return {name: Cell(cell) for name, cell in zip(names, notebook.cells)}


NOTEBOOK = """
# -- prepare
%load_ext memctl_agent
import sys, weakref
KEPT, MIB = [], 1 << 20
assert "IPython" in sys.modules and "memctl_agent._usage._history" in sys.modules
# -- functions
import torch

def make(size):
    return torch.empty(size * MIB, dtype=torch.uint8, device="cuda")

def remember(size):
    KEPT.append(make(size))
# -- leak
%%memctl
x = make(4)
remember(1)
y = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
z = make(3); w = torch.empty(MIB, dtype=torch.uint8, device="cuda")
passing = make(64)
del passing
# -- leak again
%%memctl
remember(1)
# -- output
%%memctl
make(5)
# -- also
%%memctl
shared = make(6)
shared
# -- silent
%%memctl
make(7);
# -- raises
%%memctl
def failing():
    local = make(8)
    raise ValueError("its own")
failing()
# -- wrong
%%memctl
if True print(1)
# -- awaits
%%memctl --lines 1
import asyncio
await asyncio.sleep(0)
first, second = make(2), torch.empty(MIB, dtype=torch.uint8, device="cuda")
# -- option
%%memctl --top 3
third = make(1)
print("ran")
# -- timed
%%memctl
%%time
fourth = make(1)
# -- below
# a comment
%%memctl
# -- unmeasured
fifth = make(1)
# -- state
%memctl
# -- clear
%memctl clear
# -- after clear
print(sorted(Out), repr(_))
# -- next output
1 + 1
# -- last output
_ + 1
# -- on
%memctl on
# -- measured
sixth = make(1)
# -- unused
1
# -- gone
number = id(sixth)
watch = weakref.ref(sixth)
del sixth
print(watch() is None)
# -- off
%memctl off
# -- history
torch.cuda.memory._record_memory_history("all")
# -- taken
%%memctl
seventh = make(1)
# -- unload
%unload_ext memctl_agent
# -- left
print(torch._C._cuda_isHistoryEnabled(), hasattr(torch._C._cuda_record_memory_history, "__wrapped__"))
# -- no magic
%memctl
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield run_notebook(Memctl(tmp_path_factory.mktemp("n")), NOTEBOOK, monkeypatch)


def test_a_leak_across_cells_has_its_cell_its_line_and_its_holder(ran: dict[str, Cell]) -> None:
    leak, again, made = ran["leak"], ran["leak again"], ran["functions"].number
    assert f"Cell In[{leak.number}] allocated 75.0 MiB at its peak; 11.0 MiB in 5 blocks stayed alive" in leak.text
    inner = f"Cell In[{made}], line 4 in make"
    assert leak.line(f"Cell In[{leak.number}], line 3: {inner}") == [
        f"     1.0 MiB in 1 block  Cell In[{leak.number}], line 3: {inner}",
        "list `KEPT` of module `__main__`, 1 tensor",
    ]
    assert leak.line(f"Cell In[{leak.number}], line 2: {inner}")[1:] == ["tensor `x` of module `__main__`"]
    assert leak.line(f"Cell In[{leak.number}], line 4")[1:] == ["tensor `y` of module `__main__`"]
    # One line made two blocks, which two variables hold.
    assert leak.line(f"line 5: {inner}")[1:] == ["tensor `z` of module `__main__`"]
    assert leak.line(f"Cell In[{leak.number}], line 5")[0].startswith(("     3.0 MiB", "     1.0 MiB"))
    assert again.line(f"Cell In[{again.number}], line 2: {inner}")[1:] == [
        "list `KEPT` of module `__main__`, 2 tensors"
    ]
    assert "allocated before the cell                 11.0 MiB" in again.text, again.text


def test_the_output_history_is_named_as_a_holder(ran: dict[str, Cell]) -> None:
    cell = ran["output"]
    [holder] = cell.line(f"Cell In[{cell.number}], line 2")[1:]
    assert holder.startswith(f"tensor `Out[{cell.number}]` of the notebook's output history"), holder
    assert "`%memctl clear` empties it, and `;` at the end of a cell" in holder
    assert cell.result and cell.kinds == ["execute_result", "display_data"], "the cell's own output stays"
    [holder] = ran["also"].line(f"Cell In[{ran['also'].number}], line 2")[1:]
    assert holder.startswith("tensor `shared` of module `__main__`; `Out[") and "holds it, too" in holder, holder
    assert "nothing of it stayed alive" in ran["silent"].text and not ran["silent"].result


def test_a_cells_exception_stays_its_own(ran: dict[str, Cell]) -> None:
    cell = ran["raises"]
    assert cell.error == ("ValueError", "its own")
    [holder] = cell.line(f"Cell In[{cell.number}], line 3")[1:]
    assert holder.startswith("tensor `local`, a local variable of function `failing`, kept by"), holder
    assert "the notebook's last exception; `%memctl clear` forgets it" in holder, holder
    assert ran["wrong"].error and ran["wrong"].error[0] == "SyntaxError" and not ran["wrong"].text


def test_cells_with_await_options_and_other_magic_run_as_ever(ran: dict[str, Cell]) -> None:
    awaits = ran["awaits"]
    assert not awaits.error and "2.0 MiB in 1 block" in awaits.text, awaits.text
    assert "1.0 MiB of 1 other lines: `%%memctl --lines 2` lists them" in awaits.text
    option = ran["option"]
    assert option.stdout == "ran\n" and "`--top 3` is no option" in option.text and "1.0 MiB in 1 block" in option.text
    assert "Wall time" in ran["timed"].stdout and "1.0 MiB in 1 block" in ran["timed"].text
    assert "has an effect only as the first line of a cell" in ran["below"].text
    assert not ran["unmeasured"].text and not ran["unmeasured"].stdout


def test_every_cell_can_be_measured_and_nothing_is_kept(ran: dict[str, Cell]) -> None:
    assert "this process is not recorded" in ran["state"].text and "cuda:0" in ran["state"].text
    assert "1.0 MiB in 1 block stayed alive" in ran["measured"].text and not ran["unused"].text
    assert ran["gone"].stdout == "True\n"
    assert "records PyTorch's memory history itself" in ran["taken"].text, ran["taken"].text
    assert ran["left"].stdout == "True False\n", "the notebook's own history goes on"
    assert "Line magic function `%memctl` not found" in ran["no magic"].stderr


def test_clear_frees_outputs_and_the_last_exception(ran: dict[str, Cell]) -> None:
    # The output of 5 MiB and the local variable of 8 MiB; `shared` is still the program's.
    assert re.search(r"1[34]\.\d MiB were freed", ran["clear"].text), ran["clear"].text
    assert ran["after clear"].stdout == "[] ''\n"
    assert ran["next output"].result == ["2"] and ran["last output"].result == ["3"]


def test_the_html_is_plain(ran: dict[str, Cell]) -> None:
    text = ran["leak"].html
    assert "<script" not in text and "http" not in text and "Cell In[" in text
    assert "`KEPT` of module `__main__`" in text and "color" not in text.replace("background", ""), text


ATTACHED = """
# -- attach
%load_ext memctl_agent
import memctl_agent, torch
memctl_agent.attach(job="book", daemon=DAEMON)
KEPT = []
# -- before
memctl_agent.show()
# -- train
%%memctl
for number in range(40):
    KEPT.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
# -- show
memctl_agent.show(height=300)
# -- state
%memctl
# -- none
memctl_agent.show("other")
# -- detached
memctl_agent.detach()
memctl_agent.show()
"""


def test_show_has_the_report_inline(memctl: Memctl, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(memctl)
    try:
        cells = run_notebook(memctl, ATTACHED.replace("DAEMON", repr(daemon.url)), monkeypatch)
    finally:
        daemon.stop()
    assert "no report: this process is not recorded: recording begins when CUDA is" in cells["before"].text
    assert "40.0 MiB in 40 blocks" in cells["train"].text, cells["train"].text
    shown = cells["show"]
    assert "the report about job book" in shown.text and not shown.error, shown.text
    [document] = re.findall(r'srcdoc="([^"]*)"', shown.html)
    page = html.unescape(document)
    assert (
        page.lower().startswith("<!doctype html>")
        and "Content-Security-Policy" in page
        and "height:300px" in shown.html
    )
    assert shown.html.count("<iframe") == 1 and 'sandbox="allow-scripts"' in shown.html
    assert "this process is recorded as job book" in cells["state"].text
    assert "no report: " in cells["none"].text and "other" in cells["none"].text, cells["none"].text
    assert "call memctl_agent.attach() first" in cells["detached"].text


WITHOUT = """
# -- load
import sys
import memctl_agent
before = [name for name in sys.modules if name.startswith("memctl_agent._notebook")]
%load_ext memctl_agent
# -- cell
%%memctl
value = 6 * 7
value
# -- state
%memctl
# -- show
memctl_agent.show()
# -- lazy
print(before)
"""


@pytest.mark.parametrize("missing", ["device", "torch"])
def test_without_cuda_or_torch_the_cell_runs(memctl: Memctl, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    settings = {"FAKE_GPU_COUNT": "0"}
    if missing == "torch":
        (memctl.folder / "torch.py").write_text('raise ModuleNotFoundError("No module named \'torch\'", name="torch")')
        settings = {"PYTHONPATH": os.pathsep.join([str(memctl.folder), memctl.environment["PYTHONPATH"]])}
    cells = run_notebook(memctl, WITHOUT, monkeypatch, **settings)
    why = {"device": "no CUDA device", "torch": "torch is not installed"}[missing]
    assert cells["cell"].result == ["42"] and not cells["cell"].error and not cells["cell"].stderr
    assert cells["cell"].text == f"memctl: the cell was not measured: {why}", cells["cell"].text
    assert "CUDA is not in use in this process" in cells["state"].text
    assert "no report: this process is not recorded" in cells["show"].text
    assert cells["lazy"].stdout == "[]\n"


def test_the_package_imports_no_ipython() -> None:
    import subprocess

    code = "import sys, memctl_agent; sys.exit(any(name.startswith('IPython') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=LIMIT_S).returncode == 0


def test_the_example_of_the_documentation_runs(memctl: Memctl, monkeypatch: pytest.MonkeyPatch) -> None:
    page = pathlib.Path(__file__).parents[3] / "docs" / "integrations.md"
    section = page.read_text().split("## Notebooks", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    [expected] = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    monkeypatch.setenv("MEMCTL_SERVICE", "off")
    found = run_notebook(memctl, "".join(f"# -- {at}\n{cell}" for at, cell in enumerate(cells)), monkeypatch)
    texts = "\n".join(cell.text for cell in found.values())
    assert not any(cell.error for cell in found.values()), texts
    assert expected.strip() in texts, texts
