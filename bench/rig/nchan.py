"""nginx with nchan, the C peer: its own configuration in its own folder, on a free port."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.rig.load import Target
from penstock.testing import wait_until
from penstock.testing.programs import find_program

_MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
_CONFIGURATION = """
daemon off;
{user}
worker_processes 1;
worker_rlimit_nofile 20000;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
load_module {module};
events {{ worker_connections 18000; }}
http {{
    access_log off;
    keepalive_requests 100000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    nchan_shared_memory_size 512M;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location = /publish {{ nchan_publisher; nchan_channel_id $arg_to; nchan_message_buffer_length 20000; }}
        location = /subscribe {{
            nchan_subscriber http-chunked; nchan_channel_id bench; nchan_subscriber_first_message newest;
        }}
    }}
}}
"""
PUBLISH, PUBLISH_TO_NOBODY, SUBSCRIBE = "/publish?to=bench", "/publish?to=nobody", "/subscribe"


def available() -> bool:
    """Both Debian packages, nginx and libnginx-mod-nchan, are installed."""
    return find_program("nginx") is not None and _MODULE.exists()


@contextmanager
def running(folder: Path) -> Iterator[Target]:
    """Run it until the block ends."""
    folder.mkdir()
    port = _free_port()
    file = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # else its worker may not enter the folder
    file.write_text(_CONFIGURATION.format(user=user, folder=folder, module=_MODULE, port=port))
    command = [find_program("nginx") or "nginx", "-p", str(folder), "-c", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _accepts(port) or process.poll() is not None, within=10)
        yield Target(port, process.pid)
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
