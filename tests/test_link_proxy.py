from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.link_proxy import Link, LinkProxy
from tests.mosquitto import free_port


class Echo:
    """Sends back whatever comes, to any number of connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    data = connection.recv(65536)
                    if not data:
                        return
                    connection.sendall(data)
                except OSError:
                    return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


def connect(proxy: LinkProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 10)


def receive(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = connection.recv(num_bytes - len(data))
        assert more, f"the connection ended after {len(data)} of {num_bytes} bytes"
        data += more
    return data


def round_trip_s(connection: socket.socket, data: bytes = b"ping") -> float:
    began_s = time.monotonic()
    connection.sendall(data)
    assert receive(connection, len(data)) == data
    return time.monotonic() - began_s


def test_everything_passes_in_order(echo: Echo) -> None:
    data = bytes(range(256)) * 4096
    with LinkProxy(echo.port, Link(delay_s=0.001, jitter_s=0.002, loss=0.01, retransmit_s=0.01)) as proxy:
        with connect(proxy) as connection:
            sender = threading.Thread(target=connection.sendall, args=(data,))
            sender.start()
            assert receive(connection, len(data)) == data
            sender.join()
        assert proxy.bytes_up == proxy.bytes_down == len(data)
        assert proxy.num_lost > 0


def test_a_round_trip_takes_twice_the_delay_and_the_delay_may_change(echo: Echo) -> None:
    with LinkProxy(echo.port) as proxy, connect(proxy) as connection:
        assert round_trip_s(connection) < 10
        proxy.link = Link(delay_s=0.05)
        assert round_trip_s(connection) >= 0.1
        proxy.link = Link(delay_s=0.05, loss=1.0, retransmit_s=0.1)
        assert round_trip_s(connection) >= 0.3
        proxy.link = Link()
        assert round_trip_s(connection) < 10


def test_jitter_is_between_nothing_and_its_bound(echo: Echo) -> None:
    with LinkProxy(echo.port, Link(jitter_s=0.03)) as proxy, connect(proxy) as connection:
        times_s = [round_trip_s(connection) for _ in range(20)]
    assert max(times_s) - min(times_s) > 0.005


def test_bandwidth_bounds_what_passes(echo: Echo) -> None:
    with LinkProxy(echo.port, Link(bytes_per_s=200_000)) as proxy, connect(proxy) as connection:
        assert round_trip_s(connection, bytes(40_000)) >= 0.2


def test_a_radio_that_wakes_up_delays_the_first_packets_most(echo: Echo) -> None:
    with LinkProxy(echo.port, Link(wake_s=0.1, wake_packets=1.0)) as proxy, connect(proxy) as connection:
        times_s = [round_trip_s(connection) for _ in range(12)]
    assert times_s[0] >= 0.2
    assert times_s[0] > times_s[1] > min(times_s[6:])


def test_a_black_hole_accepts_and_says_nothing_until_it_is_over(echo: Echo) -> None:
    with LinkProxy(echo.port, Link(mode="black_hole")) as proxy, connect(proxy) as connection:
        connection.sendall(b"hello")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(5)
        proxy.link = Link()
        connection.settimeout(10)
        assert receive(connection, 5) == b"hello"


def test_a_running_connection_can_fall_into_a_black_hole(echo: Echo) -> None:
    with LinkProxy(echo.port) as proxy, connect(proxy) as connection:
        round_trip_s(connection)
        proxy.link = Link(mode="black_hole")
        connection.sendall(b"again")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(5)


def test_a_cut_ends_the_connections_and_lets_new_ones_in(echo: Echo) -> None:
    with LinkProxy(echo.port) as proxy:
        with connect(proxy) as connection:
            round_trip_s(connection)
            proxy.cut()
            assert proxy.num_open == 0
            assert ended(connection)
        with connect(proxy) as connection:
            round_trip_s(connection)
        assert proxy.num_connections == 2


def test_a_closed_link_ends_every_connection_at_once(echo: Echo) -> None:
    with LinkProxy(echo.port, Link(mode="closed")) as proxy, connect(proxy) as connection:
        assert ended(connection)


def test_the_end_of_one_side_reaches_the_other(echo: Echo) -> None:
    with LinkProxy(echo.port, Link(delay_s=0.01)) as proxy, connect(proxy) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert receive(connection, 10) == b"last words"
        assert ended(connection)


def test_a_target_that_does_not_listen_ends_the_connection() -> None:
    with LinkProxy(free_port()) as proxy, connect(proxy) as connection:
        assert ended(connection)


def ended(connection: socket.socket) -> bool:
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
