"""One server for a class: docs/hub/one_install.py with a list of who may come in, and an end to what is idle.

Start the hub in a folder with learners.txt, one name per line. docs/teaching/one-server.md says how.
"""

import os
from pathlib import Path
from typing import Any

c: Any = get_config()  # type: ignore[name-defined]  # noqa: F821
load_subconfig("/opt/course/docs/hub/one_install.py")  # type: ignore[name-defined]  # noqa: F821

c.PAMAuthenticator.allow_all = False
c.Authenticator.allowed_users = set(Path("learners.txt").read_text().split())

# A kernel without a cell for 45 minutes ends, with its ranks, also if its page is still open: a lesson that
# was forgotten takes 1 GB. A server without kernels ends two hours later. my_course/ stays.
c.Spawner.args = [
    "--MappingKernelManager.cull_idle_timeout=2700",
    "--MappingKernelManager.cull_connected=True",
    "--ServerApp.shutdown_no_activity_timeout=7200",
]

# python -m course.tools.rehearsal may start servers, use them and end them; without the variable, nobody may.
if token := os.environ.get("REHEARSAL_TOKEN"):
    c.JupyterHub.services = [{"name": "rehearsal", "api_token": token}]
    scopes = ["read:users", "servers", "access:servers"]
    c.JupyterHub.load_roles = [{"name": "rehearsal", "services": ["rehearsal"], "scopes": scopes}]
