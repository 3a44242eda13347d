"""Where values come from: flags over environment over YAML over presets, each with its origin."""

import re
from pathlib import Path

import pytest

from myxtts.cli.parser import Parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.config import SECTIONS, setting_keys
from myxtts.config.model import SHAPE_NAMES
from myxtts.config.settings import nearest_name
from myxtts.config.sources import add_setting_flags, dump_sections, format_config, iterate_flags
from myxtts.errors import CommandLineError, ConfigError

ROOT = Path(__file__).resolve().parents[2]
CONTRADICTIONS = [("--resume", "--reset-training"), ("--enable-xla", "--no-enable-xla")]


def parse(*words):
    parser = Parser("train")
    add_setting_flags(parser)
    return parser.parse_all(words).given


def resolve(*words, yaml=None, environ=None):
    return resolve_config(flags=parse(*words), yaml_path=yaml, environ=environ or {})


@pytest.fixture
def write_yaml(tmp_path):
    def write(text):
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_flags_win_over_yaml_and_yaml_over_presets(write_yaml):
    path = write_yaml("model:\n  size: tiny\ndata:\n  batch_size: 5\n  num_workers: 3\n")
    config = resolve("--batch-size", "7", yaml=path)
    assert (config.data.batch_size, config.data.num_workers, config.model.gpt_layers) == (7, 3, 4)
    assert config.origins["data.batch_size"] == "--batch-size"
    assert config.origins["data.num_workers"] == f"{path}:5"
    assert config.origins["model.gpt_layers"] == "preset model size tiny"
    assert config.origins["training.seed"] == "default"


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--train-data", "corpus"], "data.train_data", "corpus"),
        (["--val-data", "v"], "data.val_data", "v"),
        (["--data-gpu", "3", "--model-gpu", "1"], "data.data_gpu", 3),
        (["--data-gpu", "3", "--model-gpu", "1"], "data.model_gpu", 1),
        (["--enable-memory-isolation"], "data.enable_memory_isolation", True),
        (["--data-gpu-memory", "4096"], "data.data_gpu_memory", 4096),
        (["--model-gpu-memory", "8192"], "data.model_gpu_memory", 8192),
        (["--batch-size", "16"], "data.batch_size", 16),
        (["--epochs", "3"], "training.epochs", 3),
        (["--max-steps", "10"], "training.max_steps", 10),
        (["--buffer-size", "75"], "data.pipeline_buffer_size", 75),
        (["--model-start-delay", "0.5"], "data.model_start_delay", 0.5),
        (["--prefetch-buffer-size", "6"], "data.prefetch_buffer_size", 6),
        (["--num-workers", "12"], "data.num_workers", 12),
        (["--model-size", "normal"], "model.size", "base"),
        (["--enable-static-shapes"], "data.pad_to_fixed_length", True),
        (["--disable-static-shapes"], "data.pad_to_fixed_length", False),
        (["--grad-accum", "4"], "training.gradient_accumulation_steps", 4),
        (["--mixed-precision"], "data.mixed_precision", "mixed_float16"),
        (["--mixed-precision", "mixed_bfloat16"], "data.mixed_precision", "mixed_bfloat16"),
        (["--optimization-level", "basic"], "training.optimization_level", "basic"),
        (["--lr", "1e-4"], "training.learning_rate", 1e-4),
        (["--checkpoint-dir", "d"], "training.checkpoint_dir", "d"),
        (["--resume"], "training.resume", "require"),
        (["--reset-training"], "training.resume", "reset"),
        (["--seed", "42"], "training.seed", 42),
        (["--deterministic"], "training.deterministic", True),
        (["--enable-xla"], "data.enable_xla", True),
        (["--mode", "isolated"], "training.mode", "isolated"),
        (["--rehearsal"], "training.rehearsal", True),
        (["--cache", "off"], "data.cache", "off"),
        (["--stage", "codec"], "training.stage", "codec"),
        (["--init-from", "m.pth"], "training.init_from", "m.pth"),
        (["--strict"], "data.strict", True),
        (["--on-oom", "stop"], "training.on_oom", "stop"),
        (["--cluster", "c.yaml"], "training.cluster", "c.yaml"),
        (["--gradient-checkpointing"], "model.enable_gradient_checkpointing", True),
        (["--tensorboard-log-dir", "tb"], "training.tensorboard_log_dir", "tb"),
        (["--language", "fa"], "data.language", "fa"),
        (["--set", "model.dropout=0.25"], "model.dropout", 0.25),
        (["--set", "training.max_steps=null"], "training.max_steps", None),
        (["--set", "data.enable_caching=false"], "data.cache", "off"),
        (["--max-steps", "null"], "training.max_steps", None),
        (["--vocabulary", "v.json"], "data.vocabulary", "v.json"),
        (["--min-clip-seconds", "1"], "data.min_clip_seconds", 1.0),
        (["--max-clip-seconds", "9"], "data.max_clip_seconds", 9.0),
        (["--max-text-length", "100"], "data.max_text_length", 100),
        (["--no-follow-symlinks"], "data.follow_symlinks", False),
        (["--set", "data.use_tf_native_loading=false"], "data.use_tf_native_loading", False),
    ],
)
def test_every_promised_flag_sets_its_setting(words, key, value):
    config = resolve(*words)
    section, _, name = key.partition(".")
    assert getattr(getattr(config, section), name) == value


