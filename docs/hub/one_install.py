"""JupyterHub where all learners share one installation. Never run in The Littlest JupyterHub.

For The Littlest JupyterHub put this file into /opt/tljh/config/jupyterhub_config.d/. Elsewhere name it in the
hub's own configuration: load_subconfig("/opt/course/docs/hub/one_install.py"). docs/doors.md says how to
prepare the host. SystemdSpawner enforces the limits; JupyterHub's spawner of local processes ignores them.
"""

from typing import Any

c: Any = get_config()  # type: ignore[name-defined]  # noqa: F821

# Whoever has a password on this host may log in. With another authenticator nobody may, until you say who:
# c.Authenticator.allowed_users = {"ann", "ben"}; for The Littlest JupyterHub see docs/doors.md.
c.PAMAuthenticator.allow_all = True

COURSE = "/opt/course"  # where `make setup` ran

c.Spawner.cmd = [f"{COURSE}/.venv/bin/course", "lab", "--no-browser"]
c.Spawner.environment = {
    "COURSE_HOME": "~/course",  # the learner's own my_course/ and build/
    "COURSE_OFFLINE": "1",  # thirty learners download nothing; run `course fetch` once instead
}
c.Spawner.mem_limit = "4G"
c.Spawner.cpu_limit = 2
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 60
