"""Makes sessions with something of everything, so that requests find what they ask for."""

import json
import urllib.request

AGENT = {"description": "Writes code", "defaultCompaction": {"compactionCount": 40}}


def call(base, headers, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    kind = {} if data is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(base + path, data, {**headers, **kind}, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"null")


def message(role, text, **more):
    return {"role": role, "content": text, **more}


def history(number):
    calls = [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}]
    turns = [message("system", "You are a gardener.")]
    for turn in range(4):
        turns += [
            message("user", f"What grows in the shade of bed {turn}?"),
            message("assistant", None, tool_calls=calls),
            message("tool", "Ferns, hostas, ivy. " * 20, tool_call_id="c1"),
            message("assistant", f"Ferns, hostas and ivy grow there. Plan {number} is ready."),
        ]
    return turns


def plant(base, headers, count):
    """Makes so many sessions; gives for each what the paths of the API can name."""
    ask = lambda *args: call(base, headers, *args)  # noqa: E731
    ask("PUT", "/agents/coder", AGENT)
    found = []
    for number in range(count):
        session = ask("POST", "/sessions", {"messages": history(number), "agentName": "coder"})["id"]
        path = f"/sessions/{session}"
        ask("POST", f"{path}/compact", {"compactCount": 30})
        ask("POST", f"{path}/context", {"contextWindow": 128000})
        turn = ask("POST", f"{path}/turns", {"messages": [message("user", "And in the sun?")]})
        messages = ask("GET", f"{path}/messages")["data"]
        named = {"conversation_id": session.replace("sess_", "conv_"), "item_id": messages[-2]["id"]}
        found.append(named | {"id": session, "messageId": messages[-2]["id"], "turnId": turn["id"], "version": 1, "n": 1, "name": "coder"})
    return found
