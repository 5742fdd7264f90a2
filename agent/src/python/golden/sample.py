"""Source whose line tables have every kind of entry: long jumps, lines that go back, instructions without a line."""

import contextlib


@contextlib.contextmanager
def guard(
    name,
    *,
    depth=0,
):
    try:
        yield [
            depth
            for depth in range(depth)
            if depth
        ]
    except ValueError as error:
        raise RuntimeError(
            name,
            error,
        ) from error
    finally:
        print(
            name
        )


class Model:
    size = 3

    def forward(self, x):
        y = self.call(
            x
            + self.size,
            lambda z: (
                z
                * 2
            ),
        )
        while y:
            with guard("inner") as found, guard("outer", depth=2):
                if not found:
                    continue
                break
        else:
            return None
        match y:
            case [a, *_]:
                return a
            case {"k": b}:
                return b
        # 300 empty lines follow: more than one table entry of Python 3.10 can say.
















































































































































































































































































































        return (
            y
        )

    async def step(self):
        async with self as it:
            async for item in it:
                await item


for i in range(3):
    if i: print(i); continue
    try: Model().forward(i)
    except (TypeError, AttributeError): pass
