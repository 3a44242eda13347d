"""Settings: defaults, ranges, presets, and the words of their errors."""

import pytest

from myxtts.config import DataConfig, ModelConfig, TrainingConfig, XTTSConfig
from myxtts.config.presets import MODEL_SIZES, find_card_preset, name_size
from myxtts.config.settings import parse_gpu_ids
from myxtts.errors import ConfigError


def test_sections_alone_have_the_values_of_a_whole_configuration():
    config = XTTSConfig()
    assert (config.model, config.data, config.training) == (ModelConfig(), DataConfig(), TrainingConfig())


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_numbers_are_named_by_their_size_whatever_the_label_says(size):
    numbers = ModelConfig(**{**MODEL_SIZES[size], "size": "base", "decoder_width": 48}).model_dump()
    assert name_size(numbers) == size
    assert name_size(numbers | {"gpt_layers": 7}) is None


def test_a_given_number_wins_over_its_preset_and_the_origin_says_so():
    config = XTTSConfig(model={"size": "tiny", "gpt_layers": 2})
    assert (config.model.gpt_layers, config.model.gpt_width) == (2, 256)
    assert config.origins["model.gpt_layers"] == "given"
    assert config.origins["model.gpt_width"] == "preset model size tiny"


def test_replacing_the_size_refills_what_only_the_preset_had_set():
    config = XTTSConfig(model=ModelConfig(size="tiny"), data={"batch_size": 5}).replace(model={"size": "big"})
    assert (config.model.gpt_layers, config.data.batch_size) == (30, 5)


@pytest.mark.parametrize("start", ["base", "runs/other"])
def test_adapters_have_a_rate_of_their_own_whatever_they_start_from(start):
    whole, adapters = (XTTSConfig(training={"init_from": start, "lora_rank": rank}) for rank in (0, 16))
    assert whole.training.learning_rate != adapters.training.learning_rate == 3e-4
    # All else is as it is for the whole model.
    assert adapters.replace(training={"lora_rank": 0}) == whole
    given = XTTSConfig(training={"init_from": start, "lora_rank": 16, "learning_rate": 1e-3})
    assert given.training.learning_rate == 1e-3


def test_fine_tuning_follows_the_reference_recipe():
    config = XTTSConfig(training={"init_from": "model.pth"})
    assert (config.data.batch_size, config.training.gradient_accumulation_steps) == (3, 84)
    assert config.training.learning_rate == 5e-6


def test_the_voice_of_the_package_is_fine_tuned_at_a_rate_that_was_found_for_it():
    config = XTTSConfig(training={"init_from": "base"})
    assert (config.training.learning_rate, config.training.warmup_steps, config.data.batch_size) == (2e-4, 20, 16)
    assert config.training.gradient_accumulation_steps == 1


@pytest.mark.parametrize(
    ("sections", "source"),
    [
        ({}, "shared"),
        ({"training": {"init_from": "base"}}, "shared"),
        ({"training": {"init_from": "model"}}, "clip"),
        ({"training": {"stage": "decoder"}}, "speaker"),
        ({"data": {"augment_frame_masks": 1}}, "speaker"),
        ({"data": {"augment_gain_db": 3.0}, "training": {"init_from": "model"}}, "clip"),
    ],
)
def test_prompts_are_shared_from_nothing_and_the_published_recipe_stays_as_it_is(sections, source):
    assert XTTSConfig(**sections).data.prompt_from == source


def test_what_changes_every_time_is_not_shared():
    with pytest.raises(ConfigError, match=r"data\.prompt_from.*shared.*data\.augment_noise_db.*--prompt-from speaker"):
        XTTSConfig(data={"prompt_from": "shared", "augment_noise_db": -60.0})


@pytest.mark.parametrize(("batch", "depth"), [(8, 8), (16, 4), (32, 2), (64, 2), (1, 8)])
def test_prefetch_auto_follows_the_batch_size(batch, depth):
    assert DataConfig(batch_size=batch).prefetch_depth == depth


