"""Suites of clients in Rust, and of librdkafka, whose whole source the crate rdkafka-sys carries: fetched and
run by cargo, and by make."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.compat.jvm import java_command
from tests.compat.suites.suite import Excuse, OneNode, Outcome

NO_TRANSACTIONS = "transactions are not served yet"
RESULT = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (?:.*?)(ok|FAILED|ignored)", re.MULTILINE)
FAILURE = re.compile(r'### Test "(\d{4}_\w+)[^\n]*" failed at [^\n]*\n([^\n]*)')
PANIC = re.compile(r"^thread '([\w:]+)'[^\n]* panicked at [^\n]*\n([^\n]*)", re.MULTILINE)


def fetch_crates(folder: Path, *wanted: str) -> dict[str, Path]:
    """Copies of crates' sources, by name. `wanted`: NAME@VERSION; what they depend on is fetched with
    them."""
    assert shutil.which("cargo"), "cargo is missing: install Rust (Debian: apt-get install cargo)"
    probe = folder / "probe"
    subprocess.run(["cargo", "init", "-q", "--vcs", "none", "--name", "probe", str(probe)], check=True)
    subprocess.run(["cargo", "add", "-q", *wanted], cwd=probe, check=True)
    words = ["cargo", "metadata", "-q", "--format-version", "1"]
    shown = json.loads(subprocess.run(words, cwd=probe, check=True, capture_output=True).stdout)
    found = {}
    for package in shown["packages"]:
        if package["name"] in {name.split("@")[0] for name in wanted}:
            found[package["name"]] = folder / package["name"]
            shutil.copytree(Path(package["manifest_path"]).parent, folder / package["name"])
    return found


class CrateSuite(OneNode):
    """`cargo test` over the crate's folder `tests`, one test at a time."""

    def __init__(
        self,
        crate: str,
        version: str,
        *,
        passed_min: int,
        known: Mapping[str, Excuse],
        flags: tuple[str, ...] = (),
        fickle: Mapping[str, Excuse] | None = None,
        overrides: Mapping[str, str] | None = None,
        environment: Mapping[str, str],
    ) -> None:
        self.name = f"{crate} {version} (crate)"
        self.passed_min, self.known, self.fickle = passed_min, known, fickle or {}
        self.overrides = overrides or {}
        self._crate, self._version, self._flags, self._environment = crate, version, flags, environment

    def fetch(self, folder: Path) -> None:
        self._source = fetch_crates(folder, f"{self._crate}@={self._version}")[self._crate]

    def run(self, folder: Path, address: str) -> Outcome:
        port = address.split(":")[1]
        for path in self._source.glob("tests/*.rs"):  # some have the address in their text
            text = path.read_text().replace(
                '"bootstrap.servers", "localhost"', f'"bootstrap.servers", "{address}"'
            )
            path.write_text(re.sub(r"(\.port\(\), )9092", rf"\g<1>{port}", text))
        given = {name: text.replace("ADDRESS", address) for name, text in self._environment.items()}
        given |= {"CARGO_TARGET_DIR": str(folder / "target"), "CARGO_PROFILE_DEV_DEBUG": "0"}
        words = [
            "cargo",
            "test",
            "-q",
            "--no-fail-fast",
            *self._flags,
            "--test",
            "*",
            "--",
            "--test-threads=1",
        ]
        words += ["--format=pretty"]
        with (folder / "output").open("w") as output:
            subprocess.run(
                words, cwd=self._source, env={**os.environ, **given}, stdout=output, stderr=subprocess.STDOUT
            )
        return read_libtest((folder / "output").read_text())


def read_libtest(text: str) -> Outcome:
    whys = {found[1]: found[2] for found in PANIC.finditer(text)}
    outcome = Outcome()
    for found in RESULT.finditer(text):
        name, end = found[1], found[2]
        if end == "ok":
            outcome.passed.append(name)
        elif end == "ignored":
            outcome.skipped.append(name)
        else:
            outcome.failed[name] = whys.get(name, "")[:300]
    assert outcome.passed or outcome.failed, f"no test ran:\n{text[-4000:]}"
    return outcome


