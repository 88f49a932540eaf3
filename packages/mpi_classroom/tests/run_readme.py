"""The README's example in a notebook's kernel, as a reader runs it: `python run_readme.py README.md`."""

import re
import sys
from pathlib import Path

from jupyter_client.manager import start_new_kernel

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def main() -> None:
    """Run the README's Python blocks as cells, and print their outputs as text."""
    cells = re.findall(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.DOTALL)
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        for cell in [*cells, "cluster.stop()"]:
            client.execute_interactive(cell, timeout=120, output_hook=show, allow_stdin=False)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)


def show(message: dict[str, dict[str, object]]) -> None:
    """Print one output of a cell."""
    content = message["content"]
    text = content.get("text") or content.get("data", {}).get("text/plain", "")  # type: ignore[attr-defined]
    if "traceback" in content:
        text = "\n".join(content["traceback"])  # type: ignore[call-overload]
    print(COLOURS.sub("", str(text)), flush=True)


if __name__ == "__main__":
    main()
