"""Pods on this machine: containers as processes with a network, a file system and process ids of their own.

A pod has an address on a bridge, the rules of its NetworkPolicies, its sysctls, a root file system that is read-only
except for its volumes, and the user that its manifest names, without any capability. What a container's image would
bring comes from this machine: the programs of this environment, in /usr/local/bin. Not there: seccomp, limits of memory
and processors. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.deploy.conftest import ROOT
from tests.deploy.namespaces import BRIDGE, NODE, SUBNET, Namespace, run
from tests.deploy.policies import Neighbour, rules

Object = dict[str, Any]

TIMEOUT = 180.0  # seconds, for machines with much else to do
RESTARTS = 3  # of a container that ends; Ray gives a raylet 30 s to start, which a busy machine may exceed


class Cluster:
    """Pods that reach each other, with the ConfigMaps, Secrets and NetworkPolicies of `objects`.

    `claims` are the folders of PersistentVolumeClaims, `programs` a folder with further programs of the images.
    `names` are those of Services, each with its pod. Left by `with`, everything is taken down.
    """

    def __init__(self, objects: Sequence[Object], folder: Path, claims: Mapping[str, Path], programs: Path) -> None:
        self.config = {o["metadata"]["name"]: o["data"] for o in objects if o["kind"] == "ConfigMap"}
        self.secrets = {o["metadata"]["name"]: o["stringData"] for o in objects if o["kind"] == "Secret"}
        self.policies = [o for o in objects if o["kind"] == "NetworkPolicy"]
        self.folder, self.claims, self.programs = folder, dict(claims), programs
        self.pods: dict[str, Pod] = {}
        self.names: dict[str, str] = {}

    def __enter__(self) -> Cluster:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{NODE}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for pod in list(self.pods.values()):
            pod.delete()
        run("ip", "link", "delete", BRIDGE)

    def add(self, name: str, manifest: Object) -> Pod:
        """A pod with an address and no process. Addresses and rules of the others change."""
        pod = self.pods[name] = Pod(self, name, manifest, f"{SUBNET}.{10 + len(self.pods)}")
        pod.create()
        self.reconcile()
        return pod

    def reconcile(self) -> None:
        """Tell all pods the names and the rules of all."""
        known = {name: self.pods[pod] for name, pod in self.names.items() if pod in self.pods}
        hosts = "127.0.0.1 localhost\n" + "".join(f"{pod.address} {name}\n" for name, pod in known.items())
        neighbours = [Neighbour(pod.labels, pod.address) for pod in self.pods.values()]
        for pod in self.pods.values():
            pod.write_hosts(hosts)
            pod.enter("iptables-restore", input=rules(self.policies, pod.labels, neighbours, NODE))

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for `condition`. A container that ends is started again, as the kubelet does. Fails with the end of all
        logs after a while, or when a container ends too often."""
        end = time.monotonic() + TIMEOUT
        while not condition():
            ended = [pod.name for pod in self.pods.values() if pod.has_ended and not pod.restart()]
            assert not ended, f"{ended} ended while waiting: {what}\n{self.logs()}"
            assert time.monotonic() < end, f"not within {TIMEOUT} s: {what}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in self.folder.glob("*.log"))


