"""IPython Parallel on a site: engines by its launchers for Slurm and SSH."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

import ipyparallel as ipp
from traitlets.config import Config

from benchmarks.sites.on_site import START_TIMEOUT_S, OnSite


class Peer(OnSite):
    configs: ClassVar[dict[str, list[str]]] = {"": [], "slurm": ["slurm"], "ssh": ["ssh"]}

    def version(self) -> str:
        return f"ipyparallel {ipp.__version__}"

    def bring_up(self, workers: int, config: str) -> Iterable[os.uname_result]:
        site = self.site
        # A job's engines read their profile there, on every host. With SSH it is copied to a folder of the same name.
        self.folder: str = f"{site.shared if config == 'slurm' else '/tmp'}/ipython-{os.getpid()}"
        os.environ["IPYTHONDIR"] = self.folder
        os.makedirs(self.folder)
        chosen = Config()
        chosen.SSHLauncher.remote_python = sys.executable
        chosen.SSHLauncher.remote_profile_dir = f"{self.folder}/profile_default"
        chosen.SSHEngineSetLauncher.engines = {host: workers // len(site.hosts) for host in site.hosts}
        self.cluster: Any = ipp.Cluster(
            n=workers,
            engines=config,
            controller_ip="*",
            controller_location=site.address or None,
            # The hub forgets engines that take longer, 30 s by default, and they never come back.
            controller_args=[f"--IPController.registration_timeout={START_TIMEOUT_S}"],
            engine_timeout=START_TIMEOUT_S,
            config=chosen,
            log_level=40,
        )
        self.cluster.start_cluster_sync()
        self.client: Any = self.cluster.connect_client_sync()
        self.client.wait_for_engines(workers, timeout=START_TIMEOUT_S, interactive=False)
        found: list[os.uname_result] = self.client[:].apply_sync(os.uname)
        return found

    def take_down(self) -> None:
        self.client.close()
        try:
            self.cluster.stop_cluster_sync()
        except TimeoutError:
            # It gives up on engines that take long to answer a login. They would disturb the next system.
            for host in self.site.hosts:
                subprocess.run(["ssh", host, "pkill", "-f", self.folder], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
