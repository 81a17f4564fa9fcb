"""`millrace doctor ADDRESS`: can the broker live in this bucket, what would it do in place of what is
missing, what must it be allowed.

Works under a prefix of its own, which it removes, with the folders that it made. Exit codes: 0 usable
(perhaps with something done another way), 1 not usable or not reachable, 2 for a mistake in the address. Not
here: the probes (runtime/objectstore/probe.py, runtime/objectstore/s3_probe.py).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.broker.cli import RunLoop
from millrace.broker.cli.table import table

if TYPE_CHECKING:
    from millrace.runtime.objectstore import ObjectStore
    from millrace.runtime.objectstore.address import StoreAddress
    from millrace.runtime.objectstore.probe import Finding, Latency
    from millrace.wal.config import ObjectWalSettings
    from millrace.wal.object.cost import Cost

ABOUT = """\
Tries a bucket before a broker lives in it: puts, ranged gets, multipart uploads, listings, conditional puts,
checksums, deletion, the clock and the time each takes. It works under a prefix of its own and removes that
again, as it does folders that it made. Of a bucket it tells what a write-ahead log in it asks for a month,
with the options of s3.wal.path that the address has.

  millrace doctor 's3://BUCKET?region=eu-central-1'
  millrace doctor 's3://BUCKET?endpoint=http://127.0.0.1:9000&pathStyle=true&accessKey=...&secretKey=...'
  millrace doctor '0@s3://WAL-BUCKET?region=eu-central-1&batchInterval=0'
  millrace doctor file:///var/lib/millrace/objects

