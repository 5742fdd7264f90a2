"""Lists and calls everything that `memctl mcp` offers, with the official Python client.

    client.py MEMCTL

Both transports (standard streams, streamable HTTP) are used with the current protocol and with the handshake of older
clients. The client checks every answer against the tool's schema. Exits with 1 and the reason if something differs.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from mcp import Client, StdioServerParameters

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RECORDINGS = ROOT / "tests" / "data" / "recordings"
JOBS = ("gpt_clean", "oom_by_fragmentation", "gpt_val_graph_leak")
ANSWER_BYTES_MAX = 24_000

ARGUMENTS: dict[str, dict[str, object]] = {
    "jobs": {},
    "explain": {"term": "reserved"},
    "fit": {"recordings": ["gpt_clean=4"], "at": [8]},
    "diff": {"runs": ["gpt_clean", "gpt_val_graph_leak"]},
    "oom": {"job": "oom_by_fragmentation"},
    "search_holders": {"job": "gpt_val_graph_leak", "budget_ms": 1},
}


def quiet(*words: object, env: dict[str, str]) -> None:
    """Runs a command that must succeed, without its output."""
    subprocess.run([str(word) for word in words], env=env, check=True, stdout=subprocess.DEVNULL)


def environment(store: pathlib.Path) -> dict[str, str]:
    """Without this machine's own daemon: each command opens the store itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMCTL_")}
    return {**kept, "MEMCTL_SERVICE": "off", "XDG_RUNTIME_DIR": str(store)}


async def call(client: Client, tool: str) -> dict[str, object]:
    """The structured content of one tool; ends the test if the tool fails, or its answer is too large."""
    result = await client.call_tool(tool, ARGUMENTS.get(tool, {"job": "gpt_val_graph_leak"}))
    if tool == "search_holders":
        assert result.is_error, "a recording that has ended cannot be searched"
        return {}
    assert not result.is_error, f"{tool}: {result.content}"
    content = result.structured_content
    assert isinstance(content, dict), f"{tool}: {result}"
    size = len(result.model_dump_json(by_alias=True, exclude_none=True).encode())
    assert size <= ANSWER_BYTES_MAX, f"{tool} answers {size} bytes"
    assert content["next"], f"{tool} names no next question"
    return content


async def talk(server: StdioServerParameters | str, mode: str, verdict: str) -> None:
    """Lists and calls everything over one connection."""
    async with Client(server, mode=mode, read_timeout_seconds=120) as client:
        tools = (await client.list_tools()).tools
        assert len(tools) >= 15, tools
        for tool in tools:
            assert tool.description and tool.output_schema, tool
            assert tool.annotations is not None, tool
            assert tool.annotations.read_only_hint == (tool.name != "search_holders"), tool
            content = await call(client, tool.name)
            if tool.name == "verdict":
                answer = content["answer"]
                assert isinstance(answer, dict)
                assert answer["verdict"]["sentence"] == verdict, answer["verdict"]
        resources = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
        addresses = [str(resource.uri) for resource in resources]
        addresses += [template.uri_template.replace("{job}", "gpt_clean") for template in templates]
        assert "memctl://docs/llms.txt" in addresses, addresses
        for address in addresses:
            read = await client.read_resource(address)
            assert len(read.contents[0].text) > 500, address
        print(f"  {mode}: {len(tools)} tools, {len(addresses)} resources, protocol {client.protocol_version}")


class Served:
    """A program that serves until the block ends; it must end well at SIGTERM. Gives its first line."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self.words, self.env = words, env

    def __enter__(self) -> str:
        self.process = subprocess.Popen(self.words, env=self.env, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        assert self.process.wait() == 0, self.words


def documented() -> str:
    """The example for this client in docs/integrations.md."""
    section = (ROOT / "docs" / "integrations.md").read_text().split("## Assistants (MCP)")[1]
    return section.split("```python\n")[1].split("```")[0]


def run_example(memctl: str, folder: str, env: dict[str, str]) -> None:
    """Runs the documents' example as a user with one recorded job does."""
    home = {**env, "HOME": folder, "PATH": f"{pathlib.Path(memctl).parent}:{env['PATH']}"}
    home.pop("XDG_DATA_HOME", None)
    quiet(memctl, "import", "-q", "--job", "val", RECORDINGS / JOBS[-1], env=home)
    try:
        words = [sys.executable, "-c", documented()]
        shown = subprocess.run(words, env=home, check=True, capture_output=True, text=True).stdout
    finally:
        # The client hands on few variables, so the server has started the local service.
        quiet(memctl, "daemon", "stop", "-q", env={**home, "MEMCTL_SERVICE": "on"})
    assert "validate_keeping_graph" in shown and "diagnose" in shown, shown
    print("the example of docs/integrations.md")


def main() -> None:
    memctl = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="mcp-") as folder:
        store = pathlib.Path(folder)
        env = environment(store)
        place = ["--data-dir", str(store / "store")]
        for job in JOBS:
            quiet(memctl, "import", "-q", "--job", job, RECORDINGS / job, *place, env=env)
        query = [memctl, "query", "gpt_val_graph_leak", "-o", "json", *place]
        report = json.loads(subprocess.run(query, env=env, check=True, capture_output=True).stdout)
        verdict = report["verdict"]["sentence"]

        stdio = StdioServerParameters(command=memctl, args=["mcp", *place], env=env)
        print("standard streams")
        for mode in ("auto", "legacy"):
            asyncio.run(talk(stdio, mode, verdict))

        run_example(memctl, folder, env)

        # A port needs a daemon, which checks callers.
        socket = f"unix:{store / 'daemon.sock'}"
        daemon = Served([memctl, "daemon", "--listen", socket, *place], env)
        http = [memctl, "mcp", "--listen", "127.0.0.1:0", "--daemon", socket]
        with daemon, Served(http, env) as line:
            address = line.removeprefix("memctl mcp listens on ").strip()
            assert address.startswith("http://127.0.0.1:"), line
            print("streamable HTTP")
            for mode in ("auto", "legacy"):
                asyncio.run(talk(address, mode, verdict))


if __name__ == "__main__":
    main()
