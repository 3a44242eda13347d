"""Write the reference pages from the code: `python tools/write_reference.py` after a flag or a setting has changed.

A test compares the pages with what this would write.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.cli.main import COMMANDS, make_parser
from myxtts.config.config import SECTIONS
from myxtts.config.presets import MODEL_SIZES, START_BATCHES, START_LEARNING_RATES
from myxtts.config.settings import GIVEN, Flag, list_flags, spell_value
from myxtts.config.sources import CollectValue

DOCS = Path(__file__).resolve().parents[1] / "docs"
LEFT_TO_RIGHT = "\N{LEFT-TO-RIGHT MARK}"


@dataclass(frozen=True)
class Words:
    """What the page says in one language, beside what comes from the code."""

    title: str
    links: str
    opening: str
    settings: str
    setting_columns: tuple[str, ...]
    sizes: str
    size_columns: tuple[str, ...]
    commands: str
    for_every_command: str
    flag_columns: tuple[str, ...]
    all_run_flags: str
    variables: str
    variable_columns: tuple[str, ...]
    variable_rows: Mapping[str, str]
    exits: str
    exit_columns: tuple[str, ...]
    exit_rows: Mapping[str, str]


ENGLISH = Words(
    title="Reference: every flag, setting and command",
    links="[فارسی](../fa/reference.md) · [README](../../README.md) · [Training](training.md) · [Troubleshooting](troubleshooting.md)",
    opening="This page is written from the code by `python tools/write_reference.py`; a test fails when it is behind. "
    "What a flag means is what its `--help` says.",
    settings="Settings",
    setting_columns=("flag of `myxtts train`", "YAML key", "default", "meaning"),
    sizes="Sizes",
    size_columns=(
        "size",
        "layers",
        "width",
        "heads",
        "first batch to try: small, medium, large card",
        "learning rate from nothing",
    ),
    commands="Commands",
    for_every_command="Every command and tool takes `--rehearsal`: the same work on logical CPU devices, also where there are GPUs. "
    "Where no device is used, it changes nothing.",
    flag_columns=("flag", "meaning"),
    all_run_flags="It takes the flags of a run as well, `--config` and `--set` among them.",
    variables="Environment variables",
    variable_columns=("variable", "meaning"),
    variable_rows={
        "MYXTTS_REHEARSAL": "`1`: as `--rehearsal`, for every command",
        "MYXTTS_TRAINER": "set by `--trainers` for each of them: who all are, and the command that resumes the run",
        "MYXTTS_SERVE_TOKEN": "the token that `myxtts serve` asks for, instead of a flag others can read in the process list",
        "MYXTTS_STUDIO_TOKEN": "the token in the address of `myxtts studio`, which else is a new one at every start",
        "MYXTTS_LEXICON": "as `--lexicon`, for every command that has it",
    },
    exits="Exit codes",
    exit_columns=("code", "meaning"),
    exit_rows={
        "0": "done; a run of one process that saved after SIGTERM counts as done, and so does a run that was finished before",
        "1": "the machine or the run failed, or a check found something serious",
        "2": "what was asked for cannot be done as it was written",
        "75": "a worker of a cluster was asked to stop (SIGTERM), or another one was: the run is saved, not finished; start all of them again",
        "130": "Ctrl-C",
        "143": "`synthesize` was asked to stop (SIGTERM) while it wrote: nothing half-written stays",
    },
)

PERSIAN = Words(
    title="مرجع: همهٔ پرچم‌ها، تنظیم‌ها و فرمان‌ها",
    links="[English](../en/reference.md) · [README](../../README.fa.md) · [آموزش](training.md) · [رفع اشکال](troubleshooting.md)",
    opening="این صفحه را `python tools/write_reference.py` از روی کد می‌سازد و اگر از کد عقب بماند یک آزمون می‌شکند. شرح هر پرچم همان "
    "متن انگلیسیِ ‎`--help`‎ است.",
    settings="تنظیم‌ها",
    setting_columns=("پرچم ‎`myxtts train`‎", "کلید YAML", "مقدار پیش‌فرض", "معنا"),
    sizes="اندازه‌ها",
    size_columns=("اندازه", "لایه", "پهنا", "سر", "نخستین دسته برای کارت کوچک، متوسط، بزرگ", "نرخ یادگیری از صفر"),
    commands="فرمان‌ها",
    for_every_command="همهٔ فرمان‌ها و ابزارها ‎`--rehearsal`‎ را می‌پذیرند: همان کار روی دستگاه‌های منطقیِ CPU، حتی اگر GPU باشد. جایی که دستگاهی "
    "به کار نمی‌رود، چیزی عوض نمی‌شود.",
    flag_columns=("پرچم", "معنا"),
    all_run_flags="پرچم‌های اجرای آموزش را هم می‌پذیرد، از جمله ‎`--config`‎ و ‎`--set`‎.",
    variables="متغیرهای محیطی",
    variable_columns=("متغیر", "معنا"),
    variable_rows={
        "MYXTTS_REHEARSAL": "مقدار `1`: مانند ‎`--rehearsal`‎ برای همهٔ فرمان‌ها",
        "MYXTTS_TRAINER": "‎`--trainers`‎ برای هر کدام می‌گذارد: همه چه کسانی‌اند و فرمانی که اجرا را ادامه می‌دهد",
        "MYXTTS_SERVE_TOKEN": "رمزی که ‎`myxtts serve`‎ می‌خواهد، به‌جای پرچمی که دیگران در فهرست پردازه‌ها می‌بینند",
        "MYXTTS_STUDIO_TOKEN": "رمزِ نشانیِ ‎`myxtts studio`‎، که بدون آن در هر آغاز تازه است",
        "MYXTTS_LEXICON": "مانند ‎`--lexicon`‎ برای هر فرمانی که آن را دارد",
    },
    exits="کدهای خروج",
    exit_columns=("کد", "معنا"),
    exit_rows={
        "0": "انجام شد؛ اجرای تک‌پردازه‌ای که پس از SIGTERM ذخیره کرد و ایستاد و اجرایی که از پیش تمام بود هم همین است",
        "1": "دستگاه یا اجرا شکست خورد، یا بررسی‌ای چیز مهمی یافت",
        "2": "خواسته به شکلی که نوشته شده شدنی نیست",
        "75": "از کارگری از خوشه، یا از کارگری دیگر، خواسته شد بایستد (SIGTERM): اجرا ذخیره شده ولی تمام نیست؛ همه را دوباره اجرا کنید",
        "130": "Ctrl-C",
        "143": "از `synthesize` هنگام نوشتن خواسته شد بایستد (SIGTERM): فایل نیمه‌کاره‌ای نمی‌ماند",
    },
)

PAGES: Mapping[str, Words] = {"en": ENGLISH, "fa": PERSIAN}


def write_page(words: Words) -> str:
    """The whole page in one language."""
    is_persian = words is PERSIAN
    parts = [f"# {words.title}", words.links, words.opening]
    for section, cls in SECTIONS.items():
        parts += [f"## {words.settings}: {section}", _draw_table(words.setting_columns, _list_settings(section, cls))]
    parts += [f"## {words.sizes}", _draw_table(words.size_columns, _list_sizes())]
    parts += [f"## {words.commands}", words.for_every_command, *_describe_commands(words)]
    parts += [f"## {words.variables}", _draw_table(words.variable_columns, _list_pairs(words.variable_rows))]
    parts += [f"## {words.exits}", _draw_table(words.exit_columns, _list_pairs(words.exit_rows))]
    if is_persian:
        parts = ['<div dir="rtl">', *map(_keep_left_to_right, parts), "</div>"]
    return "\n\n".join(parts) + "\n"


def _keep_left_to_right(part: str) -> str:
    """The part with marks around code and English: right-to-left text would move their first and last signs to the other end."""
    if part.startswith("#"):
        return part
    part = re.sub(rf"{LEFT_TO_RIGHT}*(`[^`\n]+`){LEFT_TO_RIGHT}*", rf"{LEFT_TO_RIGHT}\1{LEFT_TO_RIGHT}", part)
    return re.sub(
        r"(?<=\| )[A-Za-z][^\u0600-\u06ff\n]*?(?= \|(?:$| ))",
        rf"{LEFT_TO_RIGHT}\g<0>{LEFT_TO_RIGHT}",
        part,
        flags=re.MULTILINE,
    )


def _list_settings(section: str, cls: Any) -> Iterator[tuple[str, ...]]:
    for name, field in cls.model_fields.items():
        flags = ", ".join(f"`{_spell(flag, spell_value(field, flag))}`" for flag in list_flags(field))
        help = field.description or ""
        yield flags or f"`--set {section}.{name}=`", f"`{section}.{name}`", _spell_default(field.default), help


def _spell(flag: Flag, value: str) -> str:
    if flag.value is not GIVEN:
        return flag.name
    return f"{flag.name} {value}" if flag.bare is GIVEN else f"{flag.name} [{value}]"


def _spell_default(value: Any) -> str:
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _list_sizes() -> Iterator[tuple[str, ...]]:
    for size, shape in MODEL_SIZES.items():
        batches = ", ".join(map(str, START_BATCHES[size]))
        layers, width, heads = (str(shape[f"gpt_{name}"]) for name in ("layers", "width", "heads"))
        yield f"`{size}`", layers, width, heads, batches, f"{START_LEARNING_RATES[size]:g}"


def _describe_commands(words: Words) -> Iterator[str]:
    for name, help in COMMANDS.items():
        yield f"### `myxtts {name}`"
        yield help
        yield from _describe_flags(name, words)


def _describe_flags(command: str, words: Words) -> Iterator[str]:
    parser = make_parser(command, command)
    takes_settings = parser.get_default("given") is not None and command != "train"
    rows = list(_list_own_flags(parser, left_out=("--config", "--set") if takes_settings else ()))
    if rows:
        yield _draw_table(words.flag_columns, rows)
    if takes_settings:
        yield words.all_run_flags


def _list_own_flags(parser: argparse.ArgumentParser, left_out: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The flags that are neither settings of a run nor taken by every command."""
    for action in parser._actions:
        is_told = isinstance(action, CollectValue) or action.dest in ("help", "rehearsal")
        if is_told or action.help == argparse.SUPPRESS or set(left_out) & set(action.option_strings):
            continue
        name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        takes_value = action.option_strings and action.nargs != 0
        value = f" {_spell_metavar(action)}" if takes_value else ""
        yield f"`{name}{value}`", (action.help or "").replace("%%", "%")


def _spell_metavar(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _list_pairs(rows: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for name, meaning in rows.items():
        yield f"`{name}`", meaning


def _draw_table(columns: tuple[str, ...], rows: Any) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main() -> None:
    for language, words in PAGES.items():
        (DOCS / language / "reference.md").write_text(write_page(words), encoding="utf-8")


if __name__ == "__main__":
    main()
