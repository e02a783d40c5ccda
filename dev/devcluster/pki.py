"""Keys, certificates, tokens and kubeconfigs of one cluster, made with openssl (P-256: ten times faster than RSA)."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# kubeconfig name -> (user, group or ""): what each component authenticates as, by a token of its own.
USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}
_DAYS = "365"


@dataclass(frozen=True)
class Pki:
    """The folder with everything in it."""

    folder: Path

    def file(self, name: str) -> str:
        """The path of one file, as a string for a command line."""
        return str(self.folder / name)

    def kubeconfig(self, name: str) -> Path:
        """The kubeconfig of one user of `USERS` (or `kubelet`)."""
        return self.folder / f"{name}.kubeconfig"


def make_pki(folder: Path, server: str, addresses: list[str], node: str | None, env: Mapping[str, str]) -> Pki:
    """Fill `folder`: a CA, the API server's certificates and key for tokens, tokens.csv and one kubeconfig per user.

    `server` is the URL the kubeconfigs name, `addresses` the IPs the serving certificate is valid for.
    """
    folder.mkdir(mode=0o700, parents=True)
    (folder / "openssl.cnf").write_text("[req]\ndistinguished_name = dn\n[dn]\n")
    names = ",".join(["DNS:localhost", "DNS:kubernetes.default.svc", *(f"IP:{address}" for address in addresses)])
    _certificate(folder, "ca", "/CN=devcluster", ["basicConstraints=critical,CA:TRUE"], env, signed=False)
    _certificate(folder, "apiserver", "/CN=kube-apiserver", [f"subjectAltName={names}", _usage("server")], env)
    _certificate(folder, "kubelet-client", "/O=system:masters/CN=kube-apiserver", [_usage("client")], env)
    _certificate(folder, "front-proxy", "/CN=front-proxy-client", [_usage("client")], env)
    _openssl(folder, env, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "sa.key")
    _openssl(folder, env, "pkey", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    users = USERS | ({"kubelet": (f"system:node:{node}", "system:nodes")} if node else {})
    rows = []
    authority = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    for uid, (name, (user, group)) in enumerate(users.items()):
        token = secrets.token_hex(16)
        rows.append(f"{token},{user},{uid}" + (f',"{group}"' if group else ""))
        _write_private(folder / f"{name}.kubeconfig", kubeconfig(server, authority, token))
    _write_private(folder / "tokens.csv", "\n".join(rows) + "\n")
    return Pki(folder)


def kubeconfig(server: str, authority: str, token: str) -> str:
    """A kubeconfig (JSON, which is YAML): `authority` is the CA certificate in base64."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "devcluster", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "devcluster",
        },
        indent=1,
    )


def _usage(kind: str) -> str:
    return f"extendedKeyUsage={kind}Auth"


def _certificate(
    folder: Path, name: str, subject: str, extensions: list[str], env: Mapping[str, str], signed: bool = True
) -> None:
    authority = ("-CA", "ca.crt", "-CAkey", "ca.key") if signed else ()
    added = [part for extension in extensions for part in ("-addext", extension)]
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")
    request = ("req", "-x509", "-config", "openssl.cnf", "-days", _DAYS, "-subj", subject, "-out", f"{name}.crt")
    _openssl(folder, env, *request, *key, *authority, *added)


def _openssl(folder: Path, env: Mapping[str, str], *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, env=dict(env), check=True, capture_output=True)


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        handle.write(text)
