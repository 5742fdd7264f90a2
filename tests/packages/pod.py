"""Starts the daemon of rendered manifests as its pod would: arguments, variables, files, user, read-only root, probes.

    unshare --net --mount python pod.py ROOT RENDERED

ROOT is the image's contents (deploy/container/build --roots), RENDERED the output of kubectl kustomize. The process
gets the pod's own network, whose one address is not on loopback, and a mount namespace with the StatefulSet's volumes
at their mount points. Probes run as the kubelet runs those of the StatefulSet, a scrape as Prometheus runs that of the
ServiceMonitor. Not tested: scheduling, and the effect of the NetworkPolicy.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable

import yaml

POD_IP = "10.42.0.7"
Document = dict[str, Any]


def network() -> None:
    """An interface with the pod's address: the loopback device gets it in addition to its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name, address in (("lo", "127.0.0.1"), ("lo:1", POD_IP)):
            label = name.encode().ljust(16, b"\0")
            inet = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, 0x8916, label + inet)  # SIOCSIFADDR
            fcntl.ioctl(control, 0x8914, label + struct.pack("h14x", 0x41))  # SIOCSIFFLAGS: up, running


def only(documents: list[Document], kind: str) -> Document:
    """The one document of a kind."""
    [found] = [document for document in documents if document["kind"] == kind]
    return found


