"""The service under load: requests per second, latency, and whether SIGTERM loses a request.

    python benchmarks/serve.py --run runs/ml-100k/DiffGRM-... [--clients 1,8,64] [--seconds 10] [--output FILE.json]

Starts `python -m recbole_diffgrm.serve` in a process of its own. Each client asks for the ten best items of one random
history, waits for the answer and asks again, over one connection. At the end the largest number of clients ask while
the service gets SIGTERM: what was sent must be answered (`lost` is 0), what comes later may only be refused. Clients
share the machine with the service.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@dataclass
class Tally:
    latencies: list[float] = field(default_factory=list)  # seconds, of answers with status 200
    failed: int = 0  # answers with another status
    lost: int = 0  # requests without an answer
    refused: int = 0  # connections

    def summarize(self, seconds: float) -> dict[str, Any]:
        ordered = sorted(self.latencies)
        percentile = {f"p{p}_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 99)}
        counts = {"answered": len(ordered), "failed": self.failed, "lost": self.lost, "refused": self.refused}
        return {"requests_per_second": len(ordered) / seconds, **percentile, **counts}


async def ask(host: str, port: int, items: list[str], until: float, tally: Tally, draw: random.Random) -> None:
    """One client, until the time is over or the service is gone."""
    while time.monotonic() < until:
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError:
            tally.refused += 1
            return
        is_open = True
        while is_open and time.monotonic() < until:
            history = draw.sample(items, min(len(items), draw.randint(1, 20)))
            body = json.dumps({"histories": [history], "k": 10}).encode()
            head = f"POST /recommend HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            began = time.monotonic()
            try:
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                status, is_open = await _read_answer(reader)
            except (OSError, asyncio.IncompleteReadError):
                tally.lost += 1
                is_open = False
                continue
            if status == 200:
                tally.latencies.append(time.monotonic() - began)
            else:
                tally.failed += 1
        writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """The status, and whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    lines = head.splitlines()
    headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers.get("connection") != "close"


async def run_clients(address: str, items: list[str], num_clients: int, seconds: float, stop_after=None) -> Tally:
    """`stop_after`: (seconds, process) that gets SIGTERM meanwhile."""
    host, port = address.split(":")
    tally, until = Tally(), time.monotonic() + seconds
    clients = [
        asyncio.create_task(ask(host, int(port), items, until, tally, random.Random(number)))
        for number in range(num_clients)
    ]
    if stop_after:
        await asyncio.sleep(stop_after[0])
        stop_after[1].send_signal(signal.SIGTERM)
    await asyncio.gather(*clients)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=10, help="for each number of clients")
    parser.add_argument("--output", type=Path, help="JSON; it is printed anyway")
    options = parser.parse_args()
    lines = (Path(options.run) / "items.tsv").read_text(encoding="utf-8").splitlines()[1:]
    items = [line.split("\t")[0] for line in lines]
    command = [sys.executable, "-m", "recbole_diffgrm.serve", options.run, "--port=0"]
    service = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None
        ready = service.stdout.readline()
        if "http://" not in ready:
            raise SystemExit("the service did not start")
        address = ready.strip().rpartition("http://")[2]
        report: dict[str, Any] = {"run": options.run, "cores": os.cpu_count(), "clients": {}}
        asyncio.run(run_clients(address, items, 4, min(1.0, options.seconds)))  # warm up
        numbers = [int(number) for number in options.clients.split(",")]
        for number in numbers:
            tally = asyncio.run(run_clients(address, items, number, options.seconds))
            report["clients"][number] = tally.summarize(options.seconds)
        last = asyncio.run(run_clients(address, items, numbers[-1], 60, (1, service)))
        report["sigterm"] = {"answered": len(last.latencies), "failed": last.failed, "lost": last.lost}
        report["sigterm"]["exit_code"] = service.wait(60)
    finally:
        service.kill()
    print(json.dumps(report, indent=1))
    if options.output:
        from recbole_diffgrm.files import write_json

        write_json(report, options.output)


if __name__ == "__main__":
    main()
