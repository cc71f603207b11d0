"""What KubeRay's operator makes of a RayService: pods, with the command lines, variables and mounts that it adds.

Only the parts that decide how the containers run; written from the operator's `common/pod.go`, version 1.7.
"""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]

CLUSTER, NAMESPACE = "orca-7xk2p", "default"
HEAD_SERVICE = f"{CLUSTER}-head-svc.{NAMESPACE}.svc.cluster.local"
GCS_PORT, METRICS_PORT, AGENT_PORT = "6379", "8080", "52365"
WAIT_FOR_GCS = f"until ray health-check --address {HEAD_SERVICE}:{GCS_PORT}; do sleep 1; done"  # without its messages


def head_pod(service: Object) -> Object:
    group = service["spec"]["rayClusterConfig"]["headGroupSpec"]
    parameters = {"dashboard-host": "0.0.0.0", **group["rayStartParams"]}
    return _pod(group["template"], "headgroup", parameters, "ray start --head", "127.0.0.1")


def worker_pod(service: Object, group_index: int = 0) -> Object:
    """A worker's pod, whose init container waits for the GCS."""
    group = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][group_index]
    parameters = {"address": f"{HEAD_SERVICE}:{GCS_PORT}", **group["rayStartParams"]}
    pod = _pod(group["template"], group["groupName"], parameters, "ray start", HEAD_SERVICE)
    (container,) = pod["spec"]["containers"]
    (given,) = group["template"]["spec"]["containers"]
    kept = ("image", "imagePullPolicy", "securityContext")
    waiting = {key: container[key] for key in kept} | {
        "name": "wait-gcs-ready",
        "command": ["/bin/bash", "-c", "--"],
        "args": [WAIT_FOR_GCS],
        "env": [*given["env"], *_token(), {"name": "FQ_RAY_IP", "value": HEAD_SERVICE}],  # and no envFrom
        "volumeMounts": given["volumeMounts"],
        "resources": {key: {"cpu": "200m", "memory": "256Mi"} for key in ("requests", "limits")},
    }
    ready = " && ".join(
        f"wget --tries 1 -T 10 -q -O- http://localhost:{where} | grep success"
        for where in (f"{AGENT_PORT}/api/local_raylet_healthz", "8000/-/healthz")
    )
    container["readinessProbe"] = {"exec": {"command": ["bash", "-c", ready]}}
    return pod | {"spec": pod["spec"] | {"initContainers": [waiting]}}


def _pod(template: Object, group: str, parameters: dict[str, str], start: str, address: str) -> Object:
    pod = copy.deepcopy(template)
    container = pod["spec"]["containers"][0]
    command = f"{start} {_flags(_completed(parameters, container['resources']))}"
    container["command"] = ["/bin/bash", "-c", "--"]
    container["args"] = [f"ulimit -n 65536; {command}"]
    added = {
        "FQ_RAY_IP": address,
        "RAY_CLUSTER_NAME": CLUSTER,
        "RAY_CLUSTER_NAMESPACE": NAMESPACE,
        "RAY_NODE_TYPE_NAME": group,
        "KUBERAY_GEN_RAY_START_CMD": command,
        "RAY_PORT": GCS_PORT,
        "RAY_timeout_ms_task_wait_for_death_info": "0",
        "RAY_gcs_server_request_timeout_seconds": "5",
        "RAY_SERVE_KV_TIMEOUT_S": "5",
        "RAY_ADDRESS": f"{address}:{GCS_PORT}",
        "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
        "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
    }
    container["env"] += [{"name": name, "value": value} for name, value in added.items()] + _token()
    probe = {"httpGet": {"path": "/api/healthz", "port": int(AGENT_PORT)}}
    container |= {"livenessProbe": probe, "readinessProbe": probe}
    container["volumeMounts"] = [*container["volumeMounts"], {"name": "shared-mem", "mountPath": "/dev/shm"}]
    pod["spec"]["volumes"] = [*pod["spec"]["volumes"], {"name": "shared-mem", "emptyDir": {"medium": "Memory"}}]
    return pod


def _completed(parameters: dict[str, str], resources: Object) -> dict[str, str]:
    """The parameters of `ray start` with those that the operator adds where they are missing."""
    limits = resources["limits"]
    cpu = limits.get("cpu", resources["requests"]["cpu"])
    return {
        "num-cpus": cpu,
        "memory": str(int(limits["memory"].removesuffix("Gi")) << 30),
        "metrics-export-port": METRICS_PORT,
        "dashboard-agent-listen-port": AGENT_PORT,
        "block": "true",
        **parameters,
    }


def _flags(parameters: dict[str, str]) -> str:
    return " ".join(f"--{k}" if v == "true" else f"--{k}={v}" for k, v in sorted(parameters.items()))


def _token() -> list[Object]:
    """Variables of Ray's token, whose Secret the operator makes."""
    secret = {"secretKeyRef": {"name": CLUSTER, "key": "auth_token"}}
    return [{"name": "RAY_AUTH_MODE", "value": "token"}, {"name": "RAY_AUTH_TOKEN", "valueFrom": secret}]