def certificates(folder: Path, names: list[str]) -> dict[str, bytes]:
    """The content of a Secret from cert-manager, for these names."""

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    run("req", *key[:-2], "-keyout", "tls.key", "-out", "tls.csr", "-subj", f"/CN={names[0]}")
    names_of = ",".join(f"DNS:{name}" for name in names)
    (folder / "ext").write_text(f"subjectAltName={names_of}\nextendedKeyUsage=serverAuth,clientAuth\n")
    run("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
        "-extfile", "ext", "-out", "tls.crt")
    return {name: (folder / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")}


class Pod:
    """One pod of the StatefulSet."""

    def __init__(self, root: Path, documents: list[Document], work: Path) -> None:
        self.documents, self.work = documents, work
        self.set = only(documents, "StatefulSet")
        self.spec = self.set["spec"]["template"]["spec"]
        [self.container] = self.spec["containers"]
        certificate = [document for document in documents if document["kind"] == "Certificate"]
        service = self.set["spec"]["serviceName"]
        names = certificate[0]["spec"]["dnsNames"] if certificate else [f"{service}.memctl.svc", service]
        self.secrets = {"memctl-tls": certificates(work, names)}
        self.root = self.mounted(root)
        self.environment = self.variables()
        self.process: subprocess.Popen[bytes] | None = None

    def files(self, volume: Document) -> tuple[dict[str, bytes] | None, int]:
        """A volume's files and their mode; None if the pod writes to the volume."""
        if "secret" in volume:
            return self.secrets[volume["secret"]["secretName"]], volume["secret"].get("defaultMode", 0o644)
        if "configMap" in volume:
            maps = {one["metadata"]["name"]: one for one in self.documents if one["kind"] == "ConfigMap"}
            return {name: text.encode() for name, text in maps[volume["configMap"]["name"]]["data"].items()}, 0o644
        return None, 0

    def mounted(self, image: Path) -> Path:
        """The container's root: the image, read-only, and the volumes."""
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        root, group = self.work / "root", self.spec["securityContext"]["fsGroup"]
        root.mkdir()
        subprocess.run(["cp", "-a", f"{image}/.", str(root)], check=True)
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        claims = self.set["spec"].get("volumeClaimTemplates", [])
        volumes |= {claim["metadata"]["name"]: {"claim": True} for claim in claims}
        binds: list[tuple[Path, Path, bool]] = []
        for mount in self.container["volumeMounts"]:
            source = self.work / "volumes" / mount["name"]
            files, mode = self.files(volumes[mount["name"]])
            if not source.exists():
                source.mkdir(parents=True)
                for name, content in (files or {}).items():
                    (source / name).write_bytes(content)
                    os.chown(source / name, 0, group)
                    # The kubelet gives the group the owner's read permission.
                    os.chmod(source / name, mode | (mode & 0o400) >> 3)
                os.chown(source, 0, group)
                os.chmod(source, 0o755 if files is not None else 0o2777)
            target = root / mount["mountPath"].lstrip("/")
            if "subPath" in mount:
                source = source / mount["subPath"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            else:
                target.mkdir(parents=True, exist_ok=True)
            binds.append((source, target, mount.get("readOnly", False)))
        for name in ("dev/null", "dev/urandom", "proc"):
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir(exist_ok=True) if name == "proc" else target.touch()
        binds += [(Path("/") / name, root / name, False) for name in ("dev/null", "dev/urandom", "proc")]
        subprocess.run(["mount", "--bind", str(root), str(root)], check=True)
        if self.container["securityContext"].get("readOnlyRootFilesystem"):
            subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
        for source, target, read_only in binds:
            subprocess.run(["mount", "--rbind", str(source), str(target)], check=True)
            if read_only:
                subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)
        return root

    def variables(self) -> dict[str, str]:
        """The image's environment variables, then the container's."""
        image = (Path(__file__).parents[2] / "deploy/container/Containerfile").read_text()
        found = dict(re.findall(r"^ENV (\w+)=(\S+)$", image, re.MULTILINE))
        found |= {"PATH": "/usr/bin:/bin", "HOSTNAME": f"{self.set['metadata']['name']}-0"}
        found |= {variable["name"]: variable["value"] for variable in self.container["env"]}
        return found

    def inside(self, words: list[str], **more: Any) -> subprocess.Popen[bytes]:
        """A process in the container, as its user."""
        user, group = (self.spec["securityContext"][name] for name in ("runAsUser", "runAsGroup"))
        extra = [self.spec["securityContext"]["fsGroup"]]

        def enter() -> None:
            os.chroot(self.root)
            os.chdir("/")
            os.setgroups(extra)
            os.setgid(group)
            os.setuid(user)

        return subprocess.Popen(words, env=self.environment, preexec_fn=enter, **more)

    def executed(self, *words: str) -> str:
        """The output of a command, as with `kubectl exec`."""
        process = self.inside(["/usr/bin/memctl", *words], stdout=subprocess.PIPE)
        out = process.communicate(timeout=60)[0].decode()
        assert process.returncode == 0, f"memctl {' '.join(words)} ended with {process.returncode}"
        return out

    def start(self) -> None:
        """Starts the container."""
        image = (Path(__file__).parents[2] / "deploy/container/Containerfile").read_text()
        [entry] = re.findall(r'^ENTRYPOINT \["([^"]+)"\]$', image, re.MULTILINE)
        self.process = self.inside(self.container.get("command", [entry]) + self.container["args"])

    def port(self, name: str) -> int:
        """A port by its name."""
        [found] = [port["containerPort"] for port in self.container["ports"] if port["name"] == name]
        return found

    def probe(self, name: str) -> tuple[bool, str]:
        """One try of a probe, as the kubelet makes it: at the pod's address, without checking the certificate."""
        asked = self.container[name]["httpGet"]
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        url = f"{asked.get('scheme', 'HTTP').lower()}://{POD_IP}:{self.port(asked['port'])}{asked['path']}"
        return reached(url, {}, unchecked, self.container[name].get("timeoutSeconds", 1))

    def until(self, name: str) -> None:
        """Waits until the probe succeeds; fails after the probe's limit of failures."""
        probe = self.container[name]
        said = ""
        for _ in range(probe.get("failureThreshold", 3)):
            assert self.process and self.process.poll() is None, "the daemon has ended"
            succeeded, said = self.probe(name)
            if succeeded:
                return
            time.sleep(probe.get("periodSeconds", 10))
        raise AssertionError(f"{name} failed: {said}")

    def stop(self) -> None:
        """Ends it as the kubelet does: SIGTERM, then the pod's grace period."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=self.spec["terminationGracePeriodSeconds"])
        assert code == 0, f"the daemon ended with {code}"


def reached(url: str, headers: dict[str, str], context: ssl.SSLContext, timeout: float) -> tuple[bool, str]:
    """Whether a GET succeeds, and the response or the error."""
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
            return 200 <= answer.status < 400, answer.read().decode()
    except urllib.error.HTTPError as error:
        return False, f"{error.code}: {error.read().decode()}"
    except OSError as error:
        return False, str(error)


def named(name: str, context: ssl.SSLContext) -> ssl.SSLContext:
    """A context that requests this server name, regardless of the address."""
    wrap: Callable[..., ssl.SSLSocket] = context.wrap_socket
    context.wrap_socket = lambda *words, **more: wrap(*words, **(more | {"server_hostname": name}))  # type: ignore[method-assign]
    return context


def scrape(pod: Pod, monitor: Document) -> None:
    """Scrapes as Prometheus does under the ServiceMonitor."""
    [end] = monitor["spec"]["endpoints"]
    service = only(pod.documents, "Service")
    [port] = [port["targetPort"] for port in service["spec"]["ports"] if port["name"] == end["port"]]
    url = f"{end.get('scheme', 'http')}://{POD_IP}:{pod.port(port)}{end['path']}"
    # The README's command makes the token.
    made = pod.executed("token", "create", "prometheus", "--role", "reader", "--tenant", "*", "-o", "json")
    [token] = re.findall(r'"secret": *"([^"]+)"', made)
    credentials = end["authorization"]["credentials"]
    pod.secrets[credentials["name"]] = {credentials["key"]: token.encode()}
    ca = end["tlsConfig"]["ca"]["secret"]
    trusted = pod.secrets[ca["name"]][ca["key"]].decode()
    context = named(end["tlsConfig"]["serverName"], ssl.create_default_context(cadata=trusted))
    token = pod.secrets[credentials["name"]][credentials["key"]].decode()
    succeeded, said = reached(url, {"Authorization": f"Bearer {token}"}, context, 10)
    assert succeeded and "\nmemctl_ready 1\n" in said, f"the scrape: {said[:2000]}"
    assert "memctl_store_jobs" in said, "the token sees all tenants"
    for headers in ({}, {"Authorization": "Bearer " + base64.b64encode(b"nobody").decode()}):
        succeeded, said = reached(url, headers, context, 10)
        assert not succeeded and said.startswith("401"), f"without a token: {said}"


def main() -> int:
    """The exit code."""
    root, rendered = Path(sys.argv[1]), Path(sys.argv[2])
    documents = [document for document in yaml.safe_load_all(rendered.read_text()) if document]
    network()
    with tempfile.TemporaryDirectory(prefix="memctl-pod.") as work:
        os.chmod(work, 0o755)
        pod = Pod(root, documents, Path(work))
        try:
            pod.start()
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                pod.until(name)
            pod.executed("jobs")
            monitors = [document for document in documents if document["kind"] == "ServiceMonitor"]
            for monitor in monitors:
                scrape(pod, monitor)
            for name in ("livenessProbe", "readinessProbe"):
                pod.until(name)
            pod.stop()
        finally:
            if pod.process and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()
            subprocess.run(["umount", "--recursive", str(pod.root)], check=False)
    print(f"{rendered.stem}: started as its pod, probed" + (", scraped" if monitors else "") + ", ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
