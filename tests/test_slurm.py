"""A real Slurm on this machine: its controller, a node and its accounting, from Debian's packages.

`make slurm` installs them. Where they are not there or cannot start (no root, no such packages),
these tests are skipped with the reason.
"""

import contextlib
import csv
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT, command, start_python, user_environment
from transformer_jax import load_run
from transformer_jax.studies.study import load_study

pytestmark = pytest.mark.slurm

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db")
STUDY = ("--config=tiny", "--arm=model.num_heads=4,1", "--seeds=2")
STEPS = ("--config.training.steps=300", "--config.mesh.data=2")
TWO = {"JAX_NUM_CPU_DEVICES": "2"}


def ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


def within(seconds, condition, what):
    """Waits until a condition holds."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found = condition()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"{what}: not within {seconds} s")


def told_by(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else []


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Starts the daemons in a folder of their own, and stops them."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or getpass.getuser() != "root":
        pytest.skip(f"no Slurm can be started here: {', '.join(missing) or 'this is not root'}")
    place, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().partition(".")[0]
    control, node, accounts, database = ports(4)
    for name in ("state", "spool", "database"):
        (place / name).mkdir()
    (place / "slurm.conf").write_text(
        f"""ClusterName=here
SlurmctldHost={host}
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/control.pid
SlurmdPidFile={place}/node.pid
SlurmctldLogFile={place}/control.log
SlurmdLogFile={place}/node.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={accounts}
NodeName={host} CPUs={os.cpu_count()} RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
    )
    told = place / "slurmdbd.conf"
    told.write_text(
        f"""AuthType=auth/munge
DbdHost=localhost
DbdPort={accounts}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
LogFile={place}/accounts.log
PidFile={place}/accounts.pid
"""
    )
    told.chmod(0o600)
    os.environ["SLURM_CONF"] = str(place / "slurm.conf")
    started = []
    log = (place / "daemons.log").open("w")

    def start(*words):
        started.append(subprocess.Popen(words, stdout=log, stderr=log))

    def sql(text):
        words = ["mariadb", "--no-defaults", f"--socket={place}/sql", "--user=root", "--execute"]
        return subprocess.run([*words, text], stderr=log, check=False).returncode == 0

    try:
        os.makedirs("/run/munge", exist_ok=True)
        shutil.chown("/run/munge", "munge")
        if not told_by("munge", "-n"):
            start("runuser", "-u", "munge", "--", "munged", "--foreground", "--force")
        folder = f"--datadir={place}/database"
        install = ["mariadb-install-db", "--user=root", folder, "--skip-test-db"]
        subprocess.run(install, stdout=log, stderr=log, check=True)
        start(
            *("mariadbd", "--no-defaults", "--user=root", folder, f"--socket={place}/sql"),
            *(f"--port={database}", "--bind-address=127.0.0.1"),
        )
        user = (
            "create user slurm@localhost identified by 'slurm'; grant all on *.* to slurm@localhost"
        )
        within(30, lambda: sql(user), "the database")
        start("slurmdbd", "-D")
        within(30, lambda: told_by("sacctmgr", "-n", "show", "cluster") or told_by(
            "sacctmgr", "-i", "-Q", "add", "cluster", "here"
        ), "the accounting")  # fmt: skip
        start("slurmctld", "-D", "-f", str(place / "slurm.conf"))
        start("slurmd", "-D", "-f", str(place / "slurm.conf"))
        within(40, lambda: "idle" in told_by("sinfo", "-h", "-o", "%t"), "a node")
        yield place
    finally:
        for daemon in reversed(started):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
        log.close()
        os.environ.pop("SLURM_CONF")


def test_two_tasks_of_a_step_are_one_run(slurm, tmp_path):
    """`srun` alone says who is who."""
    words = ["-m", "experiments.train", "--config=tiny", "--config.mesh.data=-1"]
    done = subprocess.run(
        ["srun", "--ntasks=2", sys.executable, *words, f"--workdir={tmp_path / 'two'}"],
        cwd=ROOT,
        env=user_environment(**TWO),
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "4 devices, data=4" in done.stdout
    assert command("train", "--config=tiny", f"--workdir={tmp_path / 'one'}").returncode == 0
    two, one = (load_run(tmp_path / name).metrics[-1]["test/loss"] for name in ("two", "one"))
    assert two == pytest.approx(one, abs=1e-4)


def running_jobs():
    return told_by("squeue", "-h", "-t", "R", "-o", "%A")


def cells_of(study):
    with (study / "scores.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_study_goes_on_through_killed_and_requeued_jobs(slurm, tmp_path):
    """One job is killed, one is sent back into the queue: the verdict is that of one process.

    Each cell is trained over two devices.
    """
    study = tmp_path / "cluster" / "s"
    jobs = ("--executor=slurm", "--cells_per_job=1", "--job=cpus_per_task=1")
    words = ["-m", "experiments.ablate", *STUDY, *STEPS, *jobs, f"--workdir={study}"]
    launched = start_python(*words, **TWO)
    first, second = within(120, lambda: running_jobs()[:2][1:] and running_jobs()[:2], "jobs")
    within(60, lambda: list((tmp_path / "cluster" / "cells").glob("*/*/metrics.jsonl")), "updates")
    subprocess.run(["scancel", "--signal=KILL", "--full", first], check=True)
    subprocess.run(["scontrol", "requeue", second], check=True)
    # Slurm lets it wait for two minutes; the study waits for it, and it finishes its cell.
    pending = ("squeue", "-h", "-j", second, "-t", "PD", "-o", "%A")
    within(60, lambda: told_by(*pending), "the requeued job")
    subprocess.run(["scontrol", "update", f"JobId={second}", "StartTime=now"], check=True)
    said, _ = launched.communicate(timeout=300)
    assert "jobs   4 with 4 cells (slurm)" in said
    assert launched.returncode == 1, said
    assert "error: 1 cells failed" in said, said
    within(30, lambda: not told_by("squeue", "-h"), "the end of all jobs")

    again = command("ablate", *STUDY, *STEPS, *jobs, f"--workdir={study}", timeout=300, **TWO)
    assert again.returncode == 0, again.stdout + again.stderr
    here = tmp_path / "here" / "s"
    assert command("ablate", *STUDY, *STEPS, f"--workdir={here}", **TWO).returncode == 0
    config = load_run(next((tmp_path / "cluster" / "cells").glob("*/*"))).config
    assert config.mesh.data == 2
    one, other = (load_study(path).verdicts() for path in (study, here))
    assert one["values"] == other["values"]
    assert len(cells_of(study)) == len(cells_of(here)) == 4
