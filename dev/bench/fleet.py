"""Objects of a large fleet, as large as real ones: nodes of several accelerators, servings, pods of others."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

PRODUCTS = ("NVIDIA-L4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-H200", "NVIDIA-L40S")
POOL = "bench.specserve.dev/pool"
HEARTBEAT = "2026-11-03T12:00:00Z"


def node(number: int, product: str = "", pool: str = "") -> Json:
    """A node as a kubelet and some labellers make it, 15 to 19 kB; without a product it has CPUs only."""
    name = f"node-{number:05}"
    labels = {
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": "gpu-xlarge-8" if product else "cpu-xlarge",
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        **{f"feature.node.kubernetes.io/cpu-cpuid.FLAG{flag:02}": "true" for flag in range(40)},
        **{f"feature.node.kubernetes.io/pci-{device:04x}.present": "true" for device in range(10)},
    }
    amounts = {"cpu": "96", "memory": "792Gi", "ephemeral-storage": "1500Gi", "pods": "110", "hugepages-2Mi": "0"}
    if product:
        labels |= {
            "nvidia.com/gpu.product": product,
            "nvidia.com/gpu.count": "8",
            "nvidia.com/gpu.memory": "81920",
            "nvidia.com/gpu.sharing-strategy": "none",
            "nvidia.com/cuda.driver-version.full": "570.86.15",
            "nvidia.com/cuda.driver-version.major": "570",
        }
        amounts["nvidia.com/gpu"] = "8"
    if pool:
        labels[POOL] = pool
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"csi.volume.kubernetes.io/nodeid": "x" * 400}},
        "spec": {"providerID": f"bench:///{name}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [_condition(kind) for kind in kinds],
            "addresses": [{"type": "Hostname", "address": name}],
            "images": [_image(number, image) for image in range(42)],
            "nodeInfo": dict.fromkeys(
                ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
                 "kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"), "linux-and-such"
            ),
        },
    }  # fmt: skip


def _condition(kind: str) -> Json:
    return {
        "type": kind,
        "status": "True" if kind == "Ready" else "False",
        "reason": f"KubeletHas{kind}",
        "message": f"kubelet is posting status of {kind}, as it does every few minutes",
        "lastHeartbeatTime": HEARTBEAT,
        "lastTransitionTime": HEARTBEAT,
    }


def _image(number: int, image: int) -> Json:
    name = f"registry.example.com/team-{image % 7}/some-service-{image:02}"
    digest = f"{number * 97 + image:064x}"
    return {"names": [f"{name}@sha256:{digest}", f"{name}:v1.{image}.{number % 5}"], "sizeBytes": 10**8 + image}


def heartbeat(time: str) -> Json:
    """What a kubelet patches into its node's status every few minutes."""
    return {"status": {"conditions": [{**_condition("Ready"), "lastHeartbeatTime": time}]}}


def serving(namespace: str, name: str, model: str, pool: str = "", product: str = "") -> Json:
    """A serving that starts without a profile, so that its children need no measurement; ``product``: on that alone."""
    selector = {**({POOL: pool} if pool else {}), **({"nvidia.com/gpu.product": product} if product else {})}
    return {
        "apiVersion": "specserve.dev/v1alpha1",
        "kind": "SpeculativeServing",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 4,
            "model": {"name": model, "revision": "abc123"},
            "speculation": {"method": "draft_model", "model": "org/drafter", "maxTokens": 4, "beforeProfile": "Off"},
            "engine": {
                "image": "vllm/vllm-openai:v0.33.0",
                "maxNumSeqs": 64,
                "args": ["--max-num-batched-tokens=8192"],
            },
            "accelerators": {"nodeSelector": selector},
            "profile": {"workload": {"source": {"path": "/prompts/chat.jsonl"}}},
        },
    }


def pod(namespace: str, name: str) -> Json:
    """A pod of somebody else."""
    container = {"name": "app", "image": "registry.example.com/app:v1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "theirs"}},
        "spec": {"containers": [container]},
    }


def namespace(name: str) -> Json:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def profile_claim(space: str, name: str, size: int) -> Json:
    """A ConfigMap of somebody else that is labelled as a profile, ``size`` bytes large."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": space, "labels": {"specserve.dev/role": "profile"}},
        "data": {"profile.json": "[" + "1," * ((size - 2) // 2) + "1]"},
    }