RDKAFKA = CrateSuite(
    "rdkafka",
    "0.39.0",
    environment={"KAFKA_HOST": "ADDRESS", "KAFKA_VERSION": "4.0.0", "RUST_LOG": "off"},
    overrides={"node.id": "0", "num.partitions": "3"},
    passed_min=46,
    known={"test_transaction_": Excuse(NO_TRANSACTIONS)},
    fickle={
        "nonempty_callback": Excuse(
            "counts a wake-up of the client's own; against Apache Kafka it fails now and then, too"
        ),
        "test_base_producer_timeout": Excuse(
            "wants a topic that is made for it not to be there within 100 ms; here it mostly is"
        ),
    },
)


class LibrdkafkaSuite(OneNode):
    """The C library's own tests, in its quick mode; those that only speak to its mock cluster are left out.
    Some call Kafka's scripts."""

    name = "librdkafka 2.12.1"
    # The delay is Kafka's: 0118_commit_rebalance wants two members to come to one generation, and fails where
    # the first has it alone.
    overrides: Mapping[str, str] = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "3000"}
    passed_min = 76
    known: Mapping[str, Excuse] = {
        "0103_transactions": Excuse(NO_TRANSACTIONS),
        "0081_admin|0109_auto_create|0115_producer_auth|0119_consumer_auth": Excuse(
            "at its first ACL: no authorizer is configured"
        ),
        "0077_compaction|0129_fetch_aborted": Excuse(
            "wants segment.bytes of 10,000 and 20,000; the least is 1 MiB, as since Kafka 4.0"
        ),
    }
    fickle: Mapping[str, Excuse] = {
        "0033_regex_subscribe$": Excuse(
            "its consumer may still ask for the topics that it deletes, and so make them again"
        )
    }

    def fetch(self, folder: Path) -> None:
        sources = fetch_crates(folder, "rdkafka-sys@=4.10.0")
        library = folder / "librdkafka"
        shutil.copytree(sources["rdkafka-sys"] / "librdkafka", library)
        (library / "configure").chmod(0o755)
        for path in library.rglob("*.sh"):
            path.chmod(0o755)
        make = ["make", "-s", "-j2"]
        with (folder / "built").open("w") as output:
            for words in (["./configure"], [*make, "libs"], [*make, "-C", "tests", "test-runner"]):
                subprocess.run(words, cwd=library, check=True, stdout=output, stderr=subprocess.STDOUT)

    def run(self, folder: Path, address: str) -> Outcome:
        tests, report = folder / "librdkafka" / "tests", folder / "report.json"
        (tests / "test.conf").write_text(f"metadata.broker.list={address}\ntest.timeout.multiplier=3\n")
        environment = {
            **os.environ,
            "TEST_KAFKA_VERSION": "4.3.0",
            "TEST_REPORT": str(report),
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "KAFKA_PATH": str(folder),
            "BROKERS": address,
        }
        write_scripts(folder / "bin")
        with (folder / "output").open("w") as output:
            words = ["./test-runner", "-L", "-K", "-Q", "-E", "-p4"]
            subprocess.run(words, cwd=tests, env=environment, stdout=output, stderr=subprocess.STDOUT)
        return read_report(report, (folder / "output").read_text(errors="replace"))


def write_scripts(folder: Path) -> None:
    """What a Kafka of the jars would have there."""
    folder.mkdir()
    for name, tool in (("kafka-topics", "TopicCommand"), ("kafka-acls", "AclCommand")):
        words = shlex.join(java_command(f"org.apache.kafka.tools.{tool}"))
        (folder / f"{name}.sh").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / f"{name}.sh").chmod(0o755)


def read_report(path: Path, said: str) -> Outcome:
    whys = {found[1]: found[2] for found in FAILURE.finditer(said)}
    outcome = Outcome()
    for name, test in json.loads(path.read_text())["tests"].items():
        if name == "<MAIN>":
            continue
        if test["state"] == "PASSED":
            outcome.passed.append(name)
        elif test["state"] == "SKIPPED":
            outcome.skipped.append(name)
        else:
            outcome.failed[name] = whys.get(name, test["state"])[:300]
    return outcome
