"""The image for real: built offline, run by podman as restricted as the manifests say.

`make image-test`. IMAGE_BUILT=1 takes the image that is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.k8s.containers import IMAGE, LIMITS, RESTRICTED, UID, Container, Containers, podman
from tests.k8s.pods import wait_for
from tests.k8s.test_scale import drained, figures, meet

pytestmark = pytest.mark.container
ROOT = Path(__file__).parents[2]
SIZE_MAX = 1.2e9
READY_S, ACCURACY = 15.0, 0.95


@pytest.fixture(scope="module")
def image() -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root: debootstrap, port 53")
    if not os.environ.get("IMAGE_BUILT"):
        made = subprocess.run(
            ["make", "image-offline"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    return IMAGE


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def line(sentence: str) -> None:
        with capfd.disabled():
            print(f"\nimage: {sentence}", end="", flush=True)

    return line


@pytest.fixture
def containers(image: str, tmp_path: Path) -> Iterator[Containers]:
    made = Containers(tmp_path)
    yield made
    made.close()


def inside(*command: str) -> str:
    return podman(
        "run", "--rm", *LIMITS, *RESTRICTED, "--entrypoint", command[0], IMAGE, *command[1:]
    )


def test_what_is_in_it(image: str, say: Callable[[str], None]) -> None:
    about = json.loads(podman("image", "inspect", image))[0]
    say(f"{about['Size'] / 1e6:.0f} MB")
    assert about["Size"] <= SIZE_MAX
    assert about["Config"]["User"] == f"{UID}:{UID}"
    assert about["Config"]["Entrypoint"] == ["murmurate"]
    assert about["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert "MALLOC_TRIM_THRESHOLD_=2000000000" in about["Config"]["Env"]
    assert about["Healthcheck"]["Test"][0] == "CMD"
    look = (
        "import os, shutil, json; found = json.load(open('/opt/murmurate/sbom.cdx.json'));"
        "print(json.dumps([[n for n in ('gcc', 'cc', 'make', 'pip', 'curl') if shutil.which(n)],"
        "os.path.exists('/etc/pip.conf') or os.path.exists('/root/.cache'),"
        "os.listdir('/var/lib/apt/lists'), sorted(c['name'] for c in found['components'])]))"
    )
    tools, traces, lists, parts = json.loads(inside("python3", "-c", look))
    assert (tools, traces, lists) == ([], False, [])
    assert {"torch", "grpcio", "protobuf", "numpy"} <= set(parts)
    assert not {"pip", "cyclonedx-bom", "pytest"} & set(parts)


def test_nothing_of_the_builders_pip_stays(image: str) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    words = [word for line in listed.splitlines() for word in line.split("=", 1)[1].split()]
    private = {word.strip("'\"") for word in words if "/" in word}
    private -= {"/etc/ssl/certs/ca-certificates.crt"}
    told = podman("history", "--no-trunc", image) + podman("image", "inspect", image)
    assert not [word for word in private if word in told]


def test_both_commands_are_there(image: str) -> None:
    given = {
        "MURMURATE_NODE_INSECURE": "true",
        "MURMURATE_NODE_ADVERTISE": "10.0.0.5:7000",
        "MURMURATE_COORDINATOR_INSECURE": "true",
    }
    variables = [word for pair in given.items() for word in ("-e", "=".join(pair))]
    for command in ("node", "coordinator"):
        words = (command, "--config", f"/etc/murmurate/{command}.toml", "--check-config")
        podman("run", "--rm", *LIMITS, *RESTRICTED, *variables, image, *words)


def test_three_train_together(containers: Containers, say: Callable[[str], None]) -> None:
    pods = containers.start("m-0", "m-1", "m-2")
    ready_s = [pod.until_ready(120) for pod in pods]
    say(f"3 at once: start to ready {', '.join(f'{each:.1f}' for each in ready_s)} s")
    meet(containers)
    one = pods[0]
    assert isinstance(one, Container)
    status = dict(line.split(":\t", 1) for line in one.run("cat", "/proc/1/status").splitlines())
    assert status["Uid"].split()[0] == str(UID)
    assert (int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
    assert "murmurate" in one.run("cat", "/proc/1/cmdline"), "it is not process 1"
    assert "Read-only" in one.run("sh", "-c", "touch /x 2>&1; true")
    podman("healthcheck", "run", one.id)

    pods[2].kill()
    containers.pods.pop("m-2")
    rest = list(containers.pods.values())
    lost_s = wait_for(lambda: all(p.states().get("m-2") == "dead" for p in rest), "m-2 is dead", 30)
    say(f"one killed: dead for all after {lost_s:.1f} s")

    def accurate() -> bool:
        return all(pod.figure("murmurate_accuracy") >= ACCURACY for pod in rest)

    wait_for(accurate, f"{ACCURACY:.0%}", 180)
    assert all(pod.figure("murmurate_updates_applied_total") > 100 for pod in rest)
    say("accuracy " + ", ".join(f"{pod.figure('murmurate_accuracy'):.1%}" for pod in rest))

    back = containers.start("m-2")[0]
    back_s = back.until_ready(120)
    meet(containers)
    assert back.describe().name == "m-2", "it came back as somebody else"
    say(f"it is back as itself: start to ready {back_s:.1f} s")
    term = drained(containers, "m-1")
    say(f"SIGTERM: {figures(*term)}\n")
    assert term[0] <= 1.0
    assert term[1] <= 2.0
    assert term[2] <= 10.0
    assert back_s <= READY_S


def test_the_coordinator_answers(image: str, say: Callable[[str], None]) -> None:
    name = f"murmurate-coordinator-{os.getpid()}"
    host = "127.171.0.1"
    began = time.monotonic()
    podman(
        *("run", "-d", "--rm", "--name", name, "--network=host", *LIMITS, *RESTRICTED),
        *("-e", f"MURMURATE_COORDINATOR_LISTEN={host}:7100"),
        *("-e", f"MURMURATE_METRICS_LISTEN={host}:9464"),
        *(IMAGE, "coordinator", "--config", "/etc/murmurate/coordinator.toml"),
    )
    try:
        pod = Container("coordinator", host, None, Path("/nowhere"))  # type: ignore[arg-type]
        wait_for(lambda: pod.get("/livez")[0] == 200, "/livez", 60)
        say(f"coordinator alive {time.monotonic() - began:.1f} s after start\n")
    finally:
        podman("kill", "--signal", "KILL", name, check=False)
