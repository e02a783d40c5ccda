"""The objects that golden files show, and that the API server is asked about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.builders import L4, NAMESPACE, profile, serving, template

from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import Json
from specserve_operator.api.serving import SpeculativeServing
from specserve_operator.manifests import profiling
from specserve_operator.manifests import serving as manifests
from specserve_operator.manifests.request import key_inputs, profile_request
from specserve_operator.manifests.serving import Arm

ACCELERATOR = Accelerator("nvidia", L4, selector=(("nvidia.com/gpu.product", L4),))
_CPU = "feature.node.kubernetes.io/cpu-model"
ON_CPU = Accelerator(
    "Intel",
    "Intel-family-6-model-143",
    selector=((f"{_CPU}.family", "6"), (f"{_CPU}.id", "143"), (f"{_CPU}.vendor_id", "Intel")),
)
KEY = "specserve-0123456789ab"
PACKAGE = b"the profiler's zip"

TEMPLATE: dict[str, Any] = template(
    {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]},
                    ]
                }
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "noisy"}}}
                ]
            },
        },
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "imagePullSecrets": [{"name": "registry"}],
        "initContainers": [
            {"name": "fetch", "image": "fetcher", "command": ["fetch", "/models"]},
            {"name": "cache", "image": "cache", "restartPolicy": "Always"},
        ],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
            {"name": "specserve-tmp", "emptyDir": {"sizeLimit": "20Gi"}},
        ],
        "containers": [
            {
                "name": "engine",
                "env": [
                    {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
                    {"name": "PYTHONPATH", "value": "/opt/plugins"},
                    {"name": "HOME", "value": "/models/home"},
                ],
                "resources": {"requests": {"cpu": "4", "memory": "24Gi"}, "limits": {"memory": "48Gi"}},
                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                "livenessProbe": {"exec": {"command": ["true"]}, "initialDelaySeconds": 30},
                "lifecycle": {"preStop": {"exec": {"command": ["sleep", "15"]}}},
            },
            {"name": "proxy", "image": "proxy"},
        ],
    },
    labels={"team": "nlp", "specserve.dev/role": "mine"},
    annotations={"example.com/scrape": "true"},
)


def job(accelerator: Accelerator = ACCELERATOR, **more: Any) -> Json:
    package = profiling.package_name(PACKAGE)
    why = "ProfileMissing: no profile yet"
    one = serving(more)
    inputs = key_inputs(one.spec, accelerator, "570", "aa")
    copy = "" if one.spec.profile.workload.source.config_map is None else profiling.prompts_name("uid-prompts", "aa")
    return profiling.job(
        one, accelerator, KEY, 2, package, "specserve-profiling", why, inputs=inputs, prompts_copy=copy
    )


def deployment(arm: Arm, accelerator: Accelerator = ACCELERATOR, **more: Any) -> Json:
    return manifests.deployment(serving(more), accelerator, arm, replicas=3)


def stored(one: SpeculativeServing, **decision: Any) -> Json:
    result = profile(KEY, **decision).model_copy(update={"request": profile_request(one.spec, KEY)})
    return profiling.profile(NAMESPACE, result, key_inputs(one.spec, ACCELERATOR, "570", "aa"))


def package() -> Json:
    """Without its content, which is that of the profiler's sources."""
    obj = profiling.package(NAMESPACE, PACKAGE)
    assert set(obj["binaryData"]) == {"specserve_profiler.zip"}
    return {field: value for field, value in obj.items() if field != "binaryData"}


PATH = {"spec.profile.workload.source": {"path": "/models/prompts.jsonl"}}
MT_BENCH = {
    "spec.profile.workload": {"source": {"mtBench": {}}, "temperature": 0.7, "topP": 0.9, "seed": 7},
    "spec.profile.verify": "Full",
    "spec.profile.weights": [{"batchSize": 1, "weight": 20}, {"batchSize": 64, "weight": 0.5}],
}
FURTHER = {"spec.speculation.config": {"attention-backend": "FLASH_ATTN", "draft_load_config": {"load_format": "auto"}}}
CPU = {
    "spec.accelerators": {
        "resource": "cpu",
        "perReplica": 2,
        "nodeSelector": {"pool": "batch"},
        "identityLabels": ["example.com/memory-channels"],
    },
    "spec.engine.command": ["/venv/bin/python3", "-m", "vllm.entrypoints.openai.api_server"],
    "spec.engine.args": ["--dtype=float32"],
}
VARIABLES = {
    "spec.model": {"name": "$(MODELS)/target"},
    "spec.engine.args": ["--served-model-name=$(NAME)", "--chat-template", "{{ $$x }} $(TOKEN)"],
    **template(
        {
            "containers": [
                {
                    "name": "engine",
                    "env": [
                        {"name": "MODELS", "value": "/models"},
                        {"name": "NAME", "value": 'a "quoted" name'},
                        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
                    ],
                }
            ]
        }
    ),
}
MEASURED = Arm("Profile", f"{KEY}-01234567")

CASES: dict[str, Callable[[], Json]] = {
    "job-config-map": job,
    "job-path": lambda: job(**PATH),
    "job-mt-bench": lambda: job(**MT_BENCH),
    "job-cpu": lambda: job(ON_CPU, **CPU),
    "job-further": lambda: job(**FURTHER),
    "job-variables": lambda: job(**VARIABLES),
    "job-template": lambda: job(**TEMPLATE),
    "deployment-profile": lambda: deployment(MEASURED),
    "deployment-captured": lambda: deployment(replace(MEASURED, capture_sizes=(5, 10, 20, 128))),
    "deployment-none": lambda: deployment(Arm("Profile", MEASURED.config_map, speculates=False)),
    "deployment-static": lambda: deployment(Arm("Static")),
    "deployment-static-further": lambda: deployment(Arm("Static"), **FURTHER),
    "deployment-off": lambda: deployment(Arm("Off")),
    "deployment-cpu": lambda: deployment(MEASURED, ON_CPU, **CPU),
    "deployment-variables": lambda: deployment(MEASURED, **VARIABLES),
    "deployment-template": lambda: deployment(MEASURED, **TEMPLATE),
    "service": lambda: manifests.service(serving()),
    "profile": lambda: stored(serving()),
    "profile-further": lambda: stored(serving(FURTHER)),
    "profile-none": lambda: stored(serving(), verdict="None"),
    "package": package,
    "prompts": lambda: profiling.prompts(serving(), "uid-prompts", "aa", '{"prompt": "Tell me about tables."}\n'),
}
