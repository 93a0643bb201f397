"""A local HTTP server that misbehaves on request."""

import http.server
import threading


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` by name. `answers` come first, one a request: a status, or None for no answer at all. A response
    breaks off after `cut_after` bytes, or at byte `ends_at` of a file; `ranges` False ignores Range requests."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.answers: list[int | None] = []
        self.cut_after: int | None = None
        self.cuts: list[int] = []  # of the first responses, where they differ
        self.ends_at: int | None = None
        self.ranges = True
        self.requests: list[tuple[str, str | None, int]] = []  # (name, Range header, bytes sent)
        self.paths: list[str] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __exit__(self, *error):
        self.shutdown()
        super().__exit__(*error)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/files"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.server.paths.append(self.path)
        self.close_connection = True
        if self.server.answers:
            status = self.server.answers.pop(0)
            return self.send_error(status) if status else None
        name = self.path.rsplit("/", 1)[1]
        content = self.server.files.get(name)
        if content is None:
            return self.send_error(404)
        asked = self.headers.get("Range") if self.server.ranges else None
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if asked and start >= len(content):
            return self.send_error(416)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut_after = self.server.cuts.pop(0) if self.server.cuts else self.server.cut_after
        body = content[start : start + cut_after] if cut_after else content[start:]
        if self.server.ends_at is not None:
            body = body[: max(0, self.server.ends_at - start)]
        self.server.requests.append((name, asked, len(body)))
        self.wfile.write(body)
        return None
