"""The scripts of deploy/slurm, as a real Slurm runs them: a prolog that names the daemon, an epilog that reports.

The tests need root, as slurmd does.
"""

from __future__ import annotations

import pathlib
import socket

import pytest

from cluster import Cluster
from submitted import User
from unpacked import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it runs")
SCRIPTS = pathlib.Path(__file__).parents[2] / "deploy" / "slurm"
# The scripts, with the test's settings in place of those below /etc. Slurm starts them with few variables.
WRAPPED = """\
#!/bin/sh
export MEMCTL_SLURM_SETTINGS={settings} PATH="{path}:$PATH" LD_LIBRARY_PATH={libraries}
exec {script}
"""


def test_the_scripts_for_administrators(tmp_path: pathlib.Path) -> None:
    settings, wrapped = tmp_path / "settings", {}
    for key, name in (("TaskProlog", "task_prolog.sh"), ("Epilog", "epilog.sh")):
        wrapped[key] = tmp_path / name
    lines = "\n".join(f"{key}={path}" for key, path in wrapped.items())
    cluster = Cluster(tmp_path / "c", 2, lines)
    (tmp_path / "u").mkdir()
    user = User(tmp_path / "u", cluster)
    for path in wrapped.values():
        own = cluster.environment()
        place = f"{pathlib.Path(user.memctl.command).parent}:{own['PATH'].split(':')[0]}"
        values = {"settings": settings, "path": place, "libraries": own["LD_LIBRARY_PATH"]}
        path.write_text(WRAPPED.format(script=SCRIPTS / path.name, **values))
        path.chmod(0o755)
    settings.write_text(f"MEMCTL_DAEMON={user.daemon.url}\nOTHER=secret\n")
    unset = {"MEMCTL_DAEMON": ""}
    try:
        cluster.start()
        said = """sh -c 'echo "daemon $MEMCTL_DAEMON other $OTHER"; exec ./record python train.py'"""
        job = user.submit("both", f"srun {said}", "-N2 -n2", **unset)
        user.until_over(job)
        assert user.output(job).count(f"daemon {user.daemon.url} other \n") == 2, user.output(job)
        assert list(user.recorded()) == [f"both-{job}#1.0"], user.recorded()
        array = user.submit("sweep", "memctl run -- python train.py", "--array=7", **unset)
        user.until_over(f"{array}_7")
        unrecorded = user.submit("plain", "echo plain", **unset)
        user.until_over(unrecorded)
        # Epilogs run after the end of their jobs. A node that runs one is not idle.
        user.until(lambda: cluster.states() == ["idle"] * 2, cluster.states)
        for written, name in ((job, f"both-{job}"), (array, f"sweep-{array}_7")):
            output = user.output(written)
            assert output.count(f"--- memctl: GPU memory of job {name.split('-')[1]}\n") == 1, output
            assert f"{name}  finished" in output and "RANK" in output, output
        assert user.output(unrecorded) == "plain\n"
        # If the daemon has tokens, tasks deliver with the token of MEMCTL_TASK_TOKEN_FILE in the settings, and the
        # epilog reads with the token of MEMCTL_TOKEN_FILE.
        files, place = {}, {"MEMCTL_DAEMON": user.daemon.url}
        for role in ("admin", "agent", "reader"):
            made = user.memctl("token", "create", role, "--role", role, "-q", **place)
            assert made.code == 0, made
            files[role] = tmp_path / f"{role}.token"
            files[role].write_text(made.out)
            files[role].chmod(0o644)
            place["MEMCTL_TOKEN_FILE"] = str(files["admin"])
        with settings.open("a") as more:
            more.write(f"MEMCTL_TASK_TOKEN_FILE={files['agent']}\nMEMCTL_TOKEN_FILE={files['reader']}\n")
        guarded = user.submit("guarded", "memctl run -- python train.py", **unset)
        user.until_over(guarded)
        user.until(lambda: cluster.states() == ["idle"] * 2, cluster.states)
        output = user.output(guarded)
        assert f"--- memctl: GPU memory of job {guarded}\n" in output and f"guarded-{guarded}  finished" in output, (
            output
        )
        # Neither a daemon that is gone nor one that never answers costs a node.
        user.daemon.kill()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for port in (user.daemon.port, silent.getsockname()[1]):
                settings.write_text(f"MEMCTL_DAEMON=http://127.0.0.1:{port}\nMEMCTL_EPILOG_SECONDS=2\n")
                late = user.submit("late", "echo late", **unset)
                user.until_over(late)
                user.until(lambda: cluster.states() == ["idle"] * 2, cluster.states)
                assert user.output(late) == "late\n"
    finally:
        user.daemon.stop()
        cluster.stop()
