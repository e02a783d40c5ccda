"""A real Kubernetes on a bare Debian machine, without a container engine, for the tests and the demo of specserve."""

from devcluster.cluster import Cluster, take_down
from devcluster.errors import DevclusterError

__all__ = ["Cluster", "DevclusterError", "take_down"]
