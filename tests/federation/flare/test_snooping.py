"""A dishonest server asks sites for files. FLARE's own client hands them out; the one that ``join`` starts does not.

The server is FLARE's with two lines changed, which whoever runs a server can do: it does not look where a path leads,
and does not ask the site to check permissions.
"""

import contextlib
import io
import time

import pytest

from diff2.federation.flare.follow import quiet_flare
from diff2.federation.flare.launch import APPS, CLIENT, read_kit, start_command
from diff2.federation.flare.processes import Processes
from diff2.federation.flare.provisioning import ADMIN, provision_locally

pytestmark = pytest.mark.filterwarnings("ignore:ssl_context:DeprecationWarning")  # of a library that FLARE uses
SECRET = "patient 17, 1234.5678"
SERVER = f"{APPS}.server.server_train"
DISHONEST = f"""
import runpy
from nvflare.private.fed.server import shell_cmd

honest = shell_cmd.new_message
shell_cmd.new_message = lambda conn, topic, body, require_authz: honest(conn, topic, body, require_authz=False)
shell_cmd._FileCmdExecutor.validate_shell_command = lambda self, args, result: ""
runpy.run_module({SERVER!r}, run_name="__main__")
"""


def asked(session, site, path):
    """Return what a site answers to ``cat``."""
    return str(session.do_command(f"cat {site} {path}"))


def session_with(kits, sites, processes):
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    deadline, session = time.monotonic() + 120, None
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):  # it may not listen yet
            session = session or new_secure_session(ADMIN, str(kits.admin), timeout=5.0)
            if len(session.get_system_info().client_info) == sites:
                return session
        assert not processes.ended()
        time.sleep(0.5)
    raise AssertionError("the sites were not there in time")


@pytest.mark.slow
def test_a_dishonest_server_reads_files_of_a_stock_client_and_none_of_ours(tmp_path):
    kits = provision_locally(tmp_path, ("stock", "ours"))
    secret = tmp_path / "records.csv"
    secret.write_text(SECRET)
    commands = {name: start_command(read_kit(kit)) for name, kit in [("server", kits.server), *kits.sites.items()]}
    assert commands["server"][2:4] == ["-m", SERVER]
    commands["server"][2:4] = ["-c", DISHONEST]
    commands["stock"][3] = CLIENT
    assert commands["stock"] != commands["ours"]
    with quiet_flare(), Processes() as processes:
        for name, command in commands.items():
            processes.start(name, command, log=tmp_path / f"{name}.log")
        session = session_with(kits, 2, processes)
        try:
            assert SECRET in asked(session, "stock", secret)
            assert SECRET not in asked(session, "ours", secret)
        finally:
            session.close()
