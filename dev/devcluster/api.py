"""The few reads of the API server that waiting needs, without the start-up time of kubectl."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class ApiReader:
    """Reads one API server with the token of a kubeconfig that `pki` wrote."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server: str = cluster["server"]
        self._token: str = config["users"][0]["user"]["token"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)

    def text(self, path: str) -> str | None:
        """The body of a GET; None while the server does not answer 200."""
        request = urllib.request.Request(self._server + path, headers={"Authorization": f"Bearer {self._token}"})
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        )
        try:
            with opener.open(request, timeout=5) as response:
                body: bytes = response.read()
        except (urllib.error.URLError, http.client.HTTPException, OSError):
            return None
        return body.decode()

    def object(self, path: str) -> dict[str, Any] | None:
        """The JSON object of a GET; None while the server does not answer 200."""
        body = self.text(path)
        return None if body is None else json.loads(body)

    def ready(self) -> bool:
        """Whether the server says that it is ready."""
        return self.text("/readyz") == "ok"

    def node_ready(self, name: str) -> bool:
        """Whether a Node exists and its Ready condition is True."""
        node = self.object(f"/api/v1/nodes/{name}") or {}
        conditions = node.get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