def test_a_cache_flag_wins_over_the_old_word_in_yaml(write_yaml):
    path = write_yaml("data:\n  enable_caching: true\n")
    config = resolve("--cache", "off", yaml=path)
    assert (config.data.cache, config.origins["data.cache"]) == ("off", "--cache")


def test_every_flag_has_a_yaml_key():
    assert {key for key, _, _ in iterate_flags()} <= set(setting_keys())
    names = [flag.name for _, flag, _ in iterate_flags()]
    assert len(names) == len(set(names))
    promised = (
        *("batch_size", "num_workers", "prefetch_buffer_size", "use_tf_native_loading", "prefetch_to_gpu"),
        *("enable_parallel_batch", "enable_map_fusion", "enable_caching", "pad_to_fixed_length", "enable_xla"),
        *("mixed_precision", "pipeline_buffer_size", "model_start_delay", "data_gpu", "model_gpu"),
    )
    assert {*promised} <= {*SECTIONS["data"].model_fields, *SECTIONS["data"].aliases}


def test_numbers_in_yaml_mean_what_they_look_like(write_yaml):
    path = write_yaml("training:\n  learning_rate: 1e-4\n  seed: 010\ndata:\n  cache: off\n  mixed_precision: true\n")
    config = resolve_config(yaml_path=path)
    assert (config.training.learning_rate, config.training.seed) == (1e-4, 10)
    assert (config.data.cache, config.data.mixed_precision) == ("off", "mixed_float16")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data:\n  batch_size: 4\n  batch_size: 8\n", "data.batch_size stands twice"),
        ("data:\n  batch_size: 4\ndata:\n  seed: 8\n", "data stands twice"),
        ("data: [1, 2\n", "is not valid YAML"),
        ("a: &a [1, 1]\nb: &b [*a, *a]\ndata: [*b, *b]\n", "stands for a list or a table. Write it out"),
        ("data: &a {a: *a}\n", "stands for a list or a table. Write it out"),
        ("- 1\n- 2\n", "must hold the sections"),
        ("data:\n  batch_sizes: 4\n", 'config.yaml:2) is not a setting. Did you mean "data.batch_size"?'),
        ("dat:\n  batch_size: 4\n", 'dat ({path}:2) is not a setting. Did you mean "data"?'),
        ("data.batch_size: 4\n", 'Write "batch_size" indented under "data:"'),
        ("data:\n  strict: !!bool maybe\n", "holds a value that cannot be read"),
        ("data:\n  model_start_delay: !!float ''\n", "holds a value that cannot be read"),
        ("data:\n  train_data: !!timestamp foo\n", "holds a value that cannot be read"),
        ("data:\n\n  batch_size: zero\n", "data.batch_size ({path}:3) must be a whole number, but is 'zero'"),
        ("data: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(write_yaml, text, words):
    path = write_yaml(text)
    with pytest.raises(ConfigError) as caught:
        resolve_config(yaml_path=path)
    assert words.format(path=path) in str(caught.value)
    assert "ConfigError" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "names", "near"),
    [
        ("--bogus", ["--model-gpus"], None),
        ("--html", ["--help", "-h"], None),
        ("--nope", ["--no-speak", "--mode"], None),
        ("--output", ["--text", "--out"], "--out"),
        ("--val", ["--lr", "--val-data"], "--val-data"),
        ("--bach-size", ["--batch-size", "--cache"], "--batch-size"),
        ("trian", ["train", "data"], "train"),
    ],
)
def test_a_name_is_suggested_only_where_it_is_near(word, names, near):
    assert nearest_name(word, names) == near


