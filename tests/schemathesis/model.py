"""A model server for the run of schemathesis: answers every chat completion at once, and the same way each time."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Short, so that it is smaller than what it stands for.
ANSWER = " ".join(["Basil wants light, warmth and water that does not stand; the seedlings go out after the last frost."] * 5)
USAGE = {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A stream's pieces go out as they are written.
    disable_nagle_algorithm = True

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if request.get("stream"):
            self.stream()
        else:
            message = {"role": "assistant", "content": ANSWER}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "c1", "object": "chat.completion", "model": "scripted", "choices": [choice], "usage": USAGE}
            self.send("application/json", json.dumps(answer).encode())

    def stream(self):
        pieces = [{"role": "assistant", "content": ""}, *({"content": word + " "} for word in ANSWER.split())]
        chunks = [{"index": 0, "delta": piece, "finish_reason": None} for piece in pieces]
        chunks.append({"index": 0, "delta": {}, "finish_reason": "stop"})
        lines = [json.dumps({"object": "chat.completion.chunk", "choices": [chunk]}) for chunk in chunks]
        lines += [json.dumps({"choices": [], "usage": USAGE}), "[DONE]"]
        self.send("text/event-stream", "".join(f"data: {line}\n\n" for line in lines).encode())

    def send(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def start():
    """Serves on a free port of the loopback; gives the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"
