"""How long one request holds everybody else: the longest callback of the broker's loop, API by API: `python
-m tests.bench.stalls`.

    python -m tests.bench.stalls [--folder DIR] [--count 10000] [--places]

A broker on the library's loop with a watch on its callbacks (callback_probe.py: CPU time of the loop's
thread, so that neighbours on the machine do not count) is asked for much at once (stall_mix.py), one request
after another, with a producer and a reader of one record at a time beside it. For each request the table has
the longest callback while it was answered, beside it the longest waits of producer and reader; --places adds
where a callback above the bound spent its time. Exit code 1 when one was above it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import callback_probe
from tests.bench.report import Row, exit_code, table
from tests.bench.stall_mix import steps
from tests.live import LiveBroker
from tests.live.client import Client
from tests.patience import PATIENCE_S

BOUND_MS = 20.0
PAUSE_S = 0.01
SETTLE_S = 0.5


class ProbedBroker(LiveBroker):
    """A broker whose longest callbacks can be asked for."""

    def command(self) -> list[str]:
        python, _, _, *words = super().command()
        return [python, "-m", "tests.bench.callback_probe", str(self.folder / "callbacks.json"), *words]

    def longest(self) -> list[tuple[float, str, str]]:
        """(milliseconds, name, places) since the last time, longest first."""
        return callback_probe.ask(self.pid, self.folder / "callbacks.json")


class Beside:
    """Does one small thing again and again with a connection of its own; `take_slowest_ms` begins anew."""

    def __init__(self, address: str, act: Callable[[Client], object]) -> None:
        self._address = address
        self._act = act
        self._slowest_s = 0.0
        self._is_over = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Client(self._address, 120.0) as client:
                while not self._is_over:
                    began_s = time.monotonic()
                    self._act(client)
                    self._slowest_s = max(self._slowest_s, time.monotonic() - began_s)
                    time.sleep(PAUSE_S)
        except BaseException as error:
            self.error = error

    def take_slowest_ms(self) -> float:
        if self.error is not None:
            raise self.error
        slowest_s, self._slowest_s = self._slowest_s, 0.0
        return 1000 * slowest_s

    def stop(self) -> None:
        self._is_over = True
        self._thread.join(PATIENCE_S)


def measure(
    broker: ProbedBroker, count: int, opened: int, offsets: int, settle_s: float = SETTLE_S
) -> list[tuple[Row, float, str]]:
    """A row for each step, its longest callback in ms (0 where it was short), and where it was."""
    rows = []
    with Client(broker.address, 120.0) as client:
        client.create("beside")
        produced = client.produce("beside", [b"first"])
        producer = Beside(broker.address, lambda one: one.produce("beside", [b"x" * 100]))
        reader = Beside(broker.address, lambda one: one.fetch([("beside", 0, produced)], max_bytes=1000))
        for name, act in steps(count, opened, offsets):
            for beside in (producer, reader):
                beside.take_slowest_ms()
            broker.longest()
            began_s = time.monotonic()
            act(client)
            took_s = time.monotonic() - began_s
            time.sleep(settle_s)
            longest = broker.longest()
            took_ms, _, _ = longest[0] if longest else (0.0, "", "")
            figure = (
                f"{took_ms:.1f} ms" if longest else f"below {1000 * callback_probe.SAMPLED_FROM_S:.0f} ms"
            )
            waits = f"{producer.take_slowest_ms():.0f} and {reader.take_slowest_ms():.0f} ms"
            waits += f", answered in {took_s:.2f} s"
            row = Row(name, figure, waits, f"{BOUND_MS:.0f} ms", took_ms <= BOUND_MS)
            rows.append(
                (
                    row,
                    took_ms,
                    "\n".join(f"    {ms:.1f} ms {what}: {place}" for ms, what, place in longest[:4]),
                )
            )
        producer.stop()
        reader.stop()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--count", type=int, default=10_000, help="partitions, offsets or groups a request")
    parser.add_argument("--opened", type=int, default=2_000, help="partitions that are opened")
    parser.add_argument(
        "--offsets", type=int, default=100_000, help="committed ones of the topic that is deleted"
    )
    parser.add_argument("--places", action="store_true", help="where callbacks above the bound were")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stalls", dir=options.folder))
    try:
        broker = ProbedBroker(folder, {"num.partitions": "1"})
        with broker:
            found = measure(broker, options.count, options.opened, options.offsets)
    finally:
        shutil.rmtree(folder)
    print(table([row for row, _, _ in found]))
    if options.places:
        for row, _, places in found:
            if row.is_met is False:
                print(f"{row.what}\n{places}")
    return exit_code(row for row, _, _ in found)


if __name__ == "__main__":
    sys.exit(main())
