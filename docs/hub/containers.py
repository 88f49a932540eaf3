"""Never run with Docker: a JupyterHub that starts a container for each learner, with DockerSpawner.

A container has the limits of compose.yaml, but 4 GB, as all learners share one machine. docs/hub/Dockerfile
builds the image from the course's own. docs/doors.md says how.
"""

from typing import Any

c: Any = get_config()  # type: ignore[name-defined]  # noqa: F821

c.JupyterHub.spawner_class = "dockerspawner.DockerSpawner"
# Whoever has a password on this host may log in. With another authenticator nobody may, until you say who:
# c.Authenticator.allowed_users = {"ann", "ben"}.
c.PAMAuthenticator.allow_all = True
c.JupyterHub.hub_ip = "172.17.0.1"  # this host as containers see it, on Docker's default network

c.DockerSpawner.image = "mpi-course-hub"
c.DockerSpawner.remove = True
c.DockerSpawner.volumes = {"my_course-{username}": "/course/my_course"}
c.DockerSpawner.environment = {"COURSE_OFFLINE": "1"}
c.DockerSpawner.mem_limit = "4G"  # what is in /dev/shm and /tmp counts
c.DockerSpawner.cpu_limit = 2
c.DockerSpawner.extra_host_config = {
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "pids_limit": 4096,
    "shm_size": "1g",
    "read_only": True,
    "tmpfs": {
        "/tmp": "exec,mode=1777,size=1g",
        "/home/learner": "exec,mode=0700,uid=1000,gid=1000,size=512m",
        "/course/build": "exec,mode=0755,uid=1000,gid=1000,size=512m",
    },
}
c.DockerSpawner.start_timeout = 120
c.DockerSpawner.http_timeout = 60