def test_an_empty_file_and_empty_sections_are_all_defaults(write_yaml):
    assert resolve_config(yaml_path=write_yaml("")) == XTTSConfig()
    assert resolve_config(yaml_path=write_yaml("data:\nmodel:\n")) == XTTSConfig()


def test_the_environment_asks_for_rehearsal_and_a_flag_can_refuse(write_yaml):
    environ = {"MYXTTS_REHEARSAL": "1"}
    config = resolve(environ=environ)
    assert (config.training.rehearsal, config.origins["training.rehearsal"]) == (True, "MYXTTS_REHEARSAL")
    assert resolve("--no-rehearsal", environ=environ).training.rehearsal is False
    assert resolve(yaml=write_yaml("training:\n  rehearsal: false\n"), environ=environ).training.rehearsal is True
    with pytest.raises(ConfigError, match=r"training.rehearsal \(MYXTTS_REHEARSAL\) must be true or false"):
        resolve(environ={"MYXTTS_REHEARSAL": "perhaps"})


def test_the_printed_configuration_names_the_origin_of_every_value():
    text = format_config(resolve("--batch-size", "3"))
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    assert len(lines) == len(setting_keys())
    assert all("  # " in line for line in lines)
    assert "batch_size: 3" in text
    assert next(line for line in lines if "batch_size: 3" in line).endswith("# --batch-size")
    assert next(line for line in lines if "prefetch_buffer_size" in line).endswith("default, is 8")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_files_load(path):
    resolve_config(yaml_path=path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(([one, other], f"{one} and {other} contradict") for one, other in CONTRADICTIONS),
        *(([word], f"There is no flag {word}") for word in ("--print-conf", "--rehears", "--batch")),
        (["--rehearsal=1", "x"], "--rehearsal takes no value"),
        (["--", "x"], "belongs to no flag"),
        (["--set", "data.bach_size=4"], 'Did you mean "data.batch_size"'),
        (["--set", "data.batch_size"], "KEY=VALUE"),
    ],
)
def test_words_that_set_nothing_get_a_plain_answer(words, said):
    with pytest.raises((CommandLineError, ConfigError), match=said):
        parse(*words)


SHAPE = {"size", *SHAPE_NAMES}


@pytest.mark.parametrize(
    ("training", "decided"),
    [
        ({}, set()),
        ({"codec": "runs/codec"}, {"dvae_width", "audio_codes"}),
        ({"init_from": "model"}, SHAPE),
        ({"stage": "decoder"}, {*SHAPE, "prompt_seconds", "max_clip_seconds"}),
    ],
)
def test_what_a_model_decides_is_a_comment_so_that_the_printed_text_asks_for_the_same(tmp_path, training, decided):
    config = XTTSConfig(training=training, model={"gpt_heads": 8})
    path = tmp_path / "printed.yaml"
    path.write_text(format_config(config))
    assert set(re.findall(r"^  # (\w+):", path.read_text(), re.MULTILINE)) == {"text_tokens", *decided} - {"gpt_heads"}
    assert dump_sections(resolve_config(yaml_path=path, environ={})) == dump_sections(config)
