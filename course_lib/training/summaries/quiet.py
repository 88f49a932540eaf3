"""How `transformers` and `tokenizers` are used here: offline, and without words that nobody can act on.

Importing them takes seconds, so what needs them imports them when it is called, after `be_quiet()`. Whoever
has set one of these variables keeps it.
"""

import os
import warnings

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # the network is for `pretrained.py` alone, and only when asked for
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",  # one thread per rank; and no warning when a process forks
}


def be_quiet() -> None:
    """Set what the libraries read when they are imported; call it before."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a notebook it asks for widgets, which nothing here would show
        import tqdm.auto  # noqa: F401
