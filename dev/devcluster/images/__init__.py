"""Recipes of the images that the cluster and its tests use."""

from devcluster.images.basic import BUSYBOX_IMAGE, PAUSE_IMAGE, ensure_basic_images

__all__ = ["BUSYBOX_IMAGE", "PAUSE_IMAGE", "ensure_basic_images"]
