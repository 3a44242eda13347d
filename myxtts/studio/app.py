"""The pages of the studio and what they ask for: routes, from a request to an answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import ipaddress
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from myxtts.config.presets import MODEL_SIZES
from myxtts.errors import MyXTTSError
from myxtts.files import DiskFullError, FileError, parse_json, read_json, read_text
from myxtts.monitoring.metrics import FILE_NAME, Metrics
from myxtts.monitoring.summary import summarise_run
from myxtts.recordings.transcribing import DEFAULT_RECOGNISER
from myxtts.reports.pages import CODEC_FOLDER, draw_losses, open_templates
from myxtts.serving.app import Gate, check_media_type, find_client, read_body
from myxtts.serving.limits import Places, RateLimiter, ServingLimits
from myxtts.serving.request import INTERNAL, ApiError, answer_error
from myxtts.serving.server import LOOPBACK_NAMES, make_server, take_signals
from myxtts.studio.corpora import VIEWS, Corpora, draw_wave
from myxtts.studio.door import (
    DISK_FULL,
    FORM_BYTES,
    FORM_S,
    NOT_FOUND,
    Door,
    explain_disk,
    read_fields,
    receive_file,
    refuse_unknown,
)
from myxtts.studio.jobs import Jobs, ask_command
from myxtts.studio.speaking import Speaking
from myxtts.studio.trainings import (
    Heard,
    Trainings,
    choose_starts,
    estimate_memory,
    list_cards,
    list_heard,
    read_card,
    read_run,
    read_settings,
    spell_command,
    spell_words,
    summarise_progress,
)
from myxtts.studio.workspace import LONGEST_RECORDING_S, MOST_SCRIPT, Recording, Workspace
from myxtts.text.sentences import split_sentences

PAGES = ("recordings", "corpora", "training", "voices", "speak")
LANGUAGES = ("en", "fa")
"""Of the pages."""
SPOKEN = {
    "en": "English", "es": "Español", "fr": "Français", "de": "Deutsch", "it": "Italiano", "pt": "Português", "pl": "Polski",
    "tr": "Türkçe", "ru": "Русский", "nl": "Nederlands", "cs": "Čeština", "ar": "العربية", "zh-cn": "中文", "hu": "Magyar",
    "ko": "한국어", "ja": "日本語", "hi": "हिन्दी", "fa": "فارسی",
}  # fmt: skip
"""What can be spoken in a corpus, as its speakers call it."""
PERSIAN_LETTER = re.compile("[\u0600-\u06ff]")
RATE_LIMIT = 100_000
"""Requests a minute that nobody's own page comes near to."""
WRONG_TOKENS = 30
"""A minute, of one client."""
UPLOADS = 4
"""Recordings that come at a time, and take their place on the disk."""

LIVE_S = 1.0
"""Between two looks at a run."""


@functools.cache
def read_words() -> dict[str, tuple[str, ...]]:
    """What the pages say: a key, then the words of each language."""
    lines = read_text(Path(__file__).with_name("words.tsv")).splitlines()
    return {key: tuple(words) for key, *words in (line.split("\t") for line in lines if line)}


def choose_language(request: Request) -> str:
    """That of whoever asks."""
    asked = request.query_params.get("lang", request.cookies.get("lang", ""))
    preferred = "fa" if request.headers.get("accept-language", "").lower().startswith("fa") else "en"
    return asked if asked in LANGUAGES else preferred


def translate_error(message: str, language: str) -> str:
    """What the studio says itself, in a language; what its commands say stays as it is."""
    for key, (english, *others) in read_words().items():
        if key.startswith("error.") and language != "en":
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(english))
            if found := re.fullmatch(pattern, message, re.DOTALL):
                return others[LANGUAGES.index(language) - 1].format_map(found.groupdict())
    return message