class Pod:
    """One pod; `start` runs its containers, one after the other for those of its init containers."""

    def __init__(self, cluster: Cluster, name: str, manifest: Object, address: str) -> None:
        self._cluster, self.name, self.address = cluster, name, address
        self.labels: dict[str, str] = manifest["metadata"].get("labels", {})
        self._spec: Object = manifest.get("spec", {})
        self._namespace = Namespace(name, address)
        self.cut_off = self._namespace.cut_off
        self._running: subprocess.Popen[bytes] | None = None
        self._restarts = 0

    def create(self) -> None:
        self._namespace.create()
        for each in self._spec.get("securityContext", {}).get("sysctls", ()):
            self.enter("sysctl", "-qw", f"{each['name']}={each['value']}")

    def delete(self) -> None:
        """Take it down with all its processes, also an init container that did not end."""
        self._namespace.delete()
        del self._cluster.pods[self.name]

    def enter(self, *command: str, **options: Any) -> str:
        """Run a command of this machine in the pod's network, as root."""
        return self._namespace.enter(*command, **options)

    def write_hosts(self, names: str) -> None:
        """The pod's /etc/hosts: `names`, and its own."""
        # written in place, as the file is mounted into the pod
        (self._namespace.etc / "hosts").write_text(f"{names}{self.address} {self.name}\n")

    def start(self) -> None:
        """Run the init containers, then start the container."""
        for container in self._spec.get("initContainers", ()):
            status = self._process(container).wait(TIMEOUT)
            assert status == 0, f"{container['name']} of {self.name} ended with {status}\n{self._cluster.logs()}"
        (container,) = self._spec["containers"]
        self._running = self._process(container)

    def restart(self) -> bool:
        """Start the container again, in the same pod; False if that was done too often."""
        self._restarts += 1
        if self._restarts <= RESTARTS:
            (container,) = self._spec["containers"]
            self._running = self._process(container)
        return self._restarts <= RESTARTS

    def probe(self, kind: str) -> bool:
        """Whether the container's own probe succeeds, run in it."""
        (container,) = self._spec["containers"]
        probing = container | {"name": "probe", "command": container[kind]["exec"]["command"], "args": []}
        return self._process(probing).wait(TIMEOUT) == 0

    @property
    def has_ended(self) -> bool:
        return self._running is not None and self._running.poll() is not None

    def kill(self) -> None:
        """SIGKILL to all its processes at once, as when its node fails."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM to its first process, as when a pod is deleted or evicted."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """Signal the first process, which is the only child of `unshare`; all others die with it."""
        if self._running is None:
            return
        for pid in self.first_processes():
            os.kill(pid, number)
        self._running.wait(TIMEOUT)
        self._running = None

    def first_processes(self) -> list[int]:
        """The process with the id 1 of the running container, by its id on this machine."""
        assert self._running is not None
        children = Path(f"/proc/{self._running.pid}/task/{self._running.pid}/children")
        with contextlib.suppress(OSError):
            return [int(pid) for pid in children.read_text().split()]
        return []

    def listening(self) -> set[int]:
        """The TCP ports on which others may reach a process of the pod."""
        lines = self.enter("ss", "-Hltn").splitlines()
        addresses = [line.split()[3] for line in lines]
        return {int(a.rsplit(":", 1)[1]) for a in addresses if not a.startswith(("127.", "[::1]", "[::ffff:127."))}

    def dropped(self, of: Pod) -> int:
        """Packets from another pod that no policy let in."""
        table = self.enter("iptables", "-nvxL", "INPUT")
        (found,) = re.findall(rf"^ *(\d+) .*DROP .* {re.escape(of.address)} ", table, re.MULTILINE)
        return int(found)

    def _process(self, container: Object) -> subprocess.Popen[bytes]:
        command = [*container["command"], *container.get("args", ())]
        environment = self._environment(container)
        expanded = [_expanded(part, environment) for part in command]
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        script = self._mounts(container) + self._as_user(container, expanded)
        with (self._cluster.folder / f"{self.name}-{container['name']}.log").open("ab") as log:
            return subprocess.Popen(
                [*self._namespace.prefix, "unshare", *namespaces, "sh", "-ec", script],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _environment(self, container: Object) -> dict[str, str]:
        found = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
        for source in container.get("envFrom", ()):
            found |= self._cluster.config[source["configMapRef"]["name"]]
        for variable in container.get("env", ()):
            if "value" in variable:
                found[variable["name"]] = _expanded(variable["value"], found)
            else:
                reference = variable["valueFrom"]["secretKeyRef"]
                found[variable["name"]] = self._cluster.secrets[reference["name"]][reference["key"]]
        return found

    def _mounts(self, container: Object) -> str:
        """Shell commands that mount what the container sees; /tmp comes last, since the sources may be in it."""
        programs = [Path(sys.executable).parent, self._cluster.programs, "/usr/local/bin"]
        lines = [f"mount -t overlay programs -o lowerdir={':'.join(map(str, programs))} /usr/local/bin"]
        lines += _reachable(self._cluster.folder / "kept", Path(sys.base_prefix), ROOT)
        volumes = {volume["name"]: volume for volume in self._spec.get("volumes", ())}
        for mount in sorted(container.get("volumeMounts", ()), key=lambda each: each["mountPath"] == "/tmp"):
            source, path = self._source(mount["name"], volumes), Path(mount["mountPath"])
            path.mkdir(parents=True, exist_ok=True)  # of an image; it stays on this machine, empty
            lines.append(f"mount --bind {source} {path}")
        if container["securityContext"].get("readOnlyRootFilesystem"):
            lines.append("mount -o remount,bind,ro /")
        return "\n".join(lines) + "\n"

    def _source(self, name: str, volumes: Mapping[str, Object]) -> Path:
        """The folder of a volume, which belongs to the pod's user."""
        user, group = (self._spec["securityContext"][key] for key in ("runAsUser", "fsGroup"))
        volume = volumes.get(name, {})
        if claim := volume.get("persistentVolumeClaim"):
            source = self._cluster.claims[claim["claimName"]]
        else:
            source = self._cluster.folder / f"{self.name}-{name}"
        source.mkdir(exist_ok=True)
        if secret := volume.get("secret"):
            for key, value in self._cluster.secrets[secret["secretName"]].items():
                (source / key).write_text(value)
                os.chown(source / key, 0, group)
                (source / key).chmod(secret["defaultMode"])
        os.chown(source, user, group)
        return source

    def _as_user(self, container: Object, command: Sequence[str]) -> str:
        security = self._spec["securityContext"]
        assert security["runAsNonRoot"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        rights = ["--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
        if not container["securityContext"]["allowPrivilegeEscalation"]:
            rights.append("--no-new-privs")
        user = [f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}"]
        return "exec " + shlex.join(["setpriv", *user, *rights, "--", *command])


def _reachable(kept: Path, *places: Path) -> list[str]:
    """Shell commands after which every user can reach these folders, also below a home that is closed to others.
    `kept` is an empty folder."""
    lines = []
    for place in places:
        closed = [each for each in reversed(place.parents) if not each.stat().st_mode & 1]
        if closed:
            kept.mkdir(exist_ok=True)
            lines += [f"mount --bind {place} {kept}", f"mount -t tmpfs -o mode=755 home {closed[0]}"]
            lines += [f"mkdir -p {place}", f"mount --bind {kept} {place}"]
    return lines


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` as the kubelet expands it."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), text)
