"""node-rdkafka's end-to-end tests, from its npm package: JavaScript over librdkafka, compiled on the way,
which takes some minutes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.compat.suites.suite import Excuse, OneNode, Outcome, read_junit
from tests.compat.wire import Wire

VERSION = "3.6.1"
MOCHA = "12.0.3"
FILE_LIMIT_S = 600


class NodeRdkafkaSuite(OneNode):
    name = f"node-rdkafka {VERSION}"
    passed_min = 41
    overrides: Mapping[str, str] = {}
    known: Mapping[str, Excuse] = {
        "replication_factor is larger": Excuse(
            "any replication factor is taken: the store is what replicates", "an error should be returned"
        ),
        "should (init|complete) transaction|before all.*committed and uncommitted": Excuse(
            "transactions are not served yet", "Transactional Id authorization failed"
        ),
        "empty (buffer )?key and empty value|empty payload and empty key": Excuse(
            "newer Nodes hand an empty Buffer over as none, so a null is sent; the delivery report says so "
            "before any broker is asked",
            "should not be null|properties of null",
        ),
    }
    fickle: Mapping[str, Excuse] = {
        "should obey the timeout": Excuse("wants an answer to take longer than 0 ms"),
        '"after each" hook|to its end': Excuse(
            "librdkafka 2.12 may wait for ever at its end when requests are under way: on a busy machine "
            "nearly always, against Apache "
            "Kafka 4.3.1 just so; what comes after it in the file is not run then",
            "ended without a report|[tT]imeout",
        ),
    }

    def fetch(self, folder: Path) -> None:
        assert shutil.which("npm"), "npm is missing: install Node (Debian: apt-get install npm)"
        words = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
            f"node-rdkafka@{VERSION}",
            f"mocha@{MOCHA}",
        ]
        subprocess.run(words, cwd=folder, check=True)

    def run(self, folder: Path, address: str) -> Outcome:
        package = folder / "node_modules" / "node-rdkafka"
        with Wire(address) as wire:
            wire.create("test")  # which its tests expect to find
            wire.create("test2")
        outcome = Outcome()
        for file in sorted(package.glob("e2e/*.spec.js")):
            self._run_file(folder, package, file, address, outcome)
        return outcome

    def _run_file(self, folder: Path, package: Path, file: Path, address: str, outcome: Outcome) -> None:
        """In a process of its own: one that ends without a report takes no other's with it."""
        report = folder / f"{file.stem}.xml"
        words = [str(folder / "node_modules" / ".bin" / "mocha"), "--exit", "--timeout", "60000"]
        words += [
            "--reporter",
            "xunit",
            "--reporter-options",
            f"output={report}",
            str(file.relative_to(package)),
        ]
        with (folder / "output").open("w") as output:
            environment = {**os.environ, "KAFKA_HOST": address}
            mocha = subprocess.Popen(
                words, cwd=package, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                mocha.wait(FILE_LIMIT_S)
            except subprocess.TimeoutExpired:  # it reported, and cannot end
                mocha.kill()
                mocha.wait()
        if not report.exists() or not report.stat().st_size:
            outcome.failed[f"{file.name} to its end"] = "ended without a report"
            return
        found = read_junit(report)
        outcome.passed += found.passed
        outcome.skipped += found.skipped
        outcome.failed |= found.failed
