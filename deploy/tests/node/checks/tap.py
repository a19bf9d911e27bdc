"""What leaves the node for the metadata server, seen on the wire."""

import socket
import struct
import threading

import machine

# Of Linux's packet sockets.
ALL_PROTOCOLS = 3
OUTGOING = 4

# A flag of TCP.
SYN = 2


class Tap:
    """Listens from when it is entered. `proxied` are the requests of the node, so of the proxy; `round` are those of pods, and
    their attempts to connect. No rule of the node hides pods' addresses."""

    def __init__(self):
        self.proxied, self.round = [], []
        self.interface, address = machine.uplink()
        self.node = socket.inet_aton(address)

    def __enter__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self.socket.bind((self.interface, 0))
        self.socket.settimeout(0.5)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()
        self.socket.close()

    def listen(self):
        while not self.is_over.is_set():
            try:
                frame, origin = self.socket.recvfrom(65536)
            except TimeoutError:
                continue
            if origin[2] == OUTGOING:
                self.look_at(frame[14:])

    def look_at(self, packet):
        if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP or socket.inet_ntoa(packet[16:20]) != machine.SERVER:
            return
        [length] = struct.unpack("!H", packet[2:4])
        segment = packet[(packet[0] & 15) * 4 : length]
        [port] = struct.unpack("!H", segment[2:4])
        line = segment[(segment[12] >> 4) * 4 :].split(b"\r\n")[0].decode(errors="replace")
        is_first = segment[13] & SYN
        if is_first or line:
            (self.proxied if packet[12:16] == self.node else self.round).append(line or f"a connection to port {port}")
