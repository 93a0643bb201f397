"""python -m recbole_diffgrm.serve: a finished run as an HTTP service, with a page to click through it."""

import importlib.util
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recbole_diffgrm.cli.arguments import exit_code, parse_arguments, working
from recbole_diffgrm.errors import UserError

USAGE = """\
Serve a finished run: recommendations, how they came about, and new items, over HTTP and on a page.

  python -m recbole_diffgrm.serve runs/ml-100k/DiffGRM-...
  python -m recbole_diffgrm.serve runs/ml-100k/DiffGRM-... --host=0.0.0.0 --port=80 --beam_size=64

  RUN              the directory of a finished run, or one that save_pretrained has written
  --host=ADDRESS   to listen on (default: 127.0.0.1, this machine only; there is no password)
  --port=N         default: 8000; 0 takes a free one
  --repeatable --beam_size ...   what --recommend of run_recbole_diffgrm.py can change

The page is at /, the description of the interface at /openapi.json. SIGTERM and Ctrl-C stop it once all requests that
have begun are answered. Needs pip install "recbole_diffgrm[serve]".
"""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments or "-h" in arguments or not arguments:
        print(USAGE, end="")
        return 0 if arguments else 2
    return exit_code(lambda: _main(arguments))


def _main(arguments: list[str]) -> int:
    from recbole_diffgrm.experiments.changes import check_recommend
    from recbole_diffgrm.experiments.result import RunResult
    from recbole_diffgrm.models import get_options

    run_dir, *rest = arguments
    if run_dir.startswith("-"):
        raise UserError("the first argument is the directory of a finished run: serve RUN --port=8000")
    options = parse_arguments(rest, texts={"host"})
    host, port = options.pop("host", "127.0.0.1"), options.pop("port", 8000)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 2**16:
        raise UserError(f"--port must be a whole number from 0 to 65535, not {port!r}")
    finished = RunResult.load(Path(run_dir))
    check_recommend(finished.model, get_options(finished.model, run_dir), finished.config, options)
    for package in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f'a service needs {package}: pip install "recbole_diffgrm[serve]"')
    with _listen(host, port) as listening, working():
        from recbole_diffgrm.serving.recommender import Recommender
        from recbole_diffgrm.serving.service import serve

        recommender = Recommender.load(run_dir, **options)
        address, actual = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        ready = f"{finished.model} on {finished.dataset}: http://{shown}:{actual}"
        serve(recommender, listening, lambda: print(ready, flush=True))
    return 0


def _listen(host: Any, port: int) -> socket.socket:
    """Now: an address that is taken is answered before the model is loaded."""
    try:
        family, _, _, _, address = socket.getaddrinfo(str(host), port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise UserError(f"cannot listen on {host}, port {port} ({error.strerror or error})") from None
    # Connections inherit it; asyncio sets it only where the socket names its protocol. Without it, the body of an
    # answer waits until the client has confirmed the head: 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
