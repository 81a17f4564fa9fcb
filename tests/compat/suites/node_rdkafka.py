"""node-rdkafka's end-to-end tests, from its npm package: JavaScript over librdkafka, compiled on the way, which takes some minutes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.compat.suites.suite import Outcome, read_junit
from tests.compat.wire import Wire

VERSION = "3.6.1"


class NodeRdkafkaSuite:
    name = f"node-rdkafka {VERSION}"
    passed_min = 52
    overrides: Mapping[str, str] = {}
    known: Mapping[str, str] = {
        "replication_factor is larger": "any replication factor is taken: the store is what replicates",
        "(?i)transaction|before all": "transactions are not served yet",
        "empty (buffer )?key and empty value|empty payload and empty key": "newer Nodes hand an empty Buffer over as none, so a "
        "null is sent; the delivery report says so before any broker is asked",
    }
    fickle: Mapping[str, str] = {"should obey the timeout": "wants an answer to take longer than 0 ms"}

    def fetch(self, folder: Path) -> None:
        assert shutil.which("npm"), "npm is missing: install Node (Debian: apt-get install npm)"
        words = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", f"node-rdkafka@{VERSION}", "mocha"]
        subprocess.run(words, cwd=folder, check=True)

    def run(self, folder: Path, address: str) -> Outcome:
        package, report = folder / "node_modules" / "node-rdkafka", folder / "report.xml"
        with Wire(address) as wire:
            wire.create("test")  # which its tests expect to find
            wire.create("test2")
        words = [str(folder / "node_modules" / ".bin" / "mocha"), "--exit", "--timeout", "60000"]
        words += ["--reporter", "xunit", "--reporter-options", f"output={report}"]
        files = sorted(str(path.relative_to(package)) for path in package.glob("e2e/*.spec.js"))
        environment = {**os.environ, "KAFKA_HOST": address}
        with (folder / "output").open("w") as output:
            subprocess.run([*words, *files], cwd=package, env=environment, stdout=output, stderr=subprocess.STDOUT)
        return read_junit(report)
