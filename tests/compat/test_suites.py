"""How the outcome of other people's suites is read and judged (suites/); the suites themselves run by `make
client-suites`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from tests.compat.suites.__main__ import SUITES
from tests.compat.suites.containers import as_containers
from tests.compat.suites.golang import live_tests, read_events, reason
from tests.compat.suites.golang_clients import SARAMA
from tests.compat.suites.rust import read_libtest
from tests.compat.suites.suite import Excuse, Outcome, Suite, judge
from tests.live.cluster import LiveNodes


class Known:
    """A suite of which one test fails, one fails now and then, and two pass."""

    name = "known"
    passed_min = 2
    overrides: Mapping[str, str] = {}
    known: Mapping[str, Excuse] = {"test_transaction": Excuse("not served", "authorization failed")}
    fickle: Mapping[str, Excuse] = {"test_timing": Excuse("too quick")}

    nodes = 1

    def of_node(self, number: int) -> Mapping[str, str]:
        return {}

    def on_started(self, nodes: LiveNodes) -> None: ...

    def fetch(self, folder: Path) -> None: ...

    def run(self, folder: Path, address: str) -> Outcome:
        return Outcome()


def test_only_what_is_not_known_is_news() -> None:
    """A new failure, a known one for another reason, a known one that is gone, and tests that are missing;
    not a fickle one, behind which others may not have been reached."""
    passed = ["test_a", "test_b"]
    known = {"test_transaction_1": "Transactional Id authorization failed"}
    assert judge(Known(), Outcome(passed, known)) == []
    assert judge(Known(), Outcome(passed, known | {"test_timing": ""})) == []
    assert judge(Known(), Outcome(passed, {"test_timing": ""})) == []
    assert judge(Known(), Outcome(passed, known | {"test_c": "broken"})) == ["test_c: broken"]
    assert judge(Known(), Outcome(passed, {"test_transaction_1": "timed out"})) == [
        "test_transaction_1: timed out"
    ]
    (gone,) = judge(Known(), Outcome(passed, {}))
    assert "test_transaction failed any more" in gone
    (missing,) = judge(Known(), Outcome(["test_a"], known))
    assert missing.startswith("only 1 tests passed")


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_excuses_are_of_one_kind_of_failure(suite: Suite) -> None:
    """What no excuse is for is news: a new test, and a hook that fails before tests of any kind."""
    for name in ("test_a", '"before all" hook for "should consume"', '"before each" hook'):
        assert judge(suite, Outcome(["passed"] * suite.passed_min, {name: "broken"}))[0] == f"{name}: broken"


def test_a_go_test_is_chosen_by_what_it_does(tmp_path: Path) -> None:
    """Of sarama's those that set up a broker's functional test, by whatever name and in whatever file; not
    one beside them that only speaks to a mock, nor a function that is no test. A test ends where the next
    function begins."""
    (tmp_path / "functional_test.go").write_text(
        "func TestMain(m *testing.M) {\n}\n\n"
        "func TestFuncConnectionFailure(t *testing.T) {\n\tt.Parallel()\n}\n\n"
        "func TestMock(t *testing.T) {\n\tnewMockBroker(t)\n}\n\n"
        "func TestVersionMatrix(t *testing.T) {\n\tcheck(t)\n\tsetupFunctionalTest(t)\n}\n\n"
        "func helper(t *testing.T) {\n\tsetupFunctionalTest(t)\n}\n"
    )
    (tmp_path / "consumer_group_test.go").write_text(
        "func TestConsumerGroupDeadlock(t *testing.T) {\n\tsetupFunctionalTest(t)\n}\n"
    )
    (tmp_path / "mocks.go").write_text("func TestNoTest(t *testing.T) {\n\tsetupFunctionalTest(t)\n}\n")
    chosen = ["TestConsumerGroupDeadlock", "TestFuncConnectionFailure", "TestVersionMatrix"]
    assert live_tests(tmp_path, SARAMA.marks) == chosen


def test_a_container_is_a_node(tmp_path: Path) -> None:
    """`docker compose stop kafka-1` and `start`, as often as they come; another word is refused."""

    class Node:
        orders: ClassVar[list[str]] = []

        def is_running(self) -> bool:
            return self.orders[-1:] != ["stop"]

        def stop(self) -> None:
            self.orders.append("stop")

        def start(self) -> None:
            self.orders.append("start")

    nodes = LiveNodes()
    nodes.brokers = {1: Node()}  # type: ignore[dict-item]
    with as_containers(nodes, tmp_path / "bin") as path:

        def docker(*words: str) -> int:
            return subprocess.run(
                ["docker", *words], env={**os.environ, "PATH": path}, check=False
            ).returncode

        orders = ("stop", "stop", "start", "start", "logs")
        assert [docker("compose", order, "kafka-1") for order in orders] == [0, 0, 0, 0, 125]
    assert Node.orders == ["stop", "start"]


def test_go_counts_parts(tmp_path: Path) -> None:
    """A test with parts counts by them, by itself only where it failed and none of them did; one that never
    ended failed."""
    told = [
        ("TestA", "run"),
        ("TestA/one", "pass"),
        ("TestA/two", "fail"),
        ("TestA", "fail"),
        ("TestB/one", "pass"),
        ("TestB", "fail"),
        ("TestC", "skip"),
        ("TestD", "run"),
    ]
    lines = [json.dumps({"Action": action, "Test": test}) for test, action in told]
    lines.insert(
        0,
        json.dumps(
            {"Action": "output", "Test": "TestA/two", "Output": "    x_test.go:7: expected 1, got 2\n"}
        ),
    )
    (tmp_path / "output").write_text("\n".join(["go: downloading something", *lines]))
    outcome = read_events(tmp_path / "output")
    assert outcome.passed == ["TestA/one", "TestB/one"]
    assert outcome.failed == {"TestA/two": "expected 1, got 2", "TestB": "", "TestD": "never ended"}
    assert outcome.skipped == ["TestC"]


def test_what_testify_says_is_the_reason() -> None:
    """Its last line is the test's own name, which would excuse anything."""
    lines = [
        "    a_test.go:7: \n",
        "    \tError Trace:\t/a_test.go:7\n",
        "    \tError:      \tReceived unexpected error:\n",
    ]
    lines += ["    \t            \tno such thing\n", "    \tTest:       \tTestA\n"]
    assert reason(lines) == "Received unexpected error: no such thing"


def test_rust_says_why() -> None:
    """The first line behind the panic's place is the reason."""
    outcome = read_libtest(
        "test test_a ... ok\ntest test_b - should panic ... ok\ntest test_c ... FAILED\ntest test_d ... "
        "ignored\n"
        "thread 'test_c' (17) panicked at tests/c.rs:3:5:\nassertion failed\n"
    )
    assert (outcome.passed, outcome.skipped) == (["test_a", "test_b"], ["test_d"])
    assert outcome.failed == {"test_c": "assertion failed"}
