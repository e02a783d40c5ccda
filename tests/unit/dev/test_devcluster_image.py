"""Images are the same bytes for the same content, and hold what was put in."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path

from devcluster.image import ImageConfig, LayerWriter, write_image


def make_tree(folder: Path, mtime: int) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "tool").write_text("#!/bin/sh\n")
    (folder / "bin" / "tool").chmod(0o755)
    (folder / "bin" / "alias").symlink_to("tool")
    (folder / "data").write_text("data")
    (folder / "data").chmod(0o600)
    os.utime(folder / "data", (mtime, mtime))
    return folder


def make_layer(path: Path, tree: Path) -> Path:
    with LayerWriter(path) as writer:
        writer.copy(tree, "/opt/app")
        writer.folder("/tmp", 0o1777)
    return path


def test_a_layer_holds_files_links_and_parents_without_owner_and_time(tmp_path: Path) -> None:
    layer = make_layer(tmp_path / "layer.tar", make_tree(tmp_path / "tree", mtime=1_000_000))
    with tarfile.open(layer) as tar:
        assert tar.getnames() == [
            *("opt", "opt/app", "opt/app/bin", "opt/app/bin/alias", "opt/app/bin/tool", "opt/app/data", "tmp")
        ]
        assert oct(tar.getmember("opt/app/bin/tool").mode) == "0o755"
        assert oct(tar.getmember("opt/app/data").mode) == "0o644"
        assert oct(tar.getmember("tmp").mode) == "0o1777"
        assert tar.getmember("opt/app/bin/alias").linkname == "tool"
        assert {(member.mtime, member.uid, member.gid) for member in tar} == {(0, 0, 0)}


def test_the_same_content_gives_the_same_image_whenever_it_was_written(tmp_path: Path) -> None:
    images = []
    for name, mtime in (("a", 1), ("b", 2_000_000_000)):
        layer = make_layer(tmp_path / f"{name}-layer.tar", make_tree(tmp_path / name, mtime))
        write_image(tmp_path / f"{name}.tar", "x:dev", [layer], ImageConfig(entrypoint=["/opt/app/bin/tool"]))
        images.append((tmp_path / f"{name}.tar").read_bytes())
    assert images[0] == images[1]


def test_the_archive_names_its_layers_bottom_first_and_what_to_run(tmp_path: Path) -> None:
    layers = []
    for name in ("base", "code"):
        with LayerWriter(tmp_path / f"{name}.tar") as writer:
            writer.file(f"/{name}", name.encode())
        layers.append(tmp_path / f"{name}.tar")
    config = ImageConfig(entrypoint=["python3"], command=["-V"], env={"PATH": "/bin"}, user="65532", workdir="/work")
    identifier = write_image(tmp_path / "image.tar", "specserve.local/x:dev", layers, config)

    with tarfile.open(tmp_path / "image.tar") as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        description = tar.extractfile(manifest["Config"]).read()  # type: ignore[union-attr]
        contents = [tar.extractfile(layer).read() for layer in manifest["Layers"]]  # type: ignore[union-attr]
    parsed = json.loads(description)
    assert manifest["RepoTags"] == ["specserve.local/x:dev"]
    assert identifier == f"sha256:{hashlib.sha256(description).hexdigest()}"
    assert parsed["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in contents]
    assert contents == [layer.read_bytes() for layer in layers]
    assert parsed["config"] == {
        "Entrypoint": ["python3"],
        "Cmd": ["-V"],
        "Env": ["PATH=/bin"],
        "User": "65532",
        "WorkingDir": "/work",
    }
