"""Compares `memctl fit` with genuine runs: the six models of fit_models.py on the fake GPU.

    RUN=$(tests/fakegpu/setup 2.11.0); python3 tests/workloads/fit_compare.py MEMCTL RUN FOLDER

Records each model at batch 4 and 8, runs it at 16, 32 and 64, and prints a table of the forecasts (from two recordings,
and from the one at batch 4) and the run's own `memory_stats()`; then how often the forecast was "fits" for a device on
which a run ended out of memory; then checkpointing. Exits with 1 if a bound of fit_models.md is broken. FOLDER keeps
the recordings and the truth: a run that is there is not repeated.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ("encoder", "lstm", "vgg", "unet", "vit", "mixer")
BLOCKS = ("encoder", "mixer", "unet")  # (the fake GPU cannot run vit's second forward: dropout under autocast)
SIZES = (16, 32, 64)
MEDIAN, HIGH = 2.0, 5.0  # percent


def memctl(program: str, folder: pathlib.Path, *arguments: str) -> str:
    command = [program, *arguments, "--data-dir", str(folder / "store")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"memctl {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def truth(run: str, folder: pathlib.Path, model: str, batch: int, mode: str, record: bool) -> dict[str, int]:
    """The peaks of a run, from the folder where it was run before."""
    kept = folder / f"{model}_{mode}_b{batch}.json"
    if not kept.exists() or (record and not kept.with_suffix(".pickle").exists()):
        command = [run, "python", str(HERE / "fit_models.py"), model, str(batch), mode, *([str(folder)] if record else [])]
        kept.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return json.loads(kept.read_text())


def survives(run: str, folder: pathlib.Path, model: str, batch: int, limit: int) -> bool:
    """Whether a run on a device of `limit` bytes succeeds."""
    kept = folder / f"{model}_plain_b{batch}_in_{limit >> 20}.json"
    if not kept.exists():
        environment = {**os.environ, "FAKE_GPU_MIB": str(limit >> 20)}
        command = [run, "python", str(HERE / "fit_models.py"), model, str(batch)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode and "OutOfMemoryError" not in done.stderr:
            raise SystemExit(f"{model} at {batch}: {done.stderr}")
        kept.write_text(json.dumps({"survives": done.returncode == 0}))
    return json.loads(kept.read_text())["survives"]


def off(ours: int, theirs: int) -> float:
    return 100 * (ours - theirs) / theirs


def main() -> None:
    program, run, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    have = memctl(program, folder, "jobs", "-o", "csv") if (folder / "store").exists() else ""
    errors: dict[str, list[float]] = {"two": [], "one": []}
    wrong = {"two": 0, "one": 0}
    cautious = outside = 0
    print("| model | batch | reserved | from two | off | from one | off |\n|---|---|---|---|---|---|---|")
    for model in MODELS:
        for batch in (4, 8):
            truth(run, folder, model, batch, "plain", record=True)
            if f"{model}{batch}," not in have:
                recording = str(folder / f"{model}_plain_b{batch}.pickle")
                memctl(program, folder, "import", "-q", "--job", f"{model}{batch}", recording)
        for size in SIZES:
            row = truth(run, folder, model, size, "plain", record=False)
            reserved = row["peak_reserved"]
            flags = ["fit", "-o", "json", "--job", f"{model}4=4", "--at", str(size)]
            # A run may succeed with less than its peak of reserved memory: under a limit it empties its cache.
            for limit in (int(reserved * 0.97), int(row["peak_allocated"] * 1.03)):
                limit = limit >> 20 << 20
                flags_at = [*flags, "--device-memory", str(limit)]
                said = json.loads(memctl(program, folder, *flags_at, "--job", f"{model}8=8"))["at"][0]["fits"]
                said_alone = json.loads(memctl(program, folder, *flags_at))["at"][0]["fits"]
                does = survives(run, folder, model, size, limit)
                wrong["two"] += said and not does
                wrong["one"] += said_alone and not does
                cautious += does and not said
            two = json.loads(memctl(program, folder, *flags, "--job", f"{model}8=8"))["at"][0]
            one = json.loads(memctl(program, folder, *flags))["at"][0]
            figures = [off(answer["peak_reserved_bytes"], reserved) for answer in (two, one)]
            errors["two"].append(abs(figures[0]))
            errors["one"].append(abs(figures[1]))
            outside += not two["low"] <= reserved <= two["high"]
            mib = [value >> 20 for value in (reserved, two["peak_reserved_bytes"], one["peak_reserved_bytes"])]
            print(f"| {model} | {size} | {mib[0]} | {mib[1]} | {figures[0]:+.2f} % | {mib[2]} | {figures[1]:+.2f} % |")
    is_good = wrong["two"] == 0
    for name, values in errors.items():
        values.sort()
        median, high = statistics.median(values), values[min(len(values) - 1, int(len(values) * 0.95))]
        print(f"\nFrom {name}: median {median:.2f} %, 95th percentile {high:.2f} %, worst {values[-1]:.2f} %.")
        is_good &= name == "one" or (median <= MEDIAN and high <= HIGH)
    print(f"Of 36 runs on a device of little memory {wrong['two']} were told to fit from two and did not, {wrong['one']} from one;")
    print(f"{cautious} fitted and were not told to. {outside} of 18 runs lay outside of the interval from two.")
    print("\n| model | batch | checkpointed | replayed | off | reserved | replayed | off |\n|---|---|---|---|---|---|---|---|")
    for model in BLOCKS:
        theirs = truth(run, folder, model, 8, "ckpt", record=False)
        answer = json.loads(memctl(program, folder, "fit", "-o", "json", "--job", f"{model}8", "--checkpoint", "all"))
        ours = answer["checkpoint"]
        row = [f"| {model} | 8"]
        for key in ("peak_allocated", "peak_reserved"):
            figure = off(ours[f"{key}_bytes"], theirs[key])
            row.append(f"{theirs[key] >> 20} | {ours[f'{key}_bytes'] >> 20} | {figure:+.2f} %")
            is_good &= abs(figure) <= HIGH
        print(" | ".join(row) + " |")
    raise SystemExit(0 if is_good else 1)


if __name__ == "__main__":
    main()
