#!/usr/bin/env python3
"""Drives two `orders` instances through a good time and an incident.

usage: load.py keys URL_A URL_B                               10 000 different orders, once each
       load.py incident URL_A URL_B REDIS_PORT FOLDER

The incident: Redis stands still for ten seconds; a stranger deletes and overwrites held locks; one handler
holds its lock too long; Redis is killed and comes back empty; one order becomes hot; instance B is killed.
Instance A stops a handler that lost its lock and refuses without Redis; B only tells, proceeds, and limits holds.
FOLDER/redis.pid and FOLDER/b.pid name the running processes; FOLDER/phases.json gets the time of each phase.
"""
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

TIMEOUT = 30
over = threading.Event()
hot = threading.Event()


def address(url):
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


class Client:
    """One keep-alive connection that is opened anew after any trouble."""

    def __init__(self, url):
        self.address, self.connection = address(url), None

    def send(self, method, path):
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT)
            self.connection.request(method, path)
            response = self.connection.getresponse()
            response.read()
            return response.status
        except (OSError, http.client.HTTPException):
            self.connection = None
            return None

    def ship(self, order, work_ms):
        return self.send("POST", f"/orders/{order}/ship?work_ms={work_ms}")


def each_while_running(pause, action):
    while not over.is_set():
        action()
        over.wait(pause * random.uniform(0.5, 1.5))


def background(urls):
    """Traffic of every kind, the same before, during and after the incident."""
    def shipper(url):
        client = Client(url)
        each_while_running(0.2, lambda: client.ship(f"o{random.randrange(400)}", random.randint(5, 30)))

    def contender(url):  # now and then an order is taken
        client = Client(url)
        each_while_running(0.5, lambda: client.ship(f"shared{random.randrange(2)}", 60))

    def exporter(url, i):  # streams for four seconds: renewed
        client = Client(url)
        each_while_running(0.2, lambda: client.send("GET", f"/orders/export-{i}/export?chunks=8&chunk_ms=500"))

    def packer(url, i, seconds, pause=0):  # works long: renewed, watched
        client = Client(url)
        time.sleep(pause)
        each_while_running(0.2, lambda: client.ship(f"pack-{i}", seconds * 1000))

    def impatient(url):  # goes away while it waits
        holder, order = Client(url), f"slow-{random.random()}"
        def once():
            thread = threading.Thread(target=holder.ship, args=(order, 400), daemon=True)
            thread.start()
            time.sleep(0.1)
            try:
                with socket.create_connection(address(url), timeout=TIMEOUT) as s:
                    s.sendall(f"POST /orders/{order}/ship HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                    time.sleep(0.1)
            except OSError:
                pass
            thread.join()
        each_while_running(1, once)

    def nameless(url):  # an order without an id: 400
        client = Client(url)
        each_while_running(1, lambda: client.send("POST", "/orders//ship"))

    def hot_shipper(url):
        client = Client(url)
        while not over.is_set():
            if hot.wait(0.2):
                client.ship("hot", 50)
                time.sleep(0.02)

    for i in range(5):  # beyond the ttl, each at another time; B would not allow it
        threading.Thread(target=packer, args=(urls[0], f"long-{i}", 12, 2.4 * i), daemon=True).start()
    for url in urls:
        kinds = [(shipper, (url,))] * 5 + [(contender, (url,))] * 2 + [(impatient, (url,)), (nameless, (url,))]
        kinds += [(exporter, (url, f"{url[-5:]}-{i}")) for i in range(8)]
        kinds += [(packer, (url, f"{url[-5:]}-{i}", 5)) for i in range(3)]
        kinds += [(hot_shipper, (url,))] * 20
        for target, arguments in kinds:
            threading.Thread(target=target, args=arguments, daemon=True).start()


def redis_command(port, *words):
    """Sends one command and returns the raw reply."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(w.encode())}\r\n{w}\r\n" for w in words)
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as s:
        s.sendall(request.encode())
        return s.recv(65536)


def touch(url, port, work_ms, after, *words):
    """Somebody else touches the key of an order that is being shipped."""
    order = f"touched-{uuid.uuid4()}"
    threading.Thread(target=Client(url).ship, args=(order, work_ms), daemon=True).start()
    time.sleep(after)
    redis_command(port, *(word.replace("KEY", f"orders:order:{order}") for word in words))


def kill(pid_file):
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    pid_file.unlink()


def restart_redis(port, folder, seconds):
    """Killed; comes back without its data."""
    kill(folder / "redis.pid")
    time.sleep(seconds)
    redis = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
                             stdout=subprocess.DEVNULL)
    (folder / "redis.pid").write_text(str(redis.pid))


def incident(url_a, url_b, redis_port, folder):
    redis_port, folder = int(redis_port), pathlib.Path(folder)
    redis_pid = int((folder / "redis.pid").read_text())
    phases = {}

    def phase(name, seconds):
        phases[name] = time.time()
        (folder / "phases.json").write_text(json.dumps(phases))
        time.sleep(seconds)

    background([url_a, url_b])
    phase("warm-up", 5)
    phase("good", 20)
    os.kill(redis_pid, signal.SIGSTOP)
    phase("redis stands still", 10)
    os.kill(redis_pid, signal.SIGCONT)
    phase("redis is back", 8)
    threading.Thread(target=Client(url_b).ship, args=("too-long", 10000), daemon=True).start()
    phase("locks are touched", 0)
    for url in (url_a, url_b):
        touch(url, redis_port, 4000, 1, "DEL", "KEY")
        touch(url, redis_port, 4000, 1, "SET", "KEY", "stranger", "PX", "3000")
        for _ in range(5):  # found out at the release
            touch(url, redis_port, 150, 0.05, "SET", "KEY", "stranger", "PX", "1000")
    time.sleep(3)
    phase("redis restarts", 0)
    restart_redis(redis_port, folder, 3)
    time.sleep(5)
    hot.set()
    phase("one order is hot", 24)
    kill(folder / "b.pid")
    phase("instance B is dead", 8)
    hot.clear()
    phase("good again", 6)
    phase("over", 0)
    over.set()
    time.sleep(13)  # the longest handler ends


def keys(*urls):
    """Ten thousand orders that were never seen before; requests are pipelined to spare this client."""
    connections, batches, batch = 8, 25, 50
    shipped = [0] * connections

    def run(i):
        with socket.create_connection(address(urls[i % len(urls)]), timeout=TIMEOUT) as s:
            for _ in range(batches):
                s.sendall(b"".join(f"POST /orders/{uuid.uuid4()}/ship HTTP/1.1\r\nhost: x\r\n\r\n".encode()
                                   for _ in range(batch)))
                answers = b""
                while answers.count(b"HTTP/1.1 ") < batch or not answers.endswith(b"}"):
                    answers += s.recv(65536)
                shipped[i] += answers.count(b"HTTP/1.1 200 ")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(shipped)} orders shipped")
    sys.exit(sum(shipped) != connections * batches * batch)


if __name__ == "__main__":
    {"keys": keys, "incident": incident}[sys.argv[1]](*sys.argv[2:])
