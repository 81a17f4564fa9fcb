"""Something that goes on in a thread of its own beside a test: `with` begins it and ends it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tests.patience import PATIENCE_S


class Background(ABC):
    """What its thread met is raised at the end, unless the test itself failed."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._is_over = threading.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Sets `_has_begun` when the test may go on, and returns soon after `_is_over`."""

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error
        finally:
            self._has_begun.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._has_begun.wait(PATIENCE_S), f"{type(self).__name__} did not begin"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} does not end"
        if self.error is not None and kind is None:
            raise self.error
