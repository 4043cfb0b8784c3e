"""Loses answers: passes each request on, and closes the connection in place of the first answer to each POST body.

What a client does then is what it does when the network fails behind a write. Prints its port.
"""

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

TARGET = urlsplit(sys.argv[1])
PASSED = ("content-type", "authorization", "x-stainless-retry-count", "idempotency-key")


class Handler(BaseHTTPRequestHandler):
    lost = set()

    def pass_on(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        headers = {name: self.headers[name] for name in PASSED if self.headers.get(name)}
        upstream = http.client.HTTPConnection(TARGET.hostname, TARGET.port)
        upstream.request(self.command, self.path, body, headers)
        reply = upstream.getresponse()
        data = reply.read()
        seen = (self.path, body)
        if self.command == "POST" and seen not in Handler.lost:
            Handler.lost.add(seen)
            self.close_connection = True
            return
        self.send_response(reply.status)
        self.send_header("content-type", reply.headers.get("content-type", "application/json"))
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = pass_on

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
