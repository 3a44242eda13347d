"""Runs whose clips are read by a tf.data service tell the story of a run that reads them itself, whatever happens to workers."""

from signal import SIGKILL

import pytest

from tests.data.service.servers import Server, run_servers, start_service
from tests.training.conftest import COMPARED
from tests.training.runs import finish, read_story, start, train
from tests.training.strikes import at_step, leaves_nothing, strike, wait_for

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def flags(codec_run):
    return ("--train-data", codec_run / "corpus", "--codec", codec_run / "codec", *COMPARED)


@pytest.fixture(scope="module")
def unbroken(share, flags):
    return share("service_unbroken", lambda folder: train(folder, *flags, "--mode", "single"))


def test_workers_and_trainer_are_killed_and_the_story_is_that_of_a_run_without_a_service(flags, unbroken, tmp_path):
    folder = tmp_path / "served"
    # Little is read ahead, so that every step needs the service.
    settings = {"data.pipeline_buffer_size": 3}
    with run_servers() as servers, leaves_nothing(folder):
        address = start_service(servers, workers=2)
        served = (*flags, "--data-service", address)
        early, later = at_step(folder, 2), at_step(folder, 4)
        run = start(folder, *served, "--mode", "isolated", **settings)
        wait_for(early, lambda: run.poll() is None, "the run ended by itself")
        servers[1].stop(SIGKILL)
        servers.append(Server("data-worker", "--dispatcher", address))
        strike(run, later, SIGKILL)
        assert finish(run, folder).code == -SIGKILL
        servers[-1].wait_until_ready()
        servers[2].stop(SIGKILL)
        said = train(folder, *served, "--mode", "dual", "--resume", **settings)
    assert f"The tf.data service at {address} reads the clips." in said
    assert read_story(folder) == read_story(unbroken)


def test_a_run_whose_workers_have_all_gone_ends_in_time_and_says_what_to_do(flags, unbroken, tmp_path):
    folder = tmp_path / "left_alone"
    limits = ("--data-service-timeout", "5")
    with run_servers() as servers, leaves_nothing(folder):
        address = start_service(servers, workers=1)
        served = (*flags, "--data-service", address, *limits, "--mode", "single")
        moment = at_step(folder, 2)
        run = start(folder, *served, **{"data.pipeline_buffer_size": 3})
        wait_for(moment, lambda: run.poll() is None, "the run ended by itself")
        servers[1].stop(SIGKILL)
        said = finish(run, folder)
        assert said.code == 1
        assert f"Start one where the corpus can be read: `myxtts data-worker --dispatcher {address}`" in said.text
        assert "Traceback" not in said.text
    # Without the service, where it was.
    train(folder, *flags, "--mode", "single", "--resume")
    assert read_story(folder) == read_story(unbroken)
