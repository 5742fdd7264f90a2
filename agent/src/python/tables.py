"""Prints the line table of code objects and the line that this Python itself reports for every instruction.

This makes test data for `lines.rs`. `golden/3.X.txt` is the output of Python 3.X for `golden/sample.py.txt`. Each line
has major.minor, co_firstlineno, the table in hex, and the lines of the instructions at offsets 0, 2, 4 … as
`LINExCOUNT` (`-` without a line), separated by commas. With arguments, the program prints all code of these source
files. Without arguments, it prints at most 2,000 code objects of at most 4,000 bytes from some 100 files of the
standard library.
"""

from __future__ import annotations

import itertools
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def lines(code: CodeType) -> list[int | None]:
    if sys.version_info >= (3, 11):
        return [position[0] for position in code.co_positions()]
    found: list[int | None] = [None] * (len(code.co_code) // 2)
    for start, end, line in code.co_lines():
        for at in range(start, end, 2):
            found[at // 2] = line
    return found


def row(code: CodeType) -> str:
    runs = [f"{'-' if line is None else line}x{len(list(run))}" for line, run in itertools.groupby(lines(code))]
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return f"{version} {code.co_firstlineno} {code.co_linetable.hex() or '-'} {','.join(runs)}"


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]]
    whole = bool(files)
    if not whole:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[::2]
    warnings.simplefilter("ignore")
    found: Iterator[CodeType] = itertools.chain.from_iterable(
        codes(compile(path.read_bytes(), str(path), "exec")) for path in files
    )
    if not whole:
        found = itertools.islice((code for code in found if len(code.co_code) <= 4_000), 2_000)
    for code in found:
        print(row(code))


if __name__ == "__main__":
    main()
