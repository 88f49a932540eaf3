"""The name of the loopback interface on Linux and on macOS."""

import socket

import pytest

from course_lib.network import loopback

LINUX = ["lo", "eth0", "docker0"]
MACOS = ["lo0", "gif0", "en0", "utun0"]


@pytest.mark.parametrize(
    ("names", "expected"), [(LINUX, "lo"), (MACOS, "lo0"), (["eth0", "lo0", "lo"], "lo")]
)
def test_the_loopback_is_found_among_the_interfaces(
    names: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names, 1)))
    assert loopback() == expected
