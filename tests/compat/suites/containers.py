"""A command `docker` for suites that stop and start a broker's container: `docker compose stop kafka-3` stops
node 3 of ours by SIGTERM, `start` starts it and returns when it is ready. Everything else is refused, with
docker's code 125.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.live.cluster import LiveNodes

SCRIPT = """#!/bin/sh
case "$1 $2" in
"compose start"|"compose stop")
    exec {python} -c 'import sys, urllib.request
urllib.request.urlopen("http://127.0.0.1:{port}/" + "/".join(sys.argv[1:])).read()' "$2" "${{3##*-}}" ;;
esac
echo "there are no containers here: docker $*" >&2
exit 125
"""


@contextmanager
def as_containers(nodes: LiveNodes, folder: Path) -> Iterator[str]:
    """Yields a PATH on which `docker` comes first. `folder` must not be there. One order at a time."""
    lock = threading.Lock()

    class Orders(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            order, number = self.path.strip("/").split("/")
            node = nodes.brokers[int(number)]
            with lock:
                if order == "stop" and node.is_running():
                    node.stop()
                elif order == "start" and not node.is_running():
                    node.start()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Orders)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    folder.mkdir()
    script = folder / "docker"
    script.write_text(SCRIPT.format(python=sys.executable, port=server.server_address[1]))
    script.chmod(0o755)
    try:
        yield f"{folder}:{os.environ['PATH']}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
