"""The wheel: what is in it, and that it runs where nothing else of the project is."""

import subprocess
import sys
import zipfile

import pytest

import myxtts
from tests.support.processes import ROOT

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)], check=True, timeout=300)
    return next(out.iterdir())


def test_it_has_the_package_the_demo_corpus_the_voice_and_the_pages(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    home = ROOT / "myxtts"
    wanted = [*home.rglob("*.py"), *home.rglob("*.html"), *home.rglob("*.css"), *(home / "data" / "demo").rglob("*.*"),
              *(home / "base_voice").iterdir()]  # fmt: skip
    assert {str(each.relative_to(ROOT)) for each in wanted} <= names
    assert wheel.name == f"myxtts-{myxtts.__version__}-py3-none-any.whl"
    assert not [name for name in names if not name.startswith(("myxtts/", "myxtts-"))]


@pytest.mark.parametrize("words", [["--version"], ["data"], ["train", "--rehearsal", "--print-plan"]])
def test_it_runs_alone(wheel, words, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import myxtts.cli.main
assert myxtts.__file__.startswith(sys.path[0])
sys.exit(myxtts.cli.main.main())
"""
    # Isolated: neither this folder nor a variable leads back to the project.
    result = subprocess.run([sys.executable, "-I", "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
