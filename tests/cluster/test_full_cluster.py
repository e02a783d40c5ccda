"""The full cluster runs what people run, and says no to a second one."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from typing import Any

import pytest

from devcluster import Cluster, DevclusterError
from devcluster.pace import patience

from .conftest import run_devcluster

pytestmark = pytest.mark.cluster
IMAGE = "specserve.local/busybox:dev"


def container(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": IMAGE, "command": ["sh", "-c", script], **more}


def job(name: str, script: str, **more: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [container(script, **more)]}
    spec = {"backoffLimit": 0, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def web_server(name: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    script = f"echo {text} > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
    probe = {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1}
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container(script, readinessProbe=probe)]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    metadata = {"name": name, "namespace": "default"}
    deployment = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}
    service = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}
    return (
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    )


def test_a_job_completes_and_its_termination_message_is_read(cluster: Cluster) -> None:
    cluster.apply(job("talks", "echo measured > /dev/termination-log"))
    cluster.kubectl("wait", "--for=condition=complete", "job/talks", f"--timeout={patience(30):.0f}s")
    pod = cluster.get("pods", "--selector=job-name=talks")["items"][0]
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "measured\n"


def test_a_deployment_answers_at_its_cluster_ip_from_this_machine_and_from_pods(cluster: Cluster) -> None:
    cluster.apply(*web_server("web", "served"))
    cluster.kubectl("rollout", "status", "deployment/web", f"--timeout={patience(40):.0f}s")
    url = f"http://{cluster.get('service', 'web')['spec']['clusterIP']}/"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=patience(10)) as response:
        assert response.read() == b"served\n"
    pod = cluster.get("pods", "--selector=app=web")["items"][0]["metadata"]["name"]
    # twice per endpoint on average, so that a pod also reaches itself through the service
    asked = cluster.kubectl("exec", pod, "--", "sh", "-c", f"for i in 1 2 3 4 5 6 7 8; do wget -qO- {url}; done")
    assert asked == "served\n" * 8


def test_a_killed_container_is_restarted_by_the_kubelet(cluster: Cluster) -> None:
    cluster.apply(*web_server("dies", "again"))
    cluster.kubectl("rollout", "status", "deployment/dies", f"--timeout={patience(40):.0f}s")
    pod = cluster.get("pods", "--selector=app=dies")["items"][0]["metadata"]["name"]
    first = cluster.container_pid("default", pod, "main")
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + patience(30)
    while True:
        status = cluster.get("pod", pod)["status"]["containerStatuses"][0]
        if status["restartCount"] == 1 and status["state"].get("running"):
            break
        assert time.monotonic() < deadline, status
        time.sleep(0.2)
    assert cluster.container_pid("default", pod, "main") != first


def test_a_pod_that_asks_for_a_fake_device_is_scheduled_once_the_node_offers_it(cluster: Cluster) -> None:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    cluster.apply(job("needs-gpu", "true", resources=limits))
    unscheduled = ("--for=condition=PodScheduled=false", "--selector=job-name=needs-gpu")
    cluster.kubectl("wait", "pod", *unscheduled, f"--timeout={patience(20):.0f}s")
    status, output = run_devcluster("fake-device", cluster.node, "nvidia.com/gpu", "1")
    assert status == 0, output
    cluster.kubectl("wait", "--for=condition=complete", "job/needs-gpu", f"--timeout={patience(30):.0f}s")


def test_the_audit_log_names_every_writer_and_no_reader(cluster: Cluster) -> None:
    someone = ("--as=system:serviceaccount:default:someone", "--as-group=system:masters")
    cluster.kubectl("create", "configmap", "audited", *someone)
    cluster.kubectl("get", "configmaps")
    events = cluster.audit_events()
    mine = [event for event in events if event.get("objectRef", {}).get("name") == "audited"]
    assert [event["verb"] for event in mine] == ["create"]
    assert mine[0]["impersonatedUser"]["username"] == "system:serviceaccount:default:someone"
    assert {event["verb"] for event in events} <= {"create", "update", "patch", "delete", "deletecollection"}


def test_a_killed_component_can_be_started_again(cluster: Cluster) -> None:
    cluster.kill("kube-scheduler")
    with pytest.raises(DevclusterError, match="kube-scheduler does not run"):
        cluster.pid("kube-scheduler")
    cluster.apply(job("waits", "true"))
    cluster.start("kube-scheduler")
    cluster.kubectl("wait", "--for=condition=complete", "job/waits", f"--timeout={patience(40):.0f}s")


def test_status_gives_machine_readable_facts(cluster: Cluster) -> None:
    status, output = run_devcluster("status", "--json")
    facts = json.loads(output)
    assert status == 0
    assert facts["kubeconfig"] == str(cluster.kubeconfig)
    assert facts["node"] == "specserve-dev"
    assert facts["serviceCIDR"] == "10.96.0.0/16"
    assert set(facts["pids"]) >= {"etcd", "kube-apiserver", "kube-controller-manager", "kubelet", "containerd"}
    assert facts["ended"] == []


def test_a_second_up_is_refused_with_the_way_out(cluster: Cluster) -> None:
    status, output = run_devcluster("up")
    assert status == 1
    assert str(cluster.state.folder) in output
    assert "down --state" in output
    assert "Traceback" not in output
    assert cluster.get("nodes")["items"][0]["metadata"]["name"] == "specserve-dev"


def test_a_control_plane_alone_runs_beside_it(cluster: Cluster) -> None:
    with Cluster.control_plane() as other:
        assert other.get("nodes")["items"] == []
    assert len(cluster.get("nodes")["items"]) == 1
