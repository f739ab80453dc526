#!/usr/bin/env python3
"""Receives Hopline's webhooks, checks their signatures and prints one line per event.

Needs Python 3.8 or later and nothing else:

    python3 receiver.py --port 9000 --secret whsec_...

A request is answered 200 when its signature is right and fresh, and 400 when it is not.
"""

import argparse
import hashlib
import hmac
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# A signed request that is older (or newer) than this is refused: somebody may have recorded it.
TOLERANCE_SECONDS = 300

# No webhook is larger; a stranger's request must not fill the memory.
MAX_BODY_BYTES = 1024 * 1024


def verify(secret, header, body, now):
    """Tells whether `header` signs the bytes `body` with `secret`, at about the time `now`.

    The header is `t=<unix seconds>,v1=<hex>`, and while a secret is being rotated it has a second `v1`. The
    signature is the HMAC-SHA256 of the digits of `t`, a full stop and the body, keyed with the secret as it was
    displayed. The body must be the bytes as they came: JSON that was parsed and written again may differ.
    """
    parts = [part.split("=", 1) for part in header.split(",") if "=" in part]
    times = [value for name, value in parts if name == "t"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdigit() and len(times[0]) < 15):
        return False
    if abs(now - int(times[0])) > TOLERANCE_SECONDS:
        return False
    signed = times[0].encode() + b"." + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest().encode()
    # compare_digest takes the same time wherever the first difference is.
    return any([hmac.compare_digest(expected, value.encode()) for name, value in parts if name == "v1"])


class Handler(BaseHTTPRequestHandler):
    """Answers webhooks on any path."""

    # Keeps the connection open for the next event.
    protocol_version = "HTTP/1.1"
    # A sender that stops in the middle of a request is not waited for.
    timeout = 30

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            self.answer(400)
            return
        body = self.rfile.read(int(length))
        receiver = self.server
        verified = verify(receiver.secret, self.headers.get("X-Service-Signature", ""), body, time.time())
        # Answered first, so that the sender has the answer to every event that is shown.
        self.answer(200 if verified else 400)
        receiver.show(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "event": self.headers.get("X-Service-Event", "-"),
                "delivery": self.headers.get("X-Service-Delivery", "-"),
                "verified": verified,
            },
            body,
        )

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Keeps http.server's own lines out of the output."""


class Receiver(ThreadingHTTPServer):
    """The server, and what its requests share."""

    daemon_threads = True

    def __init__(self, address, secret, as_json, count):
        super().__init__(address, Handler)
        self.secret = secret
        self.as_json = as_json
        self.left = count
        self.printing = threading.Lock()

    def show(self, line, body):
        """Prints one event, and stops the server after the last one that was asked for."""
        with self.printing:
            if self.left == 0:
                return
            if self.as_json:
                try:
                    line["body"] = json.loads(body)
                except ValueError:
                    line["body"] = None
                print(json.dumps(line), flush=True)
            else:
                verified = "verified" if line["verified"] else "NOT VERIFIED"
                # The headers are a stranger's until the signature is right, so nothing odd reaches the terminal.
                names = "  ".join(ascii(line[name])[1:-1] for name in ("time", "event", "delivery"))
                print(f"{names}  {verified}", flush=True)
            if self.left is not None:
                self.left -= 1
                if self.left == 0:
                    # Waits for the serving loop, so it must not run on it.
                    threading.Thread(target=self.shutdown).start()


def secret_of(arguments):
    """Finds the secret: an argument, a file, or the environment."""
    if arguments.secret:
        return arguments.secret
    if arguments.secret_file:
        with open(arguments.secret_file, encoding="utf-8") as file:
            return file.read().strip()
    return os.environ.get("WEBHOOK_SECRET", "")


def main():
    parser = argparse.ArgumentParser(description="Receives Hopline's webhooks and checks their signatures.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=9000, help="port to listen on, 0 for any (default: %(default)s)")
    parser.add_argument("--secret", help="the endpoint's secret, whsec_...; others on this machine can see it")
    parser.add_argument("--secret-file", metavar="FILE", help="a file with the secret")
    parser.add_argument("--json", action="store_true", help="print each event as a line of JSON, with its body")
    parser.add_argument("--count", type=int, metavar="N", help="exit after N events")
    arguments = parser.parse_args()
    try:
        secret = secret_of(arguments)
    except OSError as error:
        parser.error(f"cannot read the secret: {error}")
    if not secret:
        parser.error("no secret: use --secret, --secret-file or the environment variable WEBHOOK_SECRET")
    if arguments.count is not None and arguments.count < 1:
        parser.error("--count must be at least 1")
    try:
        receiver = Receiver((arguments.host, arguments.port), secret, arguments.json, arguments.count)
    except OSError as error:
        parser.error(f"cannot listen on {arguments.host}:{arguments.port}: {error}")
    print(f"listening on http://{arguments.host}:{receiver.server_address[1]}", file=sys.stderr, flush=True)
    with receiver:
        try:
            receiver.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
