"""Slurm's packages for tests: Debian's, downloaded and unpacked into the cache, never installed.

Nothing of them runs when they are unpacked: no service, no user, nothing below /etc. They lie below $MEMCTL_CACHE/slurm
(default ~/.cache/memctl) and may be deleted at any time. Two callers wait for each other.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")


def why_not() -> str:
    """The reason why no cluster can run here, or an empty text."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root: slurmd starts the tasks of any user"
    if subprocess.run(["unshare", "--uts", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
        return "this machine allows no namespaces, which the nodes of a Slurm cluster need"
    if not (unpacked() / "complete").exists() and not shutil.which("apt-get"):
        return "Slurm's packages are Debian's, and this machine has no apt-get"
    return ""


def unpacked() -> pathlib.Path:
    """The folder with the unpacked packages."""
    cache = os.environ.get("MEMCTL_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "memctl"
    )
    return pathlib.Path(cache, "slurm").absolute()


def unpack() -> pathlib.Path:
    """Downloads and unpacks the packages, and the libraries of theirs that this machine does not have."""
    root = unpacked()
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (root / "complete").exists():
            return root
        packages = root / "packages"
        for half_made in (packages, root / "usr", root / "etc", root / "lib", root / "var"):
            shutil.rmtree(half_made, ignore_errors=True)
        packages.mkdir()
        simulated = ["apt-get", "--simulate", "install", "--no-install-recommends", *PACKAGES]
        if subprocess.run(simulated, capture_output=True).returncode:
            subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=sys.stderr)
        lines = subprocess.run(simulated, check=True, capture_output=True, text=True).stdout.splitlines()
        # A package that this machine has is not in the list, and its files are where the programs look for them.
        missing = [line.split()[1] for line in lines if line.startswith("Inst ")]
        download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *missing]
        subprocess.run(download, check=True, cwd=packages, stdout=sys.stderr)
        for package in packages.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
        (root / "complete").touch()
    return root


def program(name: str) -> str:
    """A program of the packages. Debian gives some of them the suffix `-wlm`."""
    root = unpacked()
    for folder in (root / "usr/sbin", root / "usr/bin", pathlib.Path("/usr/sbin"), pathlib.Path("/usr/bin")):
        for path in (folder / f"{name}-wlm", folder / name):
            if path.exists():
                return str(path)
    raise SystemExit(f"tests/slurm: the packages have no {name}")


def libraries(root: pathlib.Path) -> list[str]:
    """The folders with the packages' libraries, Slurm's plugins first."""
    plugins = [*root.glob("usr/lib/*/slurm-wlm"), *pathlib.Path("/usr/lib").glob("*/slurm-wlm")]
    return [str(plugins[0]), *map(str, root.glob("usr/lib/*-linux-gnu"))]
