"""The network that a machine has to itself."""

import socket


def loopback() -> str:
    """The name of this machine's loopback interface: "lo" on Linux, "lo0" on macOS.

    Gloo wants it in GLOO_SOCKET_IFNAME when all ranks are on one machine; otherwise it looks up the machine's
    own name, which may mean an address that nobody answers.
    """
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), "lo")