class Studio:
    """The routes, and what they share."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        most_upload_bytes: int = 1 << 31,
        recogniser: str | None = None,
        rehearsal: bool = False,
    ):
        self.workspace, self.jobs = workspace, Jobs(workspace.jobs)
        self.trainings = Trainings(workspace, self.jobs)
        self.rehearsal, self.flags = rehearsal, ["--rehearsal"] if rehearsal else []
        self.speaking = Speaking(workspace.jobs / "speak.log", self.flags)
        self.corpora = Corpora(workspace, self.jobs)
        self._most_upload_bytes, self._recogniser = most_upload_bytes, recogniser
        self._uploads = Places(UPLOADS, "recordings")

    def render(self, request: Request, template: str, **facts: Any) -> HTMLResponse:
        """A page or a part of one, in the language of whoever asks."""
        language = choose_language(request)
        words, at = read_words(), LANGUAGES.index(language)

        def say(key: str, **values: Any) -> str:
            return words[key][at].format_map(values) if values else words[key][at]

        scripted = {key.removeprefix("js."): texts[at] for key, texts in words.items() if key.startswith("js.")}
        text = open_templates("myxtts.studio").get_template(template).render(
            say=say, language=language, scripted=scripted, pages=PAGES, path=request.url.path, **facts
        )  # fmt: skip
        response = HTMLResponse(text)
        if request.query_params.get("lang") == language:
            response.set_cookie("lang", language, max_age=10**8, samesite="strict")
        return response

    async def show_style(self, request: Request) -> Response:
        """GET /studio.css: our own, and that of charts and players in reports."""
        text = open_templates("myxtts.studio").get_template("studio.css").render()
        return Response(text, media_type="text/css")

    async def show_recordings(self, request: Request) -> Response:
        """GET /recordings."""
        bounds = {"most_bytes": self._most_upload_bytes, "most_hours": f"{LONGEST_RECORDING_S / 3600:g}"}
        return self.render(request, "recordings.html", recordings=await self._list_recordings(), **bounds)

    async def split_script(self, request: Request) -> Response:
        """POST /sentences: those of a text that is to be read aloud, as JSON. A line never goes on in the next one."""
        text = (await read_fields(request)).get("text", "")
        language = "fa" if PERSIAN_LETTER.search(text) else "en"
        return JSONResponse([each for line in text.splitlines() for each in split_sentences(line, language, join=False)])  # fmt: skip

    async def _list_recordings(self) -> list[Recording]:
        """A file is read for each."""
        return await asyncio.to_thread(self.workspace.list_recordings)

    async def add_recording(self, request: Request) -> Response:
        """POST /recordings?title=...: a sound file, as the body."""
        check_media_type(request, "application/octet-stream")
        title, text = (request.query_params.get(name, "") for name in ("title", "text"))
        if len(text) > MOST_SCRIPT:
            raise ApiError(f"The text of a recording may have {MOST_SCRIPT} characters at most, but has {len(text)}. Record it in parts.", param="text")  # fmt: skip
        incoming = self.workspace.name_incoming()
        with self._uploads.take(find_client(request.scope)):
            await receive_file(request, incoming, self._most_upload_bytes)
            try:
                recording = await asyncio.to_thread(self.workspace.keep_recording, incoming, title, text)
            finally:
                incoming.unlink(missing_ok=True)
        response = self.render(request, "recording.html", recording=recording)
        response.status_code = 201
        return response

    async def remove_recording(self, request: Request) -> Response:
        """DELETE /recordings/ID."""
        self.workspace.remove_recording(request.path_params["id"])
        return HTMLResponse("")

    async def play_recording(self, request: Request) -> Response:
        """GET /recordings/ID/sound."""
        return FileResponse(self.workspace.find_recording(request.path_params["id"])[1])

    async def show_corpora(self, request: Request) -> Response:
        """GET /corpora: all of them, and a form for another."""
        corpora = await asyncio.to_thread(self.corpora.list_all)
        recordings = list(reversed(await self._list_recordings()))
        spoken = SPOKEN if self._recogniser else {"en": SPOKEN["en"]}
        return self.render(request, "corpora.html", corpora=corpora, recordings=recordings, spoken=spoken)

    async def list_corpora(self, request: Request) -> Response:
        """GET /corpora/list: how all of them are now."""
        return self.render(request, "corpora_list.html", corpora=await asyncio.to_thread(self.corpora.list_all))

    async def make_corpus(self, request: Request) -> Response:
        """POST /corpora: cuts and transcribes recordings, by `myxtts corpus`."""
        fields = await read_fields(request)
        recordings = [self.workspace.find_recording(id)[0] for id in fields.getlist("recording")]
        language = fields.get("language", "en")
        if language not in SPOKEN:
            raise ApiError(f"language must be one of {', '.join(SPOKEN)}, but is {language[:40]!r}.", param="language")
        flags = [] if self._recogniser is None else ["--recogniser-command", self._recogniser]
        hears_all = fields.get("heard", "") == "yes"
        self.corpora.make(fields.get("name", ""), recordings, language, flags, hears_all=hears_all)
        return await self.list_corpora(request)

    async def change_corpus(self, request: Request) -> Response:
        """POST /corpora/NAME/stop or /go-on: of the making of it."""
        name, change = self._find_corpus(request), request.path_params["change"]
        if change == "stop":
            self.jobs.stop(f"corpus-{name}")
        elif change == "go-on":
            self.corpora.go_on(name)
        else:
            raise refuse_unknown("change")
        return await self.list_corpora(request)

    async def show_corpus(self, request: Request) -> Response:
        """GET /corpora/NAME: its clips, to be listened to and mended."""
        name = self._find_corpus(request)
        view, facts = await self._list_clips(request, name)
        corpus = await asyncio.to_thread(self.corpora.describe, name)
        if corpus.status != "ready":
            return RedirectResponse("/corpora")
        return self.render(request, "corpus.html", corpus=corpus, views=VIEWS, view=view, **facts)

    async def show_clips(self, request: Request) -> Response:
        """GET /corpora/NAME/clips?view=...&first=N: some more of them."""
        view, facts = await self._list_clips(request, self._find_corpus(request))
        return self.render(request, "clips.html", view=view, **facts)

    async def _list_clips(self, request: Request, name: str) -> tuple[str, dict[str, Any]]:
        view, given = request.query_params.get("view", "all"), request.query_params.get("first", "0")
        first = int(given) if given.isascii() and given.isdecimal() and len(given) < 9 else 0
        clips, total = await asyncio.to_thread(self.corpora.list_clips, name, view, first)
        more = first + len(clips)
        return view, {"name": name, "clips": clips, "more": more if more < total else 0}

    async def change_clip(self, request: Request) -> Response:
        """POST /corpora/NAME/clips/ID: another text, or kept=yes or no."""
        name, fields = self._find_corpus(request), await read_fields(request)
        is_kept = {"yes": True, "no": False}.get(fields.get("kept", ""))
        change = functools.partial(self.corpora.change_clip, text=fields.get("text"), is_kept=is_kept)
        clip = await asyncio.to_thread(change, name, request.path_params["clip"])
        corpus = await asyncio.to_thread(self.corpora.describe, name)
        return self.render(request, "changed.html", name=name, clip=clip, corpus=corpus)

    async def play_clip(self, request: Request) -> Response:
        """GET /corpora/NAME/clips/ID/sound."""
        return FileResponse(await self._find_sound(request))

    async def draw_clip(self, request: Request) -> Response:
        """GET /corpora/NAME/clips/ID/wave.svg."""
        picture = await asyncio.to_thread(draw_wave, await self._find_sound(request))
        return Response(picture, media_type="image/svg+xml", headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "private, max-age=3600"})  # fmt: skip

    async def _find_sound(self, request: Request) -> Path:
        name, id = self._find_corpus(request), request.path_params["clip"]
        return (await asyncio.to_thread(self.corpora.find_clip, name, id))[1]

    def _find_corpus(self, request: Request) -> str:
        return self.workspace.find(self.workspace.corpora, request.path_params["name"], "corpus").name

    async def show_training(self, request: Request) -> Response:
        """GET /training: the runs, and a form for another."""
        workspace = self.workspace
        runs = await asyncio.to_thread(self.trainings.list_all)
        return self.render(
            request, "training.html", runs=runs, sizes=list(MODEL_SIZES), cards=list_cards(),
            starts=choose_starts(workspace.list_models()), corpora=await asyncio.to_thread(self.corpora.list_usable),
            chosen=request.query_params.get("corpus", ""),
        )  # fmt: skip

    async def show_plan(self, request: Request) -> Response:
        """POST /training/plan: which device would do which job, as `train --print-plan` says it."""
        settings, card = await self._read_settings(request)
        words = spell_words(settings)
        code, text = await ask_command([*words, "--print-plan"], card)
        if code:
            raise ApiError(text.rpartition("error: ")[2])
        return self.render(request, "plan.html", plan=text, command=spell_command(words, card))

    async def show_bill(self, request: Request) -> Response:
        """POST /training/bill: what each device must hold."""
        settings, _ = await self._read_settings(request)
        return HTMLResponse(Markup("<pre>{}</pre>").format(await asyncio.to_thread(estimate_memory, settings)))

    async def start_run(self, request: Request) -> Response:
        """POST /training: begins a run, and leads to its page."""
        settings, card = await self._read_settings(request)
        # A model that speaks would take of the memory that the training was planned with.
        await self.speaking.stop()
        return HTMLResponse("", 201, {"HX-Redirect": f"/runs/{self.trainings.start(settings, card)}"})

    async def _read_settings(self, request: Request) -> tuple[dict[str, Any], str]:
        """The settings of a form, and the one card it asks for, if it does."""
        fields = await read_fields(request)
        read = functools.partial(read_settings, self.workspace, self.corpora, rehearsal=self.rehearsal)
        return await asyncio.to_thread(read, fields), read_card(fields.get("device", ""))

    async def show_run(self, request: Request) -> Response:
        """GET /runs/NAME: a run, live."""
        name = self._find_run(request).name
        run = await asyncio.to_thread(self.trainings.describe, name)
        return self.render(request, "run.html", run=run, command=self.trainings.spell_resume(name))

    async def change_run(self, request: Request) -> Response:
        """POST /runs/NAME/stop or /resume."""
        name, change = self._find_run(request).name, request.path_params["change"]
        if change == "resume":
            await self.speaking.stop()
            self.trainings.resume(name)
        elif change == "stop":
            self.trainings.stop(name)
        else:
            raise refuse_unknown("change")
        return self.render(request, "state.html", run=self.trainings.describe(name))

    async def watch_run(self, request: Request) -> Response:
        """GET /runs/NAME/events: parts of the page, each sent again when it has changed."""
        folder, sent = self._find_run(request), dict[str, str]()
        metrics, seen = None, None

        async def send() -> AsyncIterator[str]:
            nonlocal metrics, seen
            while True:
                began_s = time.monotonic()
                files = [place / FILE_NAME for place in (folder, folder / CODEC_FOLDER)]
                now = [(each.stat().st_mtime_ns, each.stat().st_size) for each in files if each.exists()]
                if now != seen:
                    metrics, seen = await asyncio.to_thread(read_run, folder), now
                for part, text in (await asyncio.to_thread(self._draw_run, request, folder, metrics)).items():
                    if sent.get(part) != text:
                        sent[part] = text
                        yield f"event: {part}\n" + "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
                # Also what keeps a client known that has gone.
                yield ": \n\n"
                # A long file takes long to read, and is not read all the time.
                await asyncio.sleep(max(LIVE_S, 10 * (time.monotonic() - began_s)))

        return StreamingResponse(send(), media_type="text/event-stream")

    def _draw_run(self, request: Request, folder: Path, metrics: Metrics | None) -> dict[str, str]:
        run = self.trainings.describe(folder.name)
        facts: dict[str, Any] = {"run": run, "metrics": metrics}
        if metrics is not None:
            summary = summarise_run(metrics.rows)
            facts |= {"summary": summary, "losses": draw_losses(metrics.rows), **summarise_progress(metrics)}
        heard = self._hear(folder, metrics)
        parts = {"state": facts, "figures": facts, "samples": {"name": folder.name, "heard": heard}}
        return {part: bytes(self.render(request, f"{part}.html", **own).body).decode() for part, own in parts.items()}

    async def play_sample(self, request: Request) -> Response:
        """GET /runs/NAME/samples/FILE: what was heard at a validation, or `recording`, the clip it was made after."""
        folder, file = self._find_run(request), request.path_params["file"]
        heard = self._hear(folder)
        sounds = {path.name: path for each in heard.samples for path in (each.led, each.free) if path is not None}
        if heard.recording is not None:
            sounds["recording"] = heard.recording
        if file not in sounds:
            raise refuse_unknown("sample")
        return FileResponse(self.workspace.keep_inside(sounds[file], "sample"))

    def _hear(self, folder: Path, metrics: Metrics | None = None) -> Heard:
        """What is to be heard of a run, without a recording that lies elsewhere."""
        heard = list_heard(folder, metrics)
        is_inside = heard.recording is not None and heard.recording.resolve().is_relative_to(self.workspace.root)
        return heard if is_inside else replace(heard, recording=None)

    def _find_run(self, request: Request) -> Path:
        return self.workspace.find(self.workspace.runs, request.path_params["name"], "run")

    async def show_voices(self, request: Request) -> Response:
        """GET /voices: checkpoints by ear, side by side, and what was measured."""
        workspace = self.workspace
        folders = [workspace.runs / name for name in workspace.list_names(workspace.runs)]
        runs = [(folder.name, self._hear(folder, await asyncio.to_thread(read_run, folder))) for folder in folders]
        return self.render(
            request, "voices.html", runs=[each for each in runs if each[1].samples], evaluations=self._list_evaluations(),
            models=workspace.list_models(), corpora=await asyncio.to_thread(self.corpora.list_usable),
        )  # fmt: skip

    async def start_evaluation(self, request: Request) -> Response:
        """POST /evaluations: measures a model, by `myxtts evaluate`."""
        workspace, fields = self.workspace, await read_fields(request)
        model = workspace.find_model(fields.get("model", ""))
        name = f"{re.sub('[^a-z0-9]+', '-', fields['model'])[-24:].strip('-')}-{secrets.token_hex(3)}"
        words = ["evaluate", "--checkpoint", model, "--out", str(workspace.evaluations / name), "--limit", "5", *self.flags]  # fmt: skip
        if corpus := fields.get("corpus", ""):
            words += ["--data", str(await asyncio.to_thread(self.corpora.find_usable, corpus))]
            if self._recogniser is not None:
                words += ["--recogniser-command", self._recogniser]
            elif importlib.util.find_spec("moonshine_voice") and self.corpora.read_language(corpus) in (None, "en"):
                words += ["--recogniser", DEFAULT_RECOGNISER]
        (workspace.evaluations / name).mkdir()
        self.jobs.start(f"evaluate-{name}", words)
        return self.render(request, "evaluations.html", evaluations=self._list_evaluations())

    async def show_evaluations(self, request: Request) -> Response:
        """GET /evaluations: the table of them, as it is now."""
        return self.render(request, "evaluations.html", evaluations=self._list_evaluations())

    def _list_evaluations(self) -> list[dict[str, Any]]:
        found = []
        for name in self.workspace.list_names(self.workspace.evaluations):
            job, figures = f"evaluate-{name}", None
            with contextlib.suppress(FileError):
                figures = read_json(self.workspace.evaluations / name / "evaluation.json", dict)
            record, is_running = self.jobs.find(job), self.jobs.is_running(job)
            words = record.words if record else ()
            model = words[words.index("--checkpoint") + 1] if "--checkpoint" in words else name
            short = model.removeprefix(f"{self.workspace.root}/")
            problem = "" if figures or is_running else self.jobs.read_log(job, 600)
            found.append({"name": name, "model": short, "figures": figures, "is_running": is_running, "problem": problem})  # fmt: skip
        return found

    async def show_speak(self, request: Request) -> Response:
        """GET /speak."""
        models, recordings = self.workspace.list_models(), await self._list_recordings()
        chosen = request.query_params.get("model", "")
        return self.render(request, "speak.html", models=models, recordings=recordings, chosen=chosen)

    async def list_voices(self, request: Request) -> Response:
        """GET /speak/voices?model=...: what a model can do. Loads it."""
        return await self.speaking.list_voices(self.workspace.find_model(request.query_params.get("model", "")))

    async def speak(self, request: Request) -> Response:
        """POST /speak: JSON as for `POST /v1/audio/speech`, with a model and perhaps a reference, a recording, instead of a voice."""
        check_media_type(request, "application/json")
        try:
            fields = parse_json(await read_body(request, FORM_BYTES, FORM_S))
        except ValueError as error:
            raise ApiError(f"The body must be JSON, but {error}") from None
        if not isinstance(fields, dict):
            raise ApiError("The body must be a JSON object, but is not.")
        model, reference = self.workspace.find_model(str(fields.pop("model", ""))), str(fields.pop("reference", ""))
        path = self.workspace.find_recording(reference)[1] if reference else None
        return await self.speaking.speak(model, fields, path)

    def list_routes(self) -> Sequence[Route | Mount]:
        def at(path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
            return Route(path, answer, methods=[method])

        return [
            Route("/", RedirectResponse("/recordings"), methods=["GET"]),
            at("/studio.css", self.show_style),
            Mount("/static", StaticFiles(packages=[("myxtts.studio", "static")])),
            at("/recordings", self.show_recordings),
            at("/recordings", self.add_recording, "POST"),
            at("/sentences", self.split_script, "POST"),
            at("/recordings/{id}", self.remove_recording, "DELETE"),
            at("/recordings/{id}/sound", self.play_recording),
            at("/corpora", self.show_corpora),
            at("/corpora", self.make_corpus, "POST"),
            at("/corpora/list", self.list_corpora),
            at("/corpora/{name}", self.show_corpus),
            at("/corpora/{name}/{change}", self.change_corpus, "POST"),
            at("/corpora/{name}/clips", self.show_clips),
            at("/corpora/{name}/clips/{clip}", self.change_clip, "POST"),
            at("/corpora/{name}/clips/{clip}/sound", self.play_clip),
            at("/corpora/{name}/clips/{clip}/wave.svg", self.draw_clip),
            at("/training", self.show_training),
            at("/training", self.start_run, "POST"),
            at("/training/plan", self.show_plan, "POST"),
            at("/training/bill", self.show_bill, "POST"),
            at("/runs/{name}", self.show_run),
            at("/runs/{name}/events", self.watch_run),
            at("/runs/{name}/samples/{file}", self.play_sample),
            at("/runs/{name}/{change}", self.change_run, "POST"),
            at("/voices", self.show_voices),
            at("/evaluations", self.show_evaluations),
            at("/evaluations", self.start_evaluation, "POST"),
            at("/speak", self.show_speak),
            at("/speak", self.speak, "POST"),
            at("/speak/voices", self.list_voices),
        ]


def answer_failure(studio: Studio, request: Request, error: Exception) -> Response:
    """The answer that tells of an error, where it happened: to a script as JSON, to whoever opens a page as one."""
    if isinstance(error, DiskFullError):
        error = ApiError(str(error), DISK_FULL)
    elif isinstance(error, MyXTTSError):
        error = ApiError(str(error))
    elif isinstance(error, OSError):
        error = explain_disk(error)
    elif isinstance(error, HTTPException):
        error = ApiError("There is no such page.", NOT_FOUND._replace(status=error.status_code))
    elif not isinstance(error, ApiError):
        error = ApiError("The studio could not do it: a fault of MyXTTS. What it has printed says where.", INTERNAL)
    if isinstance(error, ApiError):
        error = ApiError(translate_error(str(error), choose_language(request)), error.kind, param=error.param)
    answer = answer_error(error)
    if "text/html" not in request.headers.get("accept", "") or request.headers.get("hx-request"):
        return answer
    page = studio.render(request, "failure.html", message=str(error))
    page.status_code = answer.status_code
    return page


def build_studio(studio: Studio, *, token: str, hosts: Sequence[str] | None) -> ASGIApp:
    """The application that a server runs; for hosts see `Gate`."""
    app = Starlette(
        routes=studio.list_routes(),
        exception_handlers={
            **dict.fromkeys(
                (ApiError, MyXTTSError, HTTPException, OSError, Exception), functools.partial(answer_failure, studio)
            ),
            ClientDisconnect: lambda request, error: Response(status_code=499),
        },
    )
    failures = RateLimiter(WRONG_TOKENS, "wrong tokens")
    advice = "open the address that `myxtts studio` has printed"
    return Gate(Door(app, token=token, failures=failures), token=None, hosts=hosts, failures=failures, advice=advice)


def run_studio(
    listener: socket.socket, studio: Studio, tell_ready: Callable[[], None], *, token: str, host: str
) -> None:
    """Serves until SIGINT or SIGTERM. Commands that were started go on; the model that speaks does not."""
    is_local = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
    app = build_studio(studio, token=token, hosts=(host.lower(), *LOOPBACK_NAMES) if is_local else None)
    listener.listen()
    server = make_server(app, ServingLimits(requests_per_minute=RATE_LIMIT))

    async def serve() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        # Only now a signal that somebody sends at once is taken as it should.
        tell_ready()
        try:
            await serving
        finally:
            await studio.speaking.stop()

    with take_signals():
        asyncio.run(serve())
