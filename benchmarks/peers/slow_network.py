"""A network whose packets take longer, where the kernel has no ``tc netem``.

    python -m benchmarks.peers.slow_network SECONDS

Makes a TUN device and says ``ready``. Who dials `FAR` reaches this machine itself, at `NEAR`: each
packet has its two addresses exchanged and comes back that much later, in order. The kernel's own
TCP runs over it, with its windows and its buffers. ``slow_network.c`` carries the packets: what
that takes of the machine is taken from those who talk through it. To be started in a network
namespace of its own; ends when its standard input does. Linux: Documentation/networking/tuntap.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import build

NEAR = "10.77.0.1"
FAR = "10.77.0.2"
_DEVICE = "slow0"
_MTU = 65_000
"""Bytes of a packet: about what the kernel hands a network card at once."""
_PACKETS = 10_000
"""How many packets the device keeps until they are read."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory), "slow_network")
        device = open_device()
        print("ready", flush=True)
        subprocess.run([program, str(device), sys.argv[1]], pass_fds=[device], check=True)
