"""A scripted model with the Responses API, for both suites. Prints its port and serves until it is stopped.

To a user's message it answers with reasoning and two calls of `look` at once; to their outputs with a text that
says how many items it was sent.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 15,
}


def answer(items, number):
    if items and items[-1].get("type") == "function_call_output":
        text = f"saw {len(items)} items"
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return [
            {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        ]
    call = {"type": "function_call", "status": "completed", "name": "look"}
    return [
        {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": [{"type": "summary_text", "text": "look twice"}],
        },
        {**call, "id": f"fc_{number}a", "call_id": f"call_{number}a", "arguments": '{"place": "shade"}'},
        {**call, "id": f"fc_{number}b", "call_id": f"call_{number}b", "arguments": '{"place": "sun"}'},
    ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests = 0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Handler.requests += 1
        items = body["input"]
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        response = {
            "id": f"resp_{Handler.requests}",
            "object": "response",
            "created_at": 0,
            "status": "completed",
            "model": body["model"],
            "output": answer(items, Handler.requests),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": USAGE,
        }
        data = json.dumps(response).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
