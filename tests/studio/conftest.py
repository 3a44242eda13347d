"""A studio that the tests of a file share."""

import pytest

from tests.studio.hosting import host_studio


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    with host_studio(tmp_path_factory.mktemp("studio") / "workspace") as hosted:
        yield hosted


@pytest.fixture
def client(hosted):
    return hosted[0]


@pytest.fixture
def studio(hosted):
    return hosted[1]
