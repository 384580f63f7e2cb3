"""A server on this machine with a collection of matrices; its answers may be faulty."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Collection:
    """Serves `files` by their path; the first answers have the `faults`, one each.

    A fault is 'cut' (the connection ends early), 'short' or 'long' (the stated length is wrong), 'slow'
    (nothing comes), 'other' (a web page instead of the file), or a status such as 500.
    """

    def __init__(self):
        self.files, self.faults, self.asked = {}, [], []
        collection = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                collection.answer(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self):
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, request):
        self.asked.append(request.path)
        fault = self.faults.pop(0) if self.faults else None
        data = self.files.get(request.path)
        if isinstance(fault, int) or data is None:
            request.send_error(fault if isinstance(fault, int) else 404)
            return
        if fault == "slow":
            self.stopped.wait(5)
            return
        if fault == "other":
            data = b"<html>The collection moves to another place today.</html>"
        length = len(data) + {"short": -10, "long": 10}.get(fault, 0)
        request.send_response(200)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(data[: len(data) // 2] if fault == "cut" else data[:length])
        request.wfile.flush()
        if fault in ("cut", "long"):
            time.sleep(0.01)
            request.close_connection = True
