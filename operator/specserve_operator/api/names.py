"""Every name that specserve gives to something in a cluster: group, labels, annotations, keys of ConfigMaps."""

GROUP = "specserve.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "SpeculativeServing"
PLURAL = "speculativeservings"

MANAGER = "specserve"
"""Field manager of every apply, and the value of MANAGED_BY."""

# Labels. The store asks the API server for objects that have ROLE; a profile may be managed by anybody.
MANAGED_BY = "app.kubernetes.io/managed-by"
SERVING = f"{GROUP}/serving"
"""Name of the SpeculativeServing. On Deployment, Service and serving pods."""
VARIANT = f"{GROUP}/variant"
"""Slug of the accelerator. On a variant's Deployment and pods."""
ROLE = f"{GROUP}/role"
ROLE_SERVING, ROLE_PROFILING, ROLE_PROFILE, ROLE_PACKAGE = "serving", "profiling", "profile", "profiler-package"
PROFILE_KEY = f"{GROUP}/profile-key"
"""On profiling Jobs and their pods, and on profile ConfigMaps."""

PROMPTS = f"{GROUP}/prompts"
"""On a Job: the ConfigMap with the copy of its prompts."""
PROMPTS_OF = f"{GROUP}/prompts-of"
"""On a copy of prompts: uid of the ConfigMap that it is a copy of. The store does not look at copies."""

# A node label set by hand; wins over what vendors say.
ACCELERATOR = f"{GROUP}/accelerator"

# Annotations.
ATTEMPT = f"{GROUP}/attempt"
FAILURES = f"{GROUP}/failures"
"""On a Job: attempts that failed one after the other before it."""
REQUESTED_BY = f"{GROUP}/requested-by"
"""On a Job: ``uid/digest`` of the resource that asked for it and of its spec, replicas apart. Another digest retries a
failed Job at once; a generation would not do, because autoscalers raise it."""
KEY_INPUTS_OF_JOB = f"{GROUP}/key-inputs"
"""On a Job: JSON of all that its key is the hash of, so that its result can be stored whoever asks for what by then."""
JOB = f"{GROUP}/job"
"""On a profile: uid of the Job that measured it."""
WHY = f"{GROUP}/why"
"""On a Job: ``Reason: message`` of its start. What led to it may be gone by the time it ends."""
APPLIED_HASH = f"{GROUP}/applied-hash"
"""On a child: hash of what it was rendered from. It is rendered anew only when that changes, so that an upgrade of the
operator restarts no pod."""
PROFILE = f"{GROUP}/profile"
"""On a Deployment and its pod template: the profile ConfigMap behind it, or ``Static`` or ``Off`` before the first."""
ACCELERATOR_IDENTITY = f"{GROUP}/accelerator-identity"
"""On a Deployment: JSON of the accelerator's identity, so that a variant is known when its nodes are gone."""
REVISION = f"{GROUP}/serving-revision"
"""On a Deployment: JSON of what it serves, so that one that is held can be placed anew: see ``manifests.serving``."""
REPROFILE = f"{GROUP}/reprofile"
"""On a SpeculativeServing: any new value asks for a new measurement. Copied to the Job and to its profile."""

# Keys of a profile ConfigMap.
PROFILE_JSON = "profile.json"
TABLE_JSON = "table.json"
SPECULATIVE_CONFIG = "speculative-config.json"
KEY_INPUTS = "key-inputs.json"
SUMMARY = "summary.txt"
PROMPTS_COPY = "prompts.jsonl"
"""Of the copy of a ConfigMap's prompts."""
PACKAGE_ZIP = "specserve_profiler.zip"

ENGINE_CONTAINER = "engine"
REQUEST_VARIABLE = "SPECSERVE_REQUEST"
"""On the engine container of a Job: what the profiler is asked to measure."""
ENGINE_PORT = 8000
READY_PORT = 8001
"""The profiler opens it when measuring starts."""
