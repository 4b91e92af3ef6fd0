"""The deployment files: schemas, flags, ports and names that fit together.

Compose files are held against the Compose specification's own schema, as
check-jsonschema ships it, and manifests against Kubernetes' strict ones.
"""

import json
import re
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from rs_keras.serving.server import metrics
from rs_keras.serving.server import model_config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "serving" / "deploy"
COMPOSE = sorted((DEPLOY / "compose").glob("*.yaml"))
MANIFESTS = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] != "Kustomization"
]
BOARD = json.loads((DEPLOY / "grafana" / "certifiers.json").read_text())
# Of tensorflow_serving/model_servers/main.cc.
FLAGS = {
    "--port",
    "--rest_api_port",
    "--rest_api_timeout_in_ms",
    "--model_config_file",
    "--model_config_file_poll_wait_seconds",
    "--file_system_poll_wait_seconds",
    "--monitoring_config_file",
    "--enable_grpc_healthcheck_service",
    "--tensorflow_intra_op_parallelism",
    "--tensorflow_inter_op_parallelism",
    "--grpc_max_threads",
    "--ssl_config_file",
}


def name_of(path):
    return path.name


def manifest(kind):
    (found,) = [one for one in MANIFESTS if one["kind"] == kind]
    return found


def servers(path):
    return yaml.safe_load(path.read_text())["services"]["certifier"]


@pytest.fixture(scope="module")
def compose_schema():
    shipped = resources.files("check_jsonschema") / "builtin_schemas"
    return json.loads((shipped / "vendor" / "compose-spec.json").read_text())


@pytest.mark.parametrize("path", COMPOSE, ids=name_of)
def test_compose_files_are_valid(compose_schema, path):
    jsonschema.validate(yaml.safe_load(path.read_text()), compose_schema)


def test_the_compose_schema_finds_mistakes(compose_schema):
    wrong = {"services": {"certifier": {"imagee": "x"}}}
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        jsonschema.validate(wrong, compose_schema)


@pytest.mark.parametrize("version", ["1.30", "1.33"])
@pytest.mark.parametrize("one", MANIFESTS, ids=lambda one: one["kind"])
def test_manifests_are_valid(one, version):
    kubernetes_validate.validate(one, version, strict=True)


