"""The images: built as compose would build them, their sizes over their bases told, and the broker's looked
into."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tests.docker.base_image import provide_base
from tests.docker.commands import run, say, step
from tests.docker.containers import expect
from tests.docker.engine import Engine
from tests.docker.pages import Image, normal_name, pinned_names, read_dockerfile

ROOT = Path(__file__).resolve().parents[2]
STEPS = re.compile(r"^(Step \d+/\d+|#\d+ \[)")
MIB = 1 << 20
NOTHING = "scratch"
INSIDE = """
import importlib.metadata, importlib.util, json, os, stat
data = os.stat("/data")
print(json.dumps({
    "uid": os.getuid(), "owner": data.st_uid, "mode": oct(stat.S_IMODE(data.st_mode)),
    "is_compiled": importlib.util.find_spec("millrace.protocol._record_walk") is not None,
    "distributions": [found.metadata["Name"] for found in importlib.metadata.distributions()],
}))
"""


class Images:
    """`close` takes away what was built, and the bases that were made here."""

    def __init__(self, engine: Engine, debian_base: Path | None) -> None:
        self.engine = engine
        self.debian_base = debian_base
        self._own: list[str] = []

    def build(self, dockerfile: Path, context: Path, names: Iterable[str]) -> Image:
        """One image under all of `names`."""
        image = read_dockerfile(dockerfile.read_text())
        for base in image.bases:
            if base != NOTHING and provide_base(self.engine, base, self.debian_base):
                self._own.append(base)
        first, *others = names
        self._own[:0] = [first, *others]
        with step(f"building the image {first}"):
            words = ("docker", "build", *self.engine.build_words, "--file", str(dockerfile), "--tag", first)
            run((*words, str(context)), self.engine.env, STEPS)
        for name in others:
            self.engine.docker("tag", first, name)
        base_bytes = 0 if image.base == NOTHING else self._size_of(image.base)
        size_bytes = self._size_of(first)
        above = (size_bytes - base_bytes) / MIB
        say(f"  {size_bytes / MIB:.0f} MiB, {above:.0f} of them above {image.base}")
        for layer in self.engine.docker(
            "history", "--format", "{{.Size}} {{.CreatedBy}}", first
        ).splitlines():
            size, _, command = layer.partition(" ")
            if size != "0B":
                say(f"  {size:>8} {command}")
        return image

    def _size_of(self, name: str) -> int:
        return int(self.engine.docker("image", "inspect", "--format", "{{.Size}}", name))

    def look_inside(self, name: str, image: Image) -> None:
        """The broker's."""
        with step("looking into the image"):
            words = ("run", "--rm", "--network=none", "--entrypoint=python")
            found = json.loads(self.engine.docker(*words, name, "-c", INSIDE))
            in_base = (
                "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"
            )
            base = {normal_name(one) for one in self.engine.docker(*words, image.base, "-c", in_base).split()}
        expect(found["uid"] not in (0,), f"it runs as user {found['uid']}, not as root", found)
        expect(
            found["owner"] == found["uid"] and found["mode"] == "0o700", "/data is that user's alone", found
        )
        added = {normal_name(one) for one in found["distributions"]} - base
        allowed = pinned_names((ROOT / "requirements" / "run.txt").read_text()) | {"millrace-kafka"}
        expect(added <= allowed, "nothing is installed beside what the broker needs", sorted(added - allowed))
        expect(
            found["is_compiled"], "the walk over records is compiled", "in Python: the build had no compiler"
        )
        expect(
            "millrace-kafka" in added, f"millrace-kafka and {len(added) - 1} pinned requirements are", added
        )

    def close(self) -> None:
        for name in filter(self.engine.has, self._own):
            self.engine.docker("image", "rm", "--force", name)
