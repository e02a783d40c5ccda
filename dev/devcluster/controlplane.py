"""Command lines of the control plane: etcd, API server, controller manager, scheduler."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from devcluster.pki import Pki

# Every write, who made it and to what; no reads, no bodies. Tests count an operator's writes with it.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True)
class Endpoint:
    """Where a control plane listens. A full cluster lives in a network namespace of its own, so its ports are fixed."""

    bind: str
    advertise: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    service_cidr: str
    in_namespace: bool

    @property
    def url(self) -> str:
        """The API server's URL for clients."""
        return f"https://{self.advertise}:{self.api_port}"

    @property
    def etcd_url(self) -> str:
        """etcd's client URL."""
        return f"http://127.0.0.1:{self.etcd_port}"


def etcd(endpoint: Endpoint, data: Path) -> list[str]:
    """etcd on loopback. It does not fsync: the state is thrown away with the cluster, and disks of CI are slow."""
    peer = f"http://127.0.0.1:{endpoint.etcd_peer_port}"
    return [
        "etcd",
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={endpoint.etcd_url}",
        f"--advertise-client-urls={endpoint.etcd_url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def api_server(endpoint: Endpoint, pki: Pki, audit_policy: Path, audit_log: Path, *, controllers: bool) -> list[str]:
    """The API server. Without controllers nobody makes the default ServiceAccounts, so pods are admitted without."""
    audit_policy.write_text(json.dumps(AUDIT_POLICY))
    flags = [
        "kube-apiserver",
        f"--etcd-servers={endpoint.etcd_url}",
        f"--bind-address={endpoint.bind}",
        f"--advertise-address={endpoint.advertise}",
        f"--secure-port={endpoint.api_port}",
        f"--service-cluster-ip-range={endpoint.service_cidr}",
        f"--tls-cert-file={pki.file('apiserver.crt')}",
        f"--tls-private-key-file={pki.file('apiserver.key')}",
        f"--client-ca-file={pki.file('ca.crt')}",
        f"--token-auth-file={pki.file('tokens.csv')}",
        "--anonymous-auth=false",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.file('sa.pub')}",
        f"--service-account-signing-key-file={pki.file('sa.key')}",
        f"--kubelet-client-certificate={pki.file('kubelet-client.crt')}",
        f"--kubelet-client-key={pki.file('kubelet-client.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--proxy-client-cert-file={pki.file('front-proxy.crt')}",
        f"--proxy-client-key-file={pki.file('front-proxy.key')}",
        f"--requestheader-client-ca-file={pki.file('ca.crt')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--audit-policy-file={audit_policy}",
        f"--audit-log-path={audit_log}",
    ]
    if not endpoint.in_namespace:
        flags.append("--endpoint-reconciler-type=none")  # a loopback address may not be an endpoint
    if not controllers:
        flags.append("--disable-admission-plugins=ServiceAccount")
    return flags


def controller_manager(pki: Pki, *, real_nodes: bool) -> list[str]:
    """The controller manager. Where no kubelet runs, Nodes are made by hand and must not turn NotReady for silence."""
    config = pki.kubeconfig("controller-manager")
    return [
        "kube-controller-manager",
        f"--kubeconfig={config}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.file('sa.key')}",
        f"--root-ca-file={pki.file('ca.crt')}",
        "--secure-port=0",
        *([] if real_nodes else ["--controllers=*,-node-lifecycle-controller"]),
    ]


def scheduler(pki: Pki) -> list[str]:
    """The scheduler."""
    config = pki.kubeconfig("scheduler")
    return ["kube-scheduler", f"--kubeconfig={config}", "--leader-elect=false", "--secure-port=0"]