def test_the_manifest_schema_finds_mistakes():
    wrong = json.loads(json.dumps(manifest("Deployment")))
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagee"):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_the_fleet_is_found_and_kept_up():
    deployment, service = manifest("Deployment"), manifest("Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        service["spec"]["selector"],
        deployment["spec"]["selector"]["matchLabels"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None"
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxUnavailable"] == 0
    # A number that holds for every number of replicas.
    budget = manifest("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget


def test_the_autoscaler_is_that_of_the_deployment():
    scaler, deployment = (
        manifest("HorizontalPodAutoscaler")["spec"],
        manifest("Deployment"),
    )
    target = scaler["scaleTargetRef"]
    assert target["kind"] == "Deployment"
    assert target["name"] == deployment["metadata"]["name"]
    assert scaler["minReplicas"] <= deployment["spec"]["replicas"]
    assert scaler["maxReplicas"] > scaler["minReplicas"]
    (metric,) = scaler["metrics"]
    name = metric["pods"]["metric"]["name"]
    recorded = yaml.safe_load(
        (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    )["groups"][0]["rules"]
    assert name in {rule.get("record") for rule in recorded}


def test_pods_pass_the_restricted_security_standard():
    """https://kubernetes.io/docs/concepts/security/pod-security-standards"""
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    context = pod["securityContext"]
    assert context["seccompProfile"]["type"] == "RuntimeDefault"
    assert context["runAsNonRoot"] is True
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in pod["volumes"]:
        assert set(volume) - {"name"} <= allowed
    for container in pod["containers"]:
        inner = container["securityContext"]
        assert inner["allowPrivilegeEscalation"] is False
        assert inner["runAsNonRoot"] is True and inner["runAsUser"] > 0
        assert inner["capabilities"] == {"drop": ["ALL"]}
        assert not inner.get("privileged")
        assert all("hostPort" not in port for port in container["ports"])


def patched(document, patch):
    """JSON Patch, as far as the overlay uses it."""
    for step in patch:
        *path, last = step["path"].strip("/").split("/")
        where = document
        for key in path:
            where = where[int(key) if isinstance(where, list) else key]
        if last == "-":
            where.append(step["value"])
        else:
            assert (last in where) == (step["op"] == "replace")
            where[last] = step["value"]
    return document


def test_the_overlay_adds_tls():
    folder = DEPLOY / "kubernetes-tls"
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    (base,) = overlay["resources"]
    files = yaml.safe_load((folder / base / "kustomization.yaml").read_text())
    for name in files["resources"]:
        assert (folder / base / name).is_file()
    (patch,) = overlay["patches"]
    deployment = json.loads(json.dumps(manifest("Deployment")))
    assert patch["target"] == {
        "kind": "Deployment",
        "name": deployment["metadata"]["name"],
    }
    steps = yaml.safe_load((folder / patch["path"]).read_text())
    safe = patched(deployment, steps)
    kubernetes_validate.validate(safe, "1.33", strict=True)
    pod = safe["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--ssl_config_file=/tls/ssl.config" in container["args"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "tls"]
    # The group alone may read the key.
    assert volume["secret"]["defaultMode"] == 0o440
    assert "grpc" not in container["readinessProbe"]


def test_every_port_is_closed_to_strangers():
    """REST takes seeds as gRPC does, and so lets choose a lucky one."""
    rules = manifest("NetworkPolicy")["spec"]["ingress"]
    ports = [port["port"] for rule in rules for port in rule["ports"]]
    assert sorted(ports) == [8500, 8501]
    for rule in rules:
        assert rule["from"]
        for peer in rule["from"]:
            assert peer["podSelector"]["matchLabels"]


@pytest.mark.parametrize("name", ["one.yaml", "three.yaml"])
def test_the_group_of_the_exports_reads_them_in_compose(name):
    """Version files are of mode 0640: neither root nor others need to."""
    text = (DEPLOY / "compose" / name).read_text()
    server = servers(DEPLOY / "compose" / name)
    user, group = server["user"].split(":")
    assert int(user) > 0 and int(group) > 0
    (added,) = server["group_add"]
    assert re.match(r"\$\{EXPORTS_GID:\?", added)
    (mount,) = [v for v in server["volumes"] if "/exports" in v]
    assert mount.endswith(":/exports:ro")
    command = "EXPORTS_GID=$(stat -c %g exports/mnist/1)"
    assert command in text
    assert command in (ROOT / "docs" / "serving.md").read_text()


def test_the_key_of_tls_is_readable_by_the_same_group():
    """Compose mounts a secret with the modes that the file has."""
    text = (DEPLOY / "compose" / "tls.yaml").read_text()
    assert "chgrp $EXPORTS_GID ssl.config && chmod 640 ssl.config" in text
    assert "user" not in servers(DEPLOY / "compose" / "tls.yaml")


def test_the_group_of_the_exports_reads_them_in_kubernetes():
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    groups = pod["securityContext"]
    assert groups["supplementalGroups"] == [groups["fsGroup"]]
    assert groups["fsGroup"] > 0
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] > 0
    # Without it, the image's own group: root's.
    assert context["runAsGroup"] > 0
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["exports"]["readOnly"]


def test_threads_are_as_many_as_cores():
    (container,) = manifest("Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    cores = container["resources"]["limits"]["cpu"]
    assert f"--tensorflow_intra_op_parallelism={cores}" in container["args"]
    three = servers(DEPLOY / "compose" / "three.yaml")
    cores = three["deploy"]["resources"]["limits"]["cpus"]
    assert f"--tensorflow_intra_op_parallelism={cores}" in three["command"]
    # Swarm's, which `docker compose` ignores.
    assert "update_config" not in three["deploy"]


def all_arguments():
    for path in COMPOSE:
        yield path.name, servers(path)["command"]
    (container,) = manifest("Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    yield "Deployment", container["args"]


@pytest.mark.parametrize(
    ("where", "arguments"),
    list(all_arguments()),
    ids=lambda value: str(value)[:15],
)
def test_flags_are_tensorflow_model_servers(where, arguments):
    given = dict(argument.split("=", 1) for argument in arguments)
    assert given.keys() <= FLAGS
    assert given["--port"] == "8500"
    # A request that runs long holds up to two of these threads.
    requests = int(given["--grpc_max_threads"])
    assert int(given["--tensorflow_inter_op_parallelism"]) >= 2 * requests
    # Batching costs certifiers more than it gives.
    assert "--enable_batching" not in given
    if where != "Deployment":
        for flag in ("--model_config_file", "--monitoring_config_file"):
            name = Path(given[flag]).name
            assert (DEPLOY / "config" / name).is_file()
    else:
        assert {Path(given["--model_config_file"]).name} <= set(
            manifest("ConfigMap")["data"]
        )


def model_configs():
    return {
        "file": (DEPLOY / "config" / "models.config").read_text(),
        "ConfigMap": manifest("ConfigMap")["data"]["models.config"],
    }


@pytest.mark.parametrize(
    "text", model_configs().values(), ids=model_configs().keys()
)
def test_model_configs_parse(text):
    parsed = text_format.Parse(
        text, model_server_config_pb2.ModelServerConfig()
    )
    (model,) = parsed.model_config_list.config
    assert (model.name, model.base_path) == ("mnist", "/exports/mnist")
    assert model.model_platform == "tensorflow"


def test_the_embedded_server_reads_the_model_config():
    read = model_config.read(DEPLOY / "config" / "models.config")
    assert [one.name for one in read.model_config_list.config] == ["mnist"]


def test_metrics_are_where_prometheus_looks():
    text = (DEPLOY / "config" / "monitoring.config").read_text()
    assert f'path: "{metrics.PATH}"' in text
    assert metrics.PATH in manifest("ConfigMap")["data"]["monitoring.config"]
    scraped = yaml.safe_load(
        (DEPLOY / "prometheus" / "prometheus.yaml").read_text()
    )
    (job,) = scraped["scrape_configs"]
    assert job["metrics_path"] == metrics.PATH
    (source,) = job["dns_sd_configs"]
    three = servers(DEPLOY / "compose" / "three.yaml")
    assert f"--rest_api_port={source['port']}" in three["command"]
    assert source["names"] == ["certifier"]


def offered():
    """The series that a server has, once it has done everything."""
    kept = metrics.Metrics()
    kept.count(metrics.REQUEST_COUNT, "m", "OK")
    kept.count(metrics.LOAD_ATTEMPTS, "/m", metrics.FAILED)
    kept.gauge(metrics.FULLNESS, lambda: 0.5)
    kept.observe(metrics.REQUEST_LATENCY, 1.0, "m", "Predict", "GRPC")
    kept.observe(metrics.RUNTIME_LATENCY, 1.0, "m", "Predict", "TF1")
    series = re.findall(r"^(:[\w:]+)\{(.*?)\}", kept.text(), re.M)
    return {name: set(re.findall(r"(\w+)=", labels)) for name, labels in series}


def expressions():
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    for group in alerts["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert", rule.get("record")), rule["expr"]


@pytest.mark.parametrize(
    "expression",
    [expression for _, expression in expressions()],
    ids=[f"{title} {i}" for i, (title, _) in enumerate(expressions())],
)
def test_boards_and_alerts_ask_for_series_that_exist(expression):
    series = offered()
    asked = re.findall(
        r"(:(?:tensorflow|rs_keras):[\w:]+)(?:\{(.*?)\})?", expression
    )
    assert asked or "up{" in expression or "certifier_in_flight" in expression
    for name, labels in asked:
        assert name in series
        # `job` is of Prometheus.
        used = set(re.findall(r"(\w+)=", labels)) - {"job"}
        assert used <= series[name]
    assert expression.count("(") == expression.count(")")


def test_panels_do_not_overlap():
    taken = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        taken |= cells
    assert max(x for x, _ in taken) < 24


def test_the_board_is_put_where_grafana_looks():
    three = yaml.safe_load((DEPLOY / "compose" / "three.yaml").read_text())
    mounts = [
        mount.split(":") for mount in three["services"]["grafana"]["volumes"]
    ]
    for source, _, _ in mounts:
        assert (DEPLOY / "compose" / source).is_file()
    boards = yaml.safe_load((DEPLOY / "grafana" / "boards.yaml").read_text())
    folder = boards["providers"][0]["options"]["path"]
    assert any(target.startswith(f"{folder}/") for _, target, _ in mounts)
    sources = yaml.safe_load((DEPLOY / "grafana" / "sources.yaml").read_text())
    used = {panel["datasource"]["uid"] for panel in BOARD["panels"]}
    assert used == {one["uid"] for one in sources["datasources"]}


def files():
    return sorted(
        path.relative_to(DEPLOY).as_posix()
        for path in DEPLOY.rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize("path", files())
def test_every_file_is_installed_and_explained(path):
    setup = (ROOT / "setup.py").read_text()
    patterns = re.findall(r'"(deploy/[^"]+)"', setup)
    assert any(
        fnmatch(f"deploy/{path}", pattern)
        and f"deploy/{path}".count("/") == pattern.count("/")
        for pattern in patterns
    )
    assert f"`{path}`" in (ROOT / "docs" / "serving.md").read_text()
