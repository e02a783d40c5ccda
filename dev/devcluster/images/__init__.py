"""Recipes of the images that the cluster and its tests use."""

from collections.abc import Callable
from pathlib import Path

from devcluster.cache import Progress
from devcluster.images.basic import BUSYBOX_IMAGE, PAUSE_IMAGE, ensure_basic_images
from devcluster.images.demo_engine import DEMO_ENGINE_IMAGE, ensure_demo_engine_image
from devcluster.images.operator import OPERATOR_IMAGE, ensure_operator_image

RECIPES: dict[str, Callable[[Progress], Path]] = {
    "operator": ensure_operator_image,
    "demo-engine": ensure_demo_engine_image,
}
"""Name -> what makes the image's archive and returns its path."""

__all__ = [
    "BUSYBOX_IMAGE",
    "DEMO_ENGINE_IMAGE",
    "OPERATOR_IMAGE",
    "PAUSE_IMAGE",
    "RECIPES",
    "ensure_basic_images",
    "ensure_demo_engine_image",
    "ensure_operator_image",
]
