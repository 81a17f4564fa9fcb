"""Shows what the compiler makes of a declaration: `python -m millrace.protocol show Metadata 12
[request|response]`.

Not a part of the broker; nothing imports it.
"""

from __future__ import annotations

import sys

from millrace.protocol.apis import NAMED
from millrace.protocol.compile import source

USAGE = "usage: python -m millrace.protocol show <Api> <version> [request|response]"


def show(arguments: list[str]) -> str:
    """The compiled text of one API at one version. Raises ValueError, with what to say, for anything else."""
    if len(arguments) not in (3, 4) or arguments[0] != "show" or not arguments[2].isdigit():
        raise ValueError(USAGE)
    api = NAMED.get(arguments[1])
    if api is None:
        raise ValueError(f"no API is called {arguments[1]}; there are {', '.join(NAMED)}")
    sides = arguments[3:] or ["request", "response"]
    kinds = {"request": api.request_type, "response": api.response_type}
    if sides[0] not in kinds:
        raise ValueError(USAGE)
    return "\n".join(
        f"# {kinds[side].__name__}\n\n{source(kinds[side], int(arguments[2]))}" for side in sides
    )


def main() -> int:
    try:
        print(show(sys.argv[1:]))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