Without keys in the address the usual chain is asked: environment, profile, web identity, container, instance.
"""
NO_CONDITION = (
    "binding the bucket and claiming a node are guarded by a look before and after only: start one cluster "
    "at a time on a new bucket, "
    "and never two copies of one node; objects are put without; "
    "an object WAL here needs fence=reservation in s3.wal.path, or keep the WAL on a disk"
)
NO_CONDITIONAL_END = (
    "large objects are put without: of two copies of one node the one that is not yet replaced could "
    "overwrite an object, "
    "which readers find by the writer that its footer names"
)
NO_UPLOAD_LIST = (
    "what a broker that was killed had sent of an unfinished object stays, and is paid for: let a rule of "
    "the bucket expire incomplete multipart "
    "uploads after a day or more"
)


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        "millrace doctor",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "address", help="s3://BUCKET?..., file:///DIR, or as in s3.data.buckets: 0@s3://BUCKET?..."
    )
    parser.add_argument(
        "--rounds", type=int, default=20, metavar="N", help="requests timed of each kind (default 20)"
    )
    parser.add_argument("--json", action="store_true", help="for programs, in place of the table")
    given = parser.parse_args(words)
    return run_loop(examine(given.address, max(1, given.rounds), given.json))


async def examine(text: str, rounds: int, is_json: bool) -> int:
    """Exit status: 0 where the store can be used, 1 where not, 2 where its address is refused or it does not
    open. Cancelled, it removes what it put."""
    from millrace.runtime.bundle import real_runtime
    from millrace.runtime.objectstore import data_store_of
    from millrace.runtime.objectstore.address import AddressError, parse_address
    from millrace.runtime.objectstore.folder_trial import FolderTrial
    from millrace.runtime.objectstore.probe import STORE_ERRORS, measure_latency, sweep
    from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy

    runtime = real_runtime()
    prefix = f"millrace-doctor-{runtime.rand.uuid().hex()}/"
    trial: FolderTrial | None = None
    try:
        address = parse_address(text if "@" in text.partition("://")[0] else f"0@{text}")
        wal_settings = _wal_settings(address) if address.scheme == "s3" else None
        if wal_settings is None and (unknown := address.unknown_options()):
            raise AddressError(f"{', '.join(unknown)}: no such option; there are none")
        if address.scheme == "file":
            trial = FolderTrial(address.target, prefix)
        bare = data_store_of(await runtime.open_store(address, runtime.clock))
    except (AddressError, *STORE_ERRORS, OSError, ValueError) as error:
        if trial is not None:
            trial.clean()
        print(f"millrace: {error}", file=sys.stderr)
        return 2
    except asyncio.CancelledError:
        if trial is not None:
            trial.clean()
        raise
    patient = RetryingObjectStore(bare, runtime.rand.split("doctor"), RetryPolicy(attempts_max=3))
    findings: list[Finding] = []
    latencies: list[Latency] = []
    fault, left, folders_left = "", 0, 0
    try:
        async for finding in _findings(patient, bare, prefix):
            findings.append(finding)
            if not is_json:
                print(f"  {finding.name}: {finding.verdict}", file=sys.stderr, flush=True)
            if finding.name == "put and get" and finding.is_fatal:
                break
        else:
            latencies = await measure_latency(bare, prefix, rounds)
        left = await sweep(patient, prefix)
    except STORE_ERRORS as error:
        fault = str(error)
    except asyncio.CancelledError:
        await sweep(patient, prefix)
        raise
    finally:
        await bare.close()
        if trial is not None:
            folders_left = len(trial.clean())
    remainder = (
        f"{left} objects and {folders_left} folders could not be removed" if left or folders_left else ""
    )
    made = trial.made[-1] if trial is not None and trial.made else ""
    costs = _wal_costs(wal_settings, latencies) if wal_settings is not None else []
    report = Report(address, findings, latencies, fault, remainder, prefix, made, wal_settings, costs)
    print(report.as_json() if is_json else report.as_text())
    return 0 if report.is_usable else 1


def _wal_settings(address: StoreAddress) -> ObjectWalSettings:
    """Of a log at this address. Raises AddressError."""
    from millrace.runtime.objectstore.address import AddressError
    from millrace.wal.kind import WalWords
    from millrace.wal.object.kind import read_settings

    words = WalWords(address.options, "prefer", "refuse")
    settings = read_settings(words)
    if unknown := address.unknown_options(("kind", *words.asked)):
        known = ", ".join((*address.store_options, *words.asked))
        raise AddressError(f"{', '.join(unknown)}: no such option; there are {known}")
    if mistakes := [*words.mistakes, *settings.problems()]:
        raise AddressError(f"{address} {mistakes[0]}")
    return settings


def _wal_costs(settings: ObjectWalSettings, latencies: Sequence[Latency]) -> list[Cost]:
    """By what a small put took just now; none where none was timed."""
    from millrace.wal.object.cost import monthly_costs

    puts = [latency.p50_ms for latency in latencies if latency.verb == "put"]
    return monthly_costs(settings, puts[0]) if puts else []


async def _findings(store: ObjectStore, bare: ObjectStore, prefix: str) -> AsyncIterator[Finding]:
    """`store` asks again where `bare` was not answered."""
    from millrace.runtime.objectstore.probe import (
        find_out,
        probe_conditional_completion,
        probe_delete,
        probe_list,
        probe_list_uploads,
        probe_multipart,
        probe_put_and_get,
        probe_put_if_absent,
        probe_ranges,
    )

    s3 = None
    if hasattr(bare, "http"):  # S3: the interface has no more to ask
        from millrace.runtime.objectstore.s3 import S3ObjectStore
        from millrace.runtime.objectstore.s3_probe import S3Probe

        assert isinstance(bare, S3ObjectStore)
        s3 = S3Probe(bare, prefix)
        yield await s3.clock()  # first: with a wrong one nothing else is answered
    yield await find_out("put and get", "", probe_put_and_get(store, prefix))
    yield await find_out("ranged get", "", probe_ranges(store, prefix))
    yield await find_out("list", "", probe_list(store, prefix))
    yield await find_out("multipart", "", probe_multipart(store, prefix))
    yield await find_out("delete", "", probe_delete(store, prefix))
    yield await find_out("If-None-Match", NO_CONDITION, probe_put_if_absent(store, prefix))
    completed = probe_conditional_completion(store, prefix)
    yield await find_out("If-None-Match for multipart", NO_CONDITIONAL_END, completed)
    if s3 is not None:
        yield await find_out("list uploads", NO_UPLOAD_LIST, probe_list_uploads(store, prefix))
        async for finding in s3.findings():
            yield finding


class Report:
    def __init__(
        self,
        address: StoreAddress,
        findings: Sequence[Finding],
        latencies: Sequence[Latency],
        fault: str,
        remainder: str,
        prefix: str,
        made: str = "",
        wal_settings: ObjectWalSettings | None = None,
        costs: Sequence[Cost] = (),
    ) -> None:
        self.address = address
        self.findings = findings
        self.latencies = latencies
        self.fault = fault  # what ended the examination early
        self.remainder = remainder
        self.prefix = prefix
        self.made = made  # a folder that was not there before
        self.wal_settings = wal_settings
        self.costs = costs  # of a write-ahead log here

    @property
    def is_usable(self) -> bool:
        return not self.fault and not any(finding.is_fatal for finding in self.findings)

    @property
    def sentence(self) -> str:
        fatal = [finding for finding in self.findings if finding.is_fatal]
        if fatal:
            names = ", ".join(finding.name for finding in fatal)
            advice = f"; {fatal[0].advice}" if fatal[0].advice else ""
            return f"not usable: the broker cannot do without {names} ({fatal[0].seen}{advice})"
        if self.fault:
            return f"not usable: the store does not answer: {self.fault}"
        other = [finding.name for finding in self.findings if finding.verdict != "yes"]
        return f"usable; done another way: {', '.join(other)}" if other else "usable"

    @property
    def note(self) -> str:
        if not self.made:
            return ""
        return (
            f"{self.made} was not there: it was made for this, and removed again, as a broker makes it at "
            "its start. Where another disk belongs "
            "there, mount that first: what was tried is the one that the folder would lie on now"
        )

    @property
    def _wal_words(self) -> str:
        assert self.wal_settings is not None
        return f"as s3.wal.path, batchInterval={self.wal_settings.interval_ms}, at $0.005 a thousand"

    def policy(self) -> dict[str, Any] | None:
        """The least that the broker must be allowed, as IAM says it."""
        if self.address.scheme != "s3":
            return None
        region = self.address.text("region") or ""
        partition = (
            "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"
        )
        bucket = f"arn:{partition}:s3:::{self.address.target}"
        objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        return {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"],
                    "Resource": bucket,
                },
                {"Effect": "Allow", "Action": objects, "Resource": f"{bucket}/*"},
            ],
        }

    def as_json(self) -> str:
        found = [
            {name: str(getattr(f, name)) for name in ("name", "verdict", "seen", "instead", "advice")}
            | {"fatal": f.is_fatal}
            for f in self.findings
        ]
        times = [{name: getattr(one, name) for name in one.__dataclass_fields__} for one in self.latencies]
        return json.dumps(
            {
                "address": str(self.address),
                "usable": self.is_usable,
                "verdict": self.sentence,
                "findings": found,
                "latencies": times,
                "wal_costs": [
                    {
                        "stream": one.stream,
                        "puts_a_second": one.puts_a_second,
                        "dollars_a_month": one.dollars_a_month,
                    }
                    for one in self.costs
                ],
                "left": self.remainder,
                "note": self.note,
                "policy": self.policy(),
            },
            indent=1,
        )

    def as_text(self) -> str:
        lines = [str(self.address), ""]
        lines += table(
            ("property", "verdict", "seen"), [(f.name, str(f.verdict), f.seen) for f in self.findings]
        )
        for finding in self.findings:
            if finding.verdict != "yes":
                instead = finding.instead or "the broker cannot do without it"
                lines += ["", f"{finding.name}: {'; '.join(filter(None, (instead, finding.advice)))}."]
        if self.latencies:
            rows = [
                (f"{one.verb} {one.size_bytes >> 10} "
                 "KiB", one.count, *(f"{t:.1f}" for t in (one.p50_ms, one.p90_ms, one.p99_ms)),
                 f"{one.mb_per_s:.1f}")
                for one in self.latencies
            ]  # fmt: skip
            lines += ["", *table(("one at a time", "count", "p50 ms", "p90 ms", "p99 ms", "MB/s"), rows)]
        if self.costs and self.wal_settings is not None:
            costs = [
                (one.stream, f"{one.puts_a_second:.1f}", f"{one.dollars_a_month:.0f}") for one in self.costs
            ]
            lines += ["", *table((self._wal_words, "PUT a second", "$ a month"), costs)]
        policy = self.policy()
        if policy is not None:
            lines += ["", "The least IAM policy that suffices:", json.dumps(policy, indent=2)]
        if self.note:
            lines += ["", f"{self.note}."]
        if self.remainder:
            lines += ["", f"{self.remainder} under {self.prefix}"]
        return "\n".join([*lines, "", f"verdict: {self.sentence}"])
