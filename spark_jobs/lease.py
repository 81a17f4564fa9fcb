"""One driver a checkpoint, on whatever storage the checkpoint lies: claims.py says by which files and why
that holds.

A driver whose process is gone is followed at once on its own machine, and after EXPIRES_S from elsewhere. One
that lost its lease while it stood still, or could not reach the storage, learns it from the first renewal
after that; each batch asks for one before it counts as done.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Protocol

from millrace.spark_jobs.claims import (
    CLAIMS,
    Claim,
    Found,
    IsRunning,
    Watch,
    claim_name,
    encode_claim,
    newest_epoch,
)
from millrace.spark_jobs.failures import JAVA_ERRORS, JVM_GONE
from millrace.spark_jobs.processes import Process, is_running
from millrace.spark_jobs.refusal import Refused, Stopped

RENEW_S = 10.0
EXPIRES_S = 40.0
ENDS_WITHIN_S = 10.0  # a driver that runs is waited for: it may be ending
LOOK_S = 0.5
JOIN_S = 5.0


class ClaimFiles(Protocol):
    """What Files has. A listing must have what was written before it, by whomever."""

    def child(self, folder: str, name: str) -> str: ...
    def make_folder(self, path: str) -> None: ...
    def names(self, folder: str) -> list[str]: ...
    def texts(self, folder: str) -> dict[str, str]: ...
    def put(self, path: str, text: str) -> None: ...
    def remove(self, path: str) -> None: ...


class Lease:
    """`take`, then `hold` before whatever must not be done by two; `give_back`. `process`: the one that
    writes, Spark's JVM."""

    def __init__(
        self,
        files: ClaimFiles,
        checkpoint: str,
        process: Process,
        *,
        expires_s: float = EXPIRES_S,
        is_running: IsRunning = is_running,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        draw: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._files, self._checkpoint, self._process = files, checkpoint, process
        self._folder = files.child(checkpoint, CLAIMS)
        self._expires_s, self._is_running, self._now = expires_s, is_running, now
        self._wait, self._draw = wait, draw
        self.epoch, self._path, self._renewals = 0, "", 0
        self._lock = (
            threading.Lock()
        )  # of what follows a look at the claims: the renewing thread's and the batches'
        self._renewing: threading.Thread | None = None
        self._has_ended = threading.Event()
        self.is_lost = False

    def take(
        self, is_stopped: Callable[[], bool], say: Callable[[str], None], wait_s: float = ENDS_WITHIN_S
    ) -> None:
        """Raises Refused where another driver runs, Stopped where a signal comes meanwhile."""
        self._files.make_folder(self._folder)
        watch, begun, has_said = Watch(self._expires_s), self._now(), False
        while not is_stopped():
            found = self._files.texts(self._folder)
            view = watch.look(found, self._now(), self._is_running)
            if not view.held:
                if self._has_claimed(found):
                    return
                continue
            holder = ", ".join(view.held)
            if view.is_alive and self._now() - begun >= wait_s:
                raise Refused(
                    f"another driver runs with the checkpoint {self._checkpoint} ({holder}): end it, or give "
                    "this one its own"
                )
            if not view.is_alive and not has_said:
                say(
                    f"waiting for up to {self._expires_s:g} s whether the checkpoint's last driver still "
                    f"runs: {holder}"
                )
                has_said = True
            self._wait(LOOK_S)
        raise Stopped

    def _has_claimed(self, judged: Found) -> bool:
        """Of two that come at once either both withdraw, each for a time of its own, or the later one."""
        owner = self._draw()
        epoch = newest_epoch(judged) + 1
        name = claim_name(epoch, owner)
        path = self._files.child(self._folder, name)
        text = encode_claim(Claim(self._process))
        self._files.put(path, text)
        if self._files.texts(self._folder) != {**judged, name: text}:
            self._files.remove(path)
            self._wait(int(owner[:4], 16) / 0x10000)
            return False
        self.epoch, self._path, self._renewals = epoch, path, 0
        for other in judged:
            self._files.remove(self._files.child(self._folder, other))
        self.hold()  # the removing may have taken long
        return True

    def hold(self) -> None:
        """Returns where this driver has the lease still, and nobody takes it within EXPIRES_S from the call;
        else raises Refused."""
        with self._lock:
            if not self.is_lost:
                self._renewals += 1
                self._files.put(self._path, encode_claim(Claim(self._process, self._renewals)))
                self.is_lost = newest_epoch(self._files.names(self._folder)) > self.epoch
                if (
                    self.is_lost
                ):  # left where it is: epochs never begin anew while one may stand still that has an old one
                    self._files.put(
                        self._path, encode_claim(Claim(self._process, self._renewals, is_given_back=True))
                    )
            if self.is_lost:
                raise Refused(
                    f"another driver took the checkpoint {self._checkpoint}, for this one did not renew its "
                    "lease for "
                    f"{self._expires_s:g} s: it writes nothing more; end one of the two"
                )

    def keep(self, renew_s: float = RENEW_S) -> None:
        """Renews it from now on, beside all else."""
        self._renewing = threading.Thread(target=self._renew, args=(renew_s,), name="lease", daemon=True)
        self._renewing.start()

    def _renew(self, renew_s: float) -> None:
        while not self.is_lost and not self._has_ended.wait(renew_s):
            try:
                self.hold()
            except Refused:
                return  # `is_lost` says it
            except JAVA_ERRORS:
                continue  # the storage is away: the next batch says so
            except JVM_GONE:
                return  # nobody is left who could write

    def give_back(self) -> None:
        """Another driver may have it at once; where the storage is away, after EXPIRES_S."""
        self._has_ended.set()
        if self._renewing:
            self._renewing.join(JOIN_S)
            if self._renewing.is_alive():
                return
        if self._path and not self.is_lost:
            try:
                self._files.put(
                    self._path, encode_claim(Claim(self._process, self._renewals, is_given_back=True))
                )
            except (*JAVA_ERRORS, *JVM_GONE):
                return
