"""A small server of Weights & Biases for the tests: it takes the runs that wandb's own programs send, and keeps them.

It answers only what `wandb.init`, a running run and `wandb sync` ask for.
"""

import gzip
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "k" * 40
ENTITY, PROJECT = "me", "tiny-gpt"
HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


@dataclass
class ServedRun:
    """What has been sent of a run."""

    fields: dict[str, Any] = field(default_factory=dict)  # of its last description: name, group, tags, config
    lines: dict[str, list[str]] = field(default_factory=dict)  # by the name of the file that they make up
    exit_code: int | None = None

    def history(self) -> list[dict[str, Any]]:
        """The rows in the order in which they arrived."""
        return [json.loads(line) for line in self.lines.get(HISTORY, [])]

    def summary(self) -> dict[str, Any]:
        """What sums the run up, as it was sent last."""
        return dict(json.loads(self.lines[SUMMARY][-1]))

    def take_stream(self, request: dict[str, Any]) -> None:
        """Keep the lines that were sent; as on the real server, those with an offset of earlier ones replace them."""
        for file, part in (request.get("files") or {}).items():
            lines = self.lines.setdefault(file, [])
            lines[part["offset"] : part["offset"] + len(part["content"])] = part["content"]
        if request.get("complete"):
            self.exit_code = request["exitcode"]

    def described(self) -> dict[str, Any]:
        """What somebody must know who goes on with it."""
        events = self.lines.get("wandb-events.jsonl", [])
        return {
            "id": self.fields["name"],
            "name": self.fields["name"],
            "displayName": self.fields.get("displayName"),
            "sweepName": self.fields.get("sweep"),
            "summaryMetrics": json.dumps(self.summary() if SUMMARY in self.lines else {}),
            "historyLineCount": len(self.lines.get(HISTORY, [])),
            "eventsLineCount": len(events),
            "logLineCount": 0,
            "historyTail": json.dumps(self.lines.get(HISTORY, [])[-1:]),
            "eventsTail": json.dumps(events[-1:]),
            "config": self.fields.get("config", "{}"),
            "tags": self.fields.get("tags", []),
            "wandbConfig": json.dumps({"t": 1}),  # it has begun
        }


class WandbServer:
    """The server. `refusal` is the HTTP status of all its answers, where it refuses to serve.

    Where it `refuses_runs`, it takes a key but no run; the ids of these are `refused`.
    """

    def __init__(self) -> None:
        self.runs: dict[str, ServedRun] = {}
        self.files: dict[str, bytes] = {}  # by name: samples and what else is no line
        self.refusal: int | None = None
        self.refuses_runs = False
        self.refused: list[str] = []
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """What reads requests and writes answers."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                with server.lock:
                    status, answer = server.answer(self.path, json.loads(self.body() or b"{}"))
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_PUT(self) -> None:
                body = self.body()
                with server.lock:
                    server.files[self.path.removeprefix("/file/")] = body
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def body(self) -> bytes:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                return gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        return Handler

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead wandb here."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def only_run(self) -> ServedRun:
        """The one run that there is."""
        (run,) = self.runs.values()
        return run

    def stop(self) -> None:
        """Be gone: nothing listens there any more."""
        self.http.shutdown()
        self.http.server_close()

    def answer(self, path: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The HTTP status of an answer, and the answer."""
        if self.refusal is not None:
            return self.refusal, {"errors": [{"message": "permission denied"}]}
        if path.endswith("/file_stream"):
            self.runs[path.split("/")[-2]].take_stream(request)
            return 200, {}
        if "query" not in request:
            return 404, {}
        if self.refuses_runs and "upsertBucket" in request["query"]:
            self.refused.append(request["variables"]["name"])
            return 400, {"errors": [{"message": "no such project"}]}
        return 200, {"data": self.data(request["query"], request.get("variables") or {})}

    def data(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question in GraphQL."""
        owner = {"id": "1", "name": ENTITY}
        project = {"id": "1", "name": PROJECT, "entity": owner}
        if "upsertBucket" in query:
            run = self.runs.setdefault(variables["name"], ServedRun())
            run.fields |= {name: value for name, value in variables.items() if value is not None}
            return {"upsertBucket": {"bucket": {**run.described(), "project": project}, "inserted": True}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/file/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        if "bucket(name: $name, missingOk: true)" in query:
            found = self.runs.get(variables["name"])
            return {"model": {**project, "bucket": found and found.described()}}
        if "viewer" in query:
            return {"viewer": {"id": "1", "entity": ENTITY, "username": ENTITY, "teams": {"edges": []}}}
        return {"serverInfo": {"features": []}}
