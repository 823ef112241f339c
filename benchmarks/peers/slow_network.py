"""A network whose packets take longer, where the kernel has no ``tc netem``.

    python -m benchmarks.peers.slow_network SECONDS

Makes a TUN device and says ``ready``. Who dials `FAR` reaches this machine itself, at `NEAR`: each
packet has its two addresses exchanged and comes back that much later, in order. The kernel's own
TCP runs over it, with its windows and its buffers. To be started in a network namespace of its own;
ends when its standard input does. Linux: Documentation/networking/tuntap.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

NEAR = "10.77.0.1"
FAR = "10.77.0.2"
_DEVICE = "slow0"
_MTU = 65_000
"""Bytes of a packet: about what the kernel hands a network card at once."""
_PACKETS = 10_000
"""How many packets the device keeps until they are read."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_AT_ONCE = 32
"""Packets that are read before due ones are written."""


def turn_round(packet: bytearray) -> None:
    """Exchange source (bytes 12 to 16) and destination (16 to 20) of an IPv4 packet.

    No checksum of IP or TCP changes: each is a sum, and both addresses are in it.
    """
    packet[12:20] = packet[16:20] + packet[12:16]


def open_device() -> int:
    """The descriptor of a new TUN device that has the address `NEAR`.

    Raises:
        OSError: this process may not make one.
        subprocess.CalledProcessError: ``ip`` failed.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    for command in (
        ["ip", "address", "add", f"{NEAR}/24", "dev", _DEVICE],
        ["ip", "link", "set", _DEVICE, "up", "mtu", str(_MTU), "txqueuelen", str(_PACKETS)],
    ):
        subprocess.run(command, check=True)
    return device


def carry(device: int, delay_s: float) -> None:
    """Send every packet back after its delay, until standard input ends.

    A packet costs two copies, into a buffer that was used before and out of it: what this process
    takes of the machine is taken from those who talk through it.
    """
    under_way: deque[tuple[float, bytearray, int]] = deque()
    free: list[bytearray] = []
    while True:
        wait_s = max(under_way[0][0] - time.monotonic(), 0) if under_way else None
        readable, _, _ = select.select([device, sys.stdin], [], [], wait_s)
        if sys.stdin in readable and not os.read(sys.stdin.fileno(), 1):
            return
        if device in readable:
            due_s = time.monotonic() + delay_s
            for _ in range(_AT_ONCE):
                packet = free.pop() if free else bytearray(1 << 16)
                try:
                    length = os.readv(device, [packet])
                except BlockingIOError:
                    free.append(packet)
                    break
                if packet[0] >> 4 == 4:  # IPv6 talks to itself on every device
                    turn_round(packet)
                    under_way.append((due_s, packet, length))
                else:
                    free.append(packet)
        now_s = time.monotonic()
        while under_way and under_way[0][0] <= now_s:
            _, packet, length = under_way.popleft()
            os.write(device, memoryview(packet)[:length])
            free.append(packet)


if __name__ == "__main__":
    opened = open_device()
    print("ready", flush=True)
    carry(opened, float(sys.argv[1]))
