"""A child process imports this package, and nothing else that lies about."""

import os
import sysconfig
from pathlib import Path

from myxtts.devices.child_environment import make_importable


def test_a_package_outside_of_the_installed_ones_goes_before_the_user_s_own_path(tmp_path):
    environment = make_importable({"PYTHONPATH": "/mine", "HOME": "/h"}, tmp_path)
    assert environment == {"PYTHONPATH": f"{tmp_path}{os.pathsep}/mine", "HOME": "/h"}
    assert make_importable({}, tmp_path) == {"PYTHONPATH": str(tmp_path)}


def test_the_folder_of_installed_packages_is_never_named():
    installed = Path(sysconfig.get_path("purelib"))
    assert make_importable({"PYTHONPATH": "/mine"}, installed) == {"PYTHONPATH": "/mine"}
    assert make_importable({}, installed) == {}
