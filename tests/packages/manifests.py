"""Checks rendered manifests: the schemas of Kubernetes, Pod Security "restricted", and that names fit each other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Iterator

import kubernetes_validate
import yaml

# Older than any version that upstream supported when this was written, because clusters are older, too.
VERSIONS = ("1.29", "1.33")
# Kinds of operators, whose schemas Kubernetes does not have.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "Certificate"}
# The image whose entrypoint copies a folder into a volume.
AGENT = Path(__file__).parents[2] / "deploy/container/Containerfile.agent"


def pods(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pod templates in a document."""
    template = document.get("spec", {}).get("template")
    if isinstance(template, dict):
        yield template


def restricted(spec: dict[str, Any]) -> Iterator[str]:
    """The violations of the restricted policy."""
    context = spec.get("securityContext", {})
    if not context.get("runAsNonRoot"):
        yield "runAsNonRoot"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "seccompProfile"
    if any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC")):
        yield "a host's namespace"
    for volume in spec.get("volumes", []):
        if not {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected"} & set(volume):
            yield f"volume {volume['name']}"
    for container in spec.get("initContainers", []) + spec["containers"]:
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities", {}).get("drop") != ["ALL"]:
            yield f"{container['name']}: privileges"
        if own.get("readOnlyRootFilesystem") is not True or "limits" not in container.get("resources", {}):
            yield f"{container['name']}: a writable root, or no limits"


def unmatched(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Names that refer to nothing."""
    labelled = [pod["metadata"]["labels"] for document in documents for pod in pods(document)]
    ports = {
        port["name"]
        for document in documents
        for pod in pods(document)
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    }
    for document in documents:
        kind, spec = document["kind"], document.get("spec", {})
        wanted = spec.get("selector") if kind == "Service" else spec.get("podSelector", {}).get("matchLabels")
        if wanted and not any(wanted.items() <= labels.items() for labels in labelled):
            yield f"{kind} selects no pod: {wanted}"
        if kind == "Service":
            yield from (f"Service: no port {port['targetPort']}" for port in spec["ports"] if port["targetPort"] not in ports)
        if kind == "ServiceMonitor":
            services = [other for other in documents if other["kind"] == "Service"]
            if not any(spec["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items() for one in services):
                yield "ServiceMonitor selects no Service"
            names = {port["name"] for one in services for port in one["spec"]["ports"]}
            yield from (f"ServiceMonitor: no port {end['port']}" for end in spec["endpoints"] if end["port"] not in names)
        for pod in pods(document):
            volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
            volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
            maps = {other["metadata"]["name"] for other in documents if other["kind"] == "ConfigMap"}
            for volume in pod["spec"].get("volumes", []):
                if "configMap" in volume and volume["configMap"]["name"] not in maps:
                    yield f"{kind}: no ConfigMap {volume['configMap']['name']}"
            for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
                for mount in container.get("volumeMounts", []):
                    if mount["name"] not in volumes:
                        yield f"{kind}: no volume {mount['name']}"


def instruction(name: str) -> list[str]:
    """The words of an instruction of the agent's image."""
    lines = [line for line in AGENT.read_text().splitlines() if line.startswith(f"{name} ")]
    words = json.loads(lines[0].split(maxsplit=1)[1])
    return [str(word) for word in words]


def uncopied(spec: dict[str, Any]) -> Iterator[str]:
    """Reasons why an init container with the agent's image would not fill its volume."""
    source = instruction("ENTRYPOINT")[-1].removesuffix("/.")
    for container in spec.get("initContainers", []):
        if container["image"].split(":")[0].rsplit("/", 1)[-1] != "memctl-agent":
            continue
        target = container.get("args", instruction("CMD"))[-1]
        mounts = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        if target not in mounts:
            yield f"{container['name']}: copies to {target}, where no volume is"
        if any(source == mount or source.startswith(f"{mount}/") for mount in mounts):
            yield f"{container['name']}: a volume hides {source} of the image"


def main() -> int:
    """The exit code."""
    folder, file = sys.argv[1], Path(sys.argv[2])
    documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
    wrong = list(unmatched(documents))
    for document in documents:
        for pod in pods(document):
            wrong += [f"{document['kind']} is not restricted: {word}" for word in restricted(pod["spec"])]
            wrong += [f"{document['kind']}: {word}" for word in uncopied(pod["spec"])]
        if document["kind"] in FOREIGN:
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                wrong.append(f"{document['kind']} for Kubernetes {version}: {error.message}")
    for line in wrong:
        print(f"{folder}: {line}", file=sys.stderr)
    if not wrong:
        print(f"{folder}: {len(documents)} documents, as Kubernetes {' and '.join(VERSIONS)} want them")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
