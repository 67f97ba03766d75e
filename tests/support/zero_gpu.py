"""The real ``spaces`` package with a fake of ZeroGPU's device API and of its CUDA emulation, for a process without GPU.

``fake_zero_gpu`` comes before the first import of ``spaces``, so before that of ``app``.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import ModuleType
from urllib.parse import parse_qs, urlsplit


@dataclass
class DeviceAPI:
    """What was asked of the device API, in order, with its parameters; ``refuse`` lets no GPU be had."""

    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    refuse: bool = False

    def times(self, what: str) -> int:
        return sum(name == what for name, _ in self.asked)


def fake_zero_gpu() -> DeviceAPI:
    """Make this process one of a ZeroGPU Space."""
    api = DeviceAPI()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            address = urlsplit(self.path)
            api.asked.append((address.path, {name: one for name, (one,) in parse_qs(address.query).items()}))
            granted = {"idle": True, "nvidiaIndex": 0, "nvidiaUUID": "x", "allowToken": "t"}
            body = json.dumps(granted if address.path == "/schedule" else {}).encode()
            self.send_response(503 if api.refuse and address.path == "/schedule" else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    stub = ModuleType("spaces.zero.torch")  # patches a torch with CUDA, which is not here
    for name in ("patch", "unpatch", "init", "move", "enter_mode"):
        setattr(stub, name, lambda *_, **__: None)
    stub.pack = stub.size = lambda: 0
    stub.is_in_bad_fork = lambda: False
    sys.modules["spaces.zero.torch"] = stub
    os.environ |= {
        "SPACES_ZERO_GPU": "true",
        "SPACES_ZERO_DEVICE_API_URL": f"http://127.0.0.1:{server.server_port}",
        "SPACE_ID": "somebody/specllava",
    }
    return api
