"""MetricsServer: a port of its own on which Prometheus finds a deployment's metrics."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

from adaptive_spec.metrics import register

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from adaptive_spec.upkeep import Upkeep

PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer:
    """Serves the metrics of one deployment at ``http://host:port/metrics``, from a thread of its own.

    In Prometheus's plain text format, whatever the scraper would rather have: in the OpenMetrics format
    prometheus_client (as of 0.26) turns the colon of a sample's name into an underscore and leaves that of its
    description, so that ``adaptive_spec:depth`` would depend on who asks.

    Parameters
    ----------
    deployment : Upkeep
        Whose metrics.
    port : int
        0 takes any free one.
    host : str
        Address to listen on.

    Attributes
    ----------
    port : int
        The port that was opened.

    Raises
    ------
    ValueError
        If prometheus_client is not installed, or the port can't be opened.
    """

    def __init__(self, deployment: Upkeep, port: int, host: str = "0.0.0.0") -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ModuleNotFoundError as error:
            raise ValueError(
                "metrics.port: serving metrics needs the module prometheus_client; install it with: "
                "pip install 'adaptive-spec[metrics]', or leave the port out"
            ) from error
        registry = CollectorRegistry()
        register(deployment, registry)
        try:
            self._server = _Server(host, port, registry)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"metrics.port: {port} can't be opened on {host}: {getattr(error, 'strerror', None) or error}; "
                "choose a free port, and an address of this machine"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, name="adaptive-spec-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; a second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a scraper that hangs keeps no engine from ending

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10  # seconds of silence

    def do_GET(self) -> None:
        from prometheus_client import generate_latest

        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404, "there is nothing but /metrics")
            return
        body = generate_latest(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", PLAIN)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""