@pytest.mark.parametrize(("value", "cache"), [(True, "auto"), (False, "off"), ("yes", "auto"), ("no", "off")])
def test_enable_caching_is_the_old_word_for_cache(value, cache):
    data = DataConfig(enable_caching=value)
    assert (data.cache, data.enable_caching) == (cache, cache != "off")
    assert DataConfig(enable_caching=True, cache="disk").cache == "disk"
    with pytest.raises(ConfigError, match=r"enable_caching is true.*cache is 'off'"):
        DataConfig(enable_caching=True, cache="off")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data": {"batch_size": 0}}, "data.batch_size must be at least 1, but is 0"),
        ({"data": {"batch_size": "many"}}, "data.batch_size must be a whole number, but is 'many'"),
        ({"data": {"batch_size": True}}, "data.batch_size must be a whole number, but is True"),
        ({"data": {"batch_size": 2.5}}, "data.batch_size must be a whole number, but is 2.5"),
        ({"data": {"bach_size": 4}}, 'data.bach_size is not a setting. Did you mean "data.batch_size"?'),
        ({"dta": {}}, 'dta is not a setting. Did you mean "data"?'),
        ({"training": {"batch_size": 4}}, 'training.batch_size is not a setting. Did you mean "data.batch_size"?'),
        ({"batch_size": 4}, 'batch_size is not a setting. Did you mean "data.batch_size"?'),
        ({"data": {"zzzz": 4}}, '"data" has: train_data, val_data'),
        ({"data": {"batch_size": "9" * 5000}}, "data.batch_size must be a whole number"),
        ({"data": {"data_gpu": 1, "model_gpu": 1}, "training": {"mode": "dual"}}, "training.mode is dual, but"),
        ({"data": 3}, "data must be a group of settings, but is 3"),
        ({"data": {"cache": "ram"}}, 'data.cache must be "off", "memory", "disk" or "auto", but is \'ram\''),
        ({"data": {"num_workers": -1}}, 'data.num_workers must be "auto" or a whole number from 0 to 1024, but is -1'),
        ({"data": {"language": "fra"}}, "Did you mean \"fr\"?"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate must be a finite number, but is nan"),
        ({"training": {"learning_rate": 0}}, "training.learning_rate must be above 0"),
        ({"training": {"mode": "duel"}}, 'must be "auto", "single", "dual", "isolated"'),
        ({"training": {"checkpoint_dir": ""}}, "training.checkpoint_dir must not be empty"),
        ({"model": {"gpt_heads": 5}}, "model.gpt_heads must divide gpt_width (768), but is 5"),
        ({"model": {"decoder_width": 100}}, "model.decoder_width must be a multiple of 16"),
        ({"model": {"audio_codes": 32768}}, "model.audio_codes must be at most 32767, but is 32768"),
        ({"model": {"size": "huge"}}, 'model.size must be "tiny", "small", "base" or "big", but is \'huge\''),
        ({"data": {"data_gpu": 1}}, "--data-gpu and --model-gpu belong together"),
        ({"data": {"model_gpu": 0}}, "--data-gpu and --model-gpu belong together"),
        ({"data": {"data_gpu": 0, "model_gpu": 1}, "training": {"mode": "single"}}, "training.mode is single, but"),
        ({"data": {"enable_memory_isolation": True}, "training": {"mode": "dual"}}, "which is the isolated mode"),
        ({"data": {"enable_xla": True, "pad_to_fixed_length": False}}, "XLA would compile the step anew"),
        ({"training": {"stage": "codec", "init_from": "base"}}, "training.init_from is base, but training.stage is codec"),
    ],
)  # fmt: skip
def test_an_error_says_what_must_be_and_what_is(values, words):
    with pytest.raises(ConfigError) as caught:
        XTTSConfig(**values)
    assert words in str(caught.value)


def test_every_problem_is_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        XTTSConfig(data={"batch_size": 0, "num_workers": "x"}, training={"seed": -1})
    assert [key for key, _ in caught.value.problems] == ["data.batch_size", "data.num_workers", "training.seed"]


@pytest.mark.parametrize(
    ("name", "total", "shares"),
    [
        ("NVIDIA GeForce RTX 3090", 24576, (8192, 14336)),
        ("some card", 16 * 1024, (6144, 12288)),
        ("GTX 1650", 4096, None),
    ],
)
def test_memory_shares_by_card(name, total, shares):
    assert find_card_preset(name, total) == shares


@pytest.mark.parametrize("batch", [8, 8.0, "8", " 8", "8.0"])
def test_the_fine_tuning_preset_reads_a_batch_size_as_validation_does(batch):
    config = XTTSConfig(training={"init_from": "m"}, data={"batch_size": batch})
    assert config.training.gradient_accumulation_steps == 32


def test_a_decoder_is_trained_as_its_authors_do_even_for_a_model_that_is_given():
    config = XTTSConfig(training={"stage": "decoder", "init_from": "model"})
    assert (config.training.learning_rate, config.training.clip_norm) == (2e-4, 1000.0)
    assert config.training.gradient_accumulation_steps == 1
    assert config.data.batch_size == 8
    assert XTTSConfig(training={"stage": "decoder", "learning_rate": 1e-3}).training.learning_rate == 1e-3


def test_a_list_of_different_gpus_keeps_its_order_and_what_is_none_is_refused():
    assert [parse_gpu_ids(text) for text in ("0", "1,0", " 2 , 10")] == [[0], [1, 0], [2, 10]]
    for text in ("", "0,", "x", "0,0", "0,00", "-1,0", "0;1", "\u0661"):
        with pytest.raises(ValueError, match="must be a list of different ids"):
            parse_gpu_ids(text)
