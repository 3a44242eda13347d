"""Random configurations: valid, or refused with our own error; nothing else."""

import contextlib
import json
import string

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.config import SECTIONS
from myxtts.config.sources import dump_sections, dump_yaml, iterate_flags
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import PlanRequest, dump_plan, load_plan
from myxtts.devices.planning import plan_devices
from myxtts.errors import ConfigError, DevicePlanError

names = st.sampled_from([name for cls in SECTIONS.values() for name in [*cls.model_fields, *cls.aliases]])
words = st.sampled_from(
    ["auto", "off", "disk", "tiny", "big", "dual", "isolated", "mixed_float16", "fa", "true", "no", ""]
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(0, 64), st.floats(), words, st.text(max_size=8),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip
sections = st.dictionaries(
    st.one_of(st.sampled_from(["model", "data", "training"]), st.text(max_size=6)),
    st.one_of(st.dictionaries(st.one_of(names, st.text(max_size=6)), scalars, max_size=6), scalars),
    max_size=3,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(sections.map(lambda value: yaml.safe_dump(value)), st.text(alphabet=string.printable, max_size=60)))
def test_any_file_gives_a_configuration_or_our_error(tmp_path, text):
    path = tmp_path / "any.yaml"
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(ConfigError):
        resolve_config(yaml_path=path)


def draw_section(**fields):
    return st.fixed_dictionaries({}, optional=fields)


memory = st.one_of(st.just("auto"), st.integers(128, 40000))
valid = draw_section(
    model=draw_section(size=st.sampled_from(["tiny", "small", "normal", "big"])),
    data=draw_section(
        batch_size=st.integers(1, 512), num_workers=st.one_of(st.just("auto"), st.integers(0, 64)), model_start_delay=st.floats(0, 100),
        cache=st.sampled_from(["off", "memory", "disk", "auto"]), enable_parallel_batch=st.booleans(), data_gpu_memory=memory,
        train_data=st.one_of(st.none(), st.text(string.printable, min_size=1).filter(str.strip)), model_gpu_memory=memory,
        enable_memory_isolation=st.booleans(),
    ),
    training=draw_section(
        learning_rate=st.floats(1e-12, 10), seed=st.integers(0, 2**63 - 1), rehearsal=st.booleans(),
        init_from=st.one_of(st.none(), st.just("model.pth")),
        optimization_level=st.sampled_from(["basic", "enhanced", "experimental"]),
    ),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(valid)
def test_yaml_out_and_in_gives_the_same_configuration(tmp_path, values):
    config = XTTSConfig(**values)
    path = tmp_path / "same.yaml"
    path.write_text(dump_yaml(dump_sections(config)), encoding="utf-8")
    assert resolve_config(yaml_path=path) == config


cards = st.lists(
    st.builds(
        lambda free, total, name: (name, total, None if free is None else min(free, total)),
        st.one_of(st.none(), st.integers(0, 90000)),
        st.integers(1, 90000),
        st.sampled_from(["NVIDIA GeForce RTX 4090", "RTX 3080", "Tesla T4"]),
    ),
    max_size=4,
)
ids = st.one_of(st.none(), st.integers(0, 5))


@settings(max_examples=400, deadline=None)
@given(
    cards, ids, ids, st.sampled_from([None, "single", "dual", "isolated", "auto"]), st.booleans(), st.booleans(),
    st.one_of(st.none(), st.integers(1, 40000)), st.one_of(st.none(), st.integers(1, 40000)),
    st.one_of(st.none(), st.sampled_from(["", "0", "1,0", "3,1,0", "-1", "GPU-2", "x"])),
)  # fmt: skip
def test_any_request_on_any_machine_gives_a_sound_plan_or_our_error(
    facts, data, model, mode, isolation, rehearsal, data_limit, model_limit, visible
):
    cards = [Card(PhysicalId(n), name, f"GPU-{n}", "", total, free) for n, (name, total, free) in enumerate(facts)]
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    machine = Machine(CardScan(tuple(cards), (), None), host_free_mib=8000, environ=environ)
    request = PlanRequest(mode, data, model, isolation, data_limit, model_limit, rehearsal)
    try:
        plan = plan_devices(request, machine)
    except DevicePlanError:
        return
    assert load_plan(json.loads(json.dumps(dump_plan(plan)))) == plan
    for process in plan.processes:
        assert [card.tf_index for card in process.cards] == sorted({card.tf_index for card in process.cards})
        assert len({type(card.memory) for card in process.cards}) <= 1
    for role in (plan.data, plan.model):
        process = plan.process(role.process)
        index = int(role.device.rpartition(":")[2])
        if role.device.startswith("/GPU"):
            assert process.cards[index].physical_id == role.physical_id
        else:
            assert index < process.logical_cpus
    if data is not None and model is not None and not (mode == "single" and rehearsal):
        # One device does both jobs: that which was to train.
        assert plan.model.physical_id == model
        assert plan.data.physical_id == (model if mode == "single" else data)


flag_words = st.lists(
    st.one_of(
        st.sampled_from([flag.name for _, flag, _ in iterate_flags()]),
        words,
        st.integers().map(str),
        st.text(max_size=6),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(flag_words)
def test_any_words_on_the_command_line_give_a_configuration_or_a_user_error(argv):
    from myxtts.cli.main import make_parser
    from myxtts.errors import UserError

    # --help prints and stops with 0; argparse exits nowhere else.
    with contextlib.suppress(UserError, SystemExit):
        arguments = make_parser("train", "train").parse_all(argv)
        resolve_config(flags=arguments.given, environ={})
