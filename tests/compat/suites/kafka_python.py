"""kafka-python's integration tests, from its source package, with what the package leaves out put back.

Left out of it are `test/__init__.py`, without which Python finds its own `test` package, and
`test/service.py`, of which an external broker needs two names. Its SASL and SSL tests start a Kafka of their
own and are not for us.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.compat.suites.suite import Excuse, OneNode, Outcome, read_junit

SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self): pass
    def close(self): pass
    def stop(self): pass
    def dump_logs(self): pass


class SpawnedService:
    pass
"""


class KafkaPythonSuite(OneNode):
    """`speaks`: the Kafka release whose versions the clients are told to speak."""

    # Its own brokers have a node 0 and let sessions be short.
    overrides: Mapping[str, str] = {
        "node.id": "0",
        "num.partitions": "4",
        "group.min.session.timeout.ms": "1000",
    }
    fickle: Mapping[str, Excuse] = {}

    def __init__(self, version: str, speaks: str, passed_min: int, known: Mapping[str, Excuse]) -> None:
        self.name = f"kafka-python {version} as to Kafka {speaks}"
        self.passed_min = passed_min
        self.known = {
            "test_create_describe_delete_acls": Excuse(
                "no authorizer is configured: SECURITY_DISABLED, as Kafka says then", "SecurityDisabledError"
            ),
            "test_transactional_producer": Excuse(
                "transactions are not served yet", "TransactionalIdAuthorizationFailedError"
            ),
            **known,
        }
        self._version, self._speaks = version, speaks

    def fetch(self, folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        source = [
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            str(folder),
            f"kafka-python=={self._version}",
        ]
        subprocess.run([*pip, *source], check=True)
        subprocess.run(
            [*pip, "install", "--no-deps", "--target", str(folder / "site"), "pytest-mock", "py"], check=True
        )
        (archive,) = folder.glob("kafka_python-*.tar.gz")
        subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True)
        self._root(folder).joinpath("test", "__init__.py").touch()
        self._root(folder).joinpath("test", "service.py").write_text(SERVICE)

    def run(self, folder: Path, address: str) -> Outcome:
        root, report = self._root(folder), folder / "report.xml"
        environment = {
            **os.environ,
            "KAFKA_ROOT": str(folder),
            "KAFKA_VERSION": self._speaks,
            "KAFKA_URI": f"kafka://{address}",
            "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{root}",
        }
        words = [
            "-m",
            "pytest",
            "test/integration",
            "-q",
            "--timeout",
            "120",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        for other in ("sasl", "ssl"):
            words.append(f"--ignore=test/integration/test_{other}_integration.py")
        with (folder / "output").open("w") as output:
            subprocess.run(
                [sys.executable, *words], cwd=root, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        return read_junit(report)

    def _root(self, folder: Path) -> Path:
        return folder / f"kafka_python-{self._version}"


NEWEST = KafkaPythonSuite(
    "3.0.12",
    "4.3.0",
    51,
    {
        "test_describe_configs_broker_resource": Excuse(
            "wants advertised.listeners set, as in the settings of its own brokers",
            "'DEFAULT_CONFIG' == 'STATIC_BROKER_CONFIG'",
        )
    },
)
OLDER = KafkaPythonSuite(
    "3.0.12",
    "2.8.0",
    46,
    {
        "test_kafka_version_infer": Excuse(
            "wants the release that it was told; ours is found out as 4.3, rightly",
            r"\(2, 8\) but was \(4, 3\)",
        ),
        "test_describe_configs_broker_resource": Excuse(
            "wants advertised.listeners changeable, as it was before Kafka 4", "assert True is False"
        ),
    },
)
FORMER = KafkaPythonSuite("2.3.3", "4.0.0", 35, {})  # has tests of groups that the later package leaves out
