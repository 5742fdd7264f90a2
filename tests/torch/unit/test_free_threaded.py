"""Free-threaded interpreters are refused with a message before any of their memory is read."""

from __future__ import annotations

import sys

import pytest

import memctl_agent
from memctl_agent import _session


def test_free_threaded_interpreters_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trouble: None
) -> None:
    monkeypatch.setattr(sys, "abiflags", "t", raising=False)
    monkeypatch.setattr(_session, "load_native", lambda: pytest.fail("the native module was asked for"))
    assert memctl_agent.attach("a-job") is False
    said = capsys.readouterr().err
    version = ".".join(map(str, sys.version_info[:2]))
    assert said.startswith(f"memctl: CPython {version}t is free-threaded, which memctl does not record"), said
    assert memctl_agent.status()["trouble"] == said.removeprefix("memctl: ").rstrip()


def test_others_are_not() -> None:
    assert _session.is_free_threaded() is bool(getattr(sys, "_is_gil_enabled", lambda: True)() is False)
