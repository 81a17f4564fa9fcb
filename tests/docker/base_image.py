"""The images that ours are built on: pulled, or, where no registry answers and it was asked for, made of
Debian's packages.

What is made so stands in for the real one: Python 3.11 as Debian has it, this machine's certificates, and pip
allowed to install into the system; for an image of Go, that and this machine's Go. It gets the name that the
Dockerfile says, in an engine that has no image of this name, and loses it when the test is over.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from tests.docker.commands import Failed, run, say, step
from tests.docker.engine import Engine, Missing

RELEASE = "bookworm"  # whose Python is 3.11
# the fourth has what C is compiled against; a JRE's trust store is made of the fifth
PACKAGES = "python3,python3-pip,python3-venv,libpython3-dev,ca-certificates"
CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
OWN_CERTIFICATES = Path("usr/local/share/ca-certificates")  # Java's are made of these and Debian's
WITH_GO = """\
FROM {base}
COPY . /usr/local/go
ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
STAGES = re.compile(r"^I: (?!Retrieving|Validating|Extracting|Configuring|Unpacking)")
REMEDY = """\
{reason} Where no registry answers, DEBIAN_BASE=FILE makes an image of that name from Debian's packages (root,
debootstrap), kept in FILE for the next time."""


def provide_base(engine: Engine, name: str, debian_base: Path | None) -> bool:
    """Whether it was made, so that it has to be taken away. Raises Missing where it can neither be had nor
    made."""
    if engine.has(name):
        say(f"{name}: is there")
        return False
    try:
        with step(f"pulling {name}"):
            engine.docker("pull", "--quiet", name)
        return False
    except Failed as error:
        reason = str(error).splitlines()[-1]
    if debian_base is None:
        raise Missing(REMEDY.format(reason=reason))
    say(f"  {reason}")
    say(f"No registry answers: {name} is made of Debian's packages, not the image that a user gets.")
    if not debian_base.exists():
        make_root(debian_base)
    with step(f"importing {debian_base} as {name}"):
        engine.docker("import", "--change", "ENV PIP_BREAK_SYSTEM_PACKAGES=1", str(debian_base), name)
    if name.startswith("golang:"):
        add_go(engine, name)
    return True


def add_go(engine: Engine, name: str) -> None:
    if shutil.which("go") is None:
        raise Missing(f"A stand-in for {name} takes this machine's Go, and there is none.")
    root = run(("go", "env", "GOROOT")).strip()
    with tempfile.TemporaryDirectory() as folder, step(f"adding this machine's Go to {name}"):
        dockerfile = Path(folder) / "Dockerfile"
        dockerfile.write_text(WITH_GO.format(base=name))
        engine.docker("build", *engine.build_words, "--file", str(dockerfile), "--tag", name, root)


def make_root(target: Path) -> None:
    """A root file system as a tar at `target`, whole or not at all."""
    if os.geteuid() or shutil.which("debootstrap") is None:
        raise Missing("DEBIAN_BASE needs root and debootstrap: apt-get install debootstrap.")
    folder = Path(tempfile.mkdtemp(prefix="millrace-base-"))
    try:
        root, part = folder / "root", target.with_name(f"{target.name}.part")
        with step("debootstrap, some minutes"):
            run(
                ("debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root)),
                shown=STAGES,
            )
        (root / "usr/bin/python").symlink_to("python3")
        own = Path("/") / OWN_CERTIFICATES
        if own.exists():
            shutil.copytree(own, root / OWN_CERTIFICATES, dirs_exist_ok=True)
        run(("chroot", str(root), "env", "TMPDIR=/tmp", "update-ca-certificates"))
        shutil.copyfile(Path("/") / CERTIFICATES, root / CERTIFICATES)
        with step(f"writing {target}"):
            run(("tar", "-C", str(root), "--exclude=./var/cache/apt/archives/*.deb", "-cf", str(part), "."))
        part.rename(target)
    finally:
        shutil.rmtree(folder)
