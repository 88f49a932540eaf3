"""What DockerSpawner asks of Docker's engine, answered without one: a container is a process of a learner.

The spawner, its settings and docker's own code that makes a request of them are real. The request is written
to created.json, for the test to read.
"""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
from dockerspawner import DockerSpawner

COURSE = "/opt/course/.venv/bin"
LEARNER, NUMBER = "one", 20001


class Engine:
    """Images that have the command of docs/hub/Dockerfile, and the containers that were made."""

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.made: dict[str, dict[str, Any]] = {}

    def create_host_config(self, **options: Any) -> Any:
        return docker.APIClient(base_url="unix:///no/engine", version="1.43").create_host_config(**options)

    def inspect_image(self, _: str) -> dict[str, Any]:
        lines = Path("/opt/course/docs/hub/Dockerfile").read_text().splitlines()
        (command,) = [line.removeprefix("CMD ") for line in lines if line.startswith("CMD ")]
        return {"Config": {"Cmd": json.loads(command)}}

    def inspect_container(self, name: str) -> dict[str, Any]:
        if name not in self.made:
            raise docker.errors.NotFound("no such container", response=SimpleNamespace(status_code=404))
        process = self.processes.get(name)
        running = process is not None and process.poll() is None
        return {"Id": name, "State": {"Running": running, "ExitCode": 1, "Error": "", "FinishedAt": ""}}

    def create_container(self, **request: Any) -> dict[str, str]:
        self.made[request["name"]] = request
        Path("created.json").write_text(json.dumps(request))
        return {"Id": request["name"]}

    def start(self, name: str) -> None:
        request = self.made[name]
        program, *words = request["command"]
        environment = request["environment"] | {"HOME": f"/home/{LEARNER}", "COURSE_HOME": "~/course"}
        environment |= {"PATH": f"{COURSE}:/usr/bin:/bin", "PYTHONPATH": "/opt/hub"}
        command = [f"{COURSE}/{program}", *words]
        self.processes[name] = subprocess.Popen(
            command, env=environment, user=NUMBER, group=NUMBER, extra_groups=[], cwd=f"/home/{LEARNER}"
        )

    def port(self, name: str, port: int) -> list[dict[str, str]]:
        return [{"HostIp": "127.0.0.1", "HostPort": str(port)}]

    def stop(self, name: str) -> None:
        self.processes.pop(name).terminate()

    def remove_container(self, name: str, v: bool) -> None:
        del self.made[name]


class WithoutEngine(DockerSpawner):
    """DockerSpawner, but for the engine."""

    _client = Engine()
