"use strict";
const WORDS = JSON.parse(document.body.dataset.words);
const find = id => document.getElementById(id);
const say = (key, values = {}) => WORDS[key].replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);

function tell(place, text, isBad = false) {
  if (!place) return;
  // What is said already is not read out again.
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("bad", isBad);
}

async function ask(path, options = {}) {
  let response;
  try { response = await fetch(path, options); } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(say("gone"));
  }
  if (!response.ok) throw new Error(readError(await response.text(), response.status));
  tell(find("lost"), "");
  return response;
}

function readError(body, status) {
  try { return JSON.parse(body).error.message; } catch { return status === 401 ? say("token") : `${status}`; }
}

// What went wrong is told beside what was pressed.
function findTold(element) { return element.closest("article, form, section")?.querySelector(".told") ?? find("lost"); }
const AGAIN_MS = 3000;
function tellFailure({ elt }, text) {
  tell(findTold(elt), text, true);
  // What polls asks again by itself; what loads as it comes into sight would not.
  if (elt.matches(".more")) setTimeout(() => { if (elt.isConnected) htmx.trigger(elt, "more"); }, AGAIN_MS);
}
document.addEventListener("htmx:responseError", ({ detail }) => tellFailure(detail, readError(detail.xhr.responseText, detail.xhr.status)));
document.addEventListener("htmx:sendError", ({ detail }) => tellFailure(detail, say("gone")));
document.addEventListener("htmx:afterRequest", event => { if (event.detail.successful) tell(find("lost"), ""); });
document.addEventListener("htmx:beforeRequest", event => { const told = findTold(event.detail.elt); if (told?.id !== "lost") tell(told, ""); });

// Of a keyboard with other letters, the Latin one in the same place.
function readKey({ key, code = "" }) {
  if (key.length > 1) return key;
  return (key > "~" && code.startsWith("Key") ? code.slice(3) : key).toLowerCase();
}
const hasModifier = event => event.ctrlKey || event.metaKey || event.altKey;
// These keys are a button's own.
const isPress = event => ["Enter", " "].includes(event.key) && event.target.closest?.("button, a, summary, audio");

// Recordings
function sendFile(file, title, text, onProgress) {
  return new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    request.open("POST", `/recordings?title=${encodeURIComponent(title)}&text=${encodeURIComponent(text)}`);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = event => onProgress(event.loaded / event.total);
    request.onload = () => request.status === 201 ? done(request.responseText) : fail(new Error(readError(request.responseText, request.status)));
    request.onerror = () => fail(new Error(say("gone")));
    request.send(file);
  });
}

function addRecording(html) {
  find("none")?.remove();
  find("recordings").insertAdjacentHTML("afterbegin", html);
  htmx.process(find("recordings").firstElementChild);
}

async function sendFiles(files) {
  const told = find("upload-told"), progress = find("upload-progress"), failed = [];
  for (const file of files) {
    // Who refuses it in the middle is seen as one who does not answer.
    if (file.size > Number(find("files").dataset.most)) { failed.push(say("too_large", { name: file.name, most: find("files").dataset.named })); continue; }
    progress.hidden = false;
    tell(told, say("sending", { name: file.name }));
    try { addRecording(await sendFile(file, file.name, "", share => { progress.value = share; })); }
    catch (error) { failed.push(`${file.name}: ${error.message}`); }
  }
  progress.hidden = true;
  tell(told, failed.join("\n") || say("sent"), failed.length > 0);
}

if (find("files")) {
  const files = find("files"), drop = find("drop");
  find("consent").onchange = () => { files.disabled = !find("consent").checked; };
  files.onchange = async () => { await sendFiles(files.files); files.value = ""; };
  drop.ondragover = event => { event.preventDefault(); drop.classList.add("over"); };
  drop.ondragleave = () => drop.classList.remove("over");
  drop.ondrop = event => {
    event.preventDefault();
    drop.classList.remove("over");
    if (find("consent").checked) sendFiles(event.dataTransfer.files); else tell(find("upload-told"), say("consent"), true);
  };
}

// Sentence by sentence, from a script
function encodeWav(parts, rate) {
  const length = parts.reduce((sum, part) => sum + part.length, 0), file = new DataView(new ArrayBuffer(44 + 2 * length));
  const write = (at, text) => [...text].forEach((letter, index) => file.setUint8(at + index, letter.charCodeAt(0)));
  write(0, "RIFF"); file.setUint32(4, 36 + 2 * length, true); write(8, "WAVEfmt ");
  file.setUint32(16, 16, true); file.setUint16(20, 1, true); file.setUint16(22, 1, true); file.setUint32(24, rate, true);
  file.setUint32(28, 2 * rate, true); file.setUint16(32, 2, true); file.setUint16(34, 16, true); write(36, "data"); file.setUint32(40, 2 * length, true);
  let at = 44;
  for (const part of parts) for (const value of part) { file.setInt16(at, Math.max(-1, Math.min(1, value)) * 32767, true); at += 2; }
  return new Blob([file], { type: "audio/wav" });
}

if (find("booth")) {
  const booth = find("booth"), told = find("booth-told"), record = find("booth-record"), keep = find("booth-keep"), player = find("booth-player");
  let sentences = [], at = 0, context = null, parts = null, take = null;
  const show = () => {
    take = parts = null;
    keep.disabled = true;
    player.hidden = true;
    record.textContent = say("record");
    find("booth-count").textContent = `${Math.min(at + 1, sentences.length)} / ${sentences.length}`;
    find("sentence").textContent = sentences[at] ?? say("script_done");
    record.disabled = find("booth-skip").disabled = at >= sentences.length;
  };
  const toggle = () => {
    if (!parts) { parts = []; take = null; keep.disabled = true; record.textContent = say("recorded"); return; }
    take = encodeWav(parts, context.sampleRate);
    parts = null;
    record.textContent = say("again");
    player.src = URL.createObjectURL(take);
    player.hidden = keep.disabled = false;
  };
  find("booth-begin").onclick = async () => {
    if (!find("consent").checked) return tell(told, say("consent"), true);
    try {
      sentences = await (await ask("/sentences", { method: "POST", body: new URLSearchParams({ text: find("script").value }) })).json();
    } catch (error) { return tell(told, error.message, true); }
    if (!sentences.length) return tell(told, say("no_script"), true);
    try {
      if (!context) {
        const stream = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false } });
        context = new AudioContext();
        await context.audioWorklet.addModule("/static/recorder.js");
        const recorder = new AudioWorkletNode(context, "recorder");
        recorder.port.onmessage = ({ data }) => { parts?.push(data); find("level").value = Math.max(...data.map(Math.abs)); };
        context.createMediaStreamSource(stream).connect(recorder);
      }
      at = 0;
      booth.hidden = false;
      tell(told, "");
      show();
      booth.focus();
    } catch (error) { tell(told, say("no_microphone", { why: error.message }), true); }
  };
  record.onclick = toggle;
  find("booth-skip").onclick = () => { at += 1; show(); };
  keep.onclick = async () => {
    keep.disabled = true;
    try {
      addRecording(await sendFile(take, `${at + 1}. ${sentences[at].slice(0, 60)}`, sentences[at], () => {}));
      at += 1;
      tell(told, "");
      show();
    } catch (error) { tell(told, error.message, true); keep.disabled = false; }
  };
  // A button that was pressed would keep Enter for itself.
  booth.addEventListener("click", event => { if (event.target.closest("button")) booth.focus(); });
  document.addEventListener("keydown", event => {
    const isElsewhere = booth.hidden || !find("studio-booth").open || event.target.closest?.("textarea, input, select");
    if (isElsewhere || isPress(event) || hasModifier(event) || event.repeat) return;
    const key = readKey(event), pressed = { r: record, Enter: keep, s: find("booth-skip") }[key];
    if (key === "p" && take) player.play();
    if (pressed && !pressed.disabled) { event.preventDefault(); pressed.click(); }
  });
}

// Speak
const HEADER_BYTES = 44;
class Loudspeaker {
  constructor(rate) { this.context = new AudioContext(); this.rate = rate; this.next = 0; }
  play(samples) {
    const buffer = this.context.createBuffer(1, samples.length, this.rate);
    buffer.copyToChannel(Float32Array.from(samples, value => value / 32768), 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.context.destination);
    this.next = Math.max(this.next, this.context.currentTime + 0.05);
    source.start(this.next);
    this.next += buffer.duration;
  }
  close(isNow) { setTimeout(() => this.context.close(), isNow ? 0 : 1000 * Math.max(0, this.next - this.context.currentTime)); }
}

async function receiveSpeech(response, onSeconds) {
  const rate = Number(response.headers.get("X-Sample-Rate")), loudspeaker = new Loudspeaker(rate), parts = [];
  let rest = new Uint8Array(0), header = null, length = 0, isWhole = false;
  try {
    for (const reader = response.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) break;
      let bytes = new Uint8Array([...rest, ...value]);
      if (!header && bytes.length >= HEADER_BYTES) [header, bytes] = [bytes.slice(0, HEADER_BYTES), bytes.slice(HEADER_BYTES)];
      const even = header ? bytes.length - bytes.length % 2 : 0;
      rest = bytes.slice(even);
      if (!even) continue;
      const part = bytes.slice(0, even);
      loudspeaker.play(new Int16Array(part.buffer));
      parts.push(part);
      length += even;
      onSeconds(length / 2 / rate);
    }
    isWhole = true;
  } finally { loudspeaker.close(!isWhole); }
  // The header of a stream does not know the length.
  const view = new DataView(header.buffer);
  view.setUint32(4, length + HEADER_BYTES - 8, true);
  view.setUint32(HEADER_BYTES - 4, length, true);
  return { file: new Blob([header, ...parts], { type: "audio/wav" }), seconds: length / 2 / rate };
}

if (find("speak")) {
  const form = find("speak"), told = find("speak-told"), touched = new Set();
  let loaded = null, running = null;
  for (const slider of form.querySelectorAll("input[name]")) slider.oninput = () => {
    touched.add(slider.name);
    const output = slider.parentElement.querySelector("output");
    if (output) output.textContent = slider.value;
  };
  const load = async () => {
    const model = find("model").value;
    if (loaded === model) return;
    tell(told, say("loading"));
    const facts = await (await ask(`/speak/voices?model=${encodeURIComponent(model)}`, { signal: running.signal })).json();
    const voice = find("voice").value, language = find("language").value;
    find("voice").querySelectorAll(":scope > option:not([value=''])").forEach(each => each.remove());
    find("references").before(...facts.data.map(each => new Option(each.id, each.id)));
    find("language").replaceChildren(find("language").options[0], ...facts.languages.map(each => new Option(each, each)));
    find("voice").value = voice;
    find("language").value = language;
    if (!find("voice").value) find("voice").selectedIndex = facts.data.length ? 1 : find("voice").options.length > 1 ? 1 : 0;
    if (!find("language").value) find("language").selectedIndex = 0;
    loaded = model;
  };
  find("model").onchange = () => { loaded = null; };
  // Whoever begins to type will want it.
  find("text").onfocus = () => ask(`/speak/voices?model=${encodeURIComponent(find("model").value)}`).catch(() => {});
  find("hush").onclick = () => running?.abort();
  form.onsubmit = async event => {
    event.preventDefault();
    running = new AbortController();
    find("say").disabled = true;
    find("hush").hidden = false;
    find("player").hidden = find("download").hidden = true;
    try {
      await load();
      tell(told, say("waiting"));
      const request = { input: find("text").value, model: find("model").value, response_format: "wav", stream: true };
      const [kind, id] = find("voice").value.split(/:(.*)/s);
      if (kind === "recording") request.reference = id; else request.voice = find("voice").value;
      if (find("language").value) request.language = find("language").value;
      for (const name of touched) request[name] = Number(form.elements[name].value);
      const options = { method: "POST", signal: running.signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) };
      const { file, seconds } = await receiveSpeech(await ask("/speak", options), s => tell(told, say("speaking", { s: s.toFixed(1) })));
      find("player").src = find("download").href = URL.createObjectURL(file);
      find("player").hidden = find("download").hidden = false;
      tell(told, say("spoken", { s: seconds.toFixed(1) }));
    } catch (error) {
      const isStopped = error.name === "AbortError";
      tell(told, isStopped ? say("stopped") : error.message, !isStopped);
    }
    find("say").disabled = false;
    find("hush").hidden = true;
  };
}

// Live pages: parts come when they have changed.
const watched = document.querySelector("[data-watch]"), WATCH_AGAIN_MS = 10000;
function watch() {
  const source = new EventSource(watched.dataset.watch);
  for (const place of watched.querySelectorAll("[data-part]")) source.addEventListener(place.dataset.part, event => {
    place.innerHTML = event.data;
    htmx.process(place);
  });
  source.onopen = () => tell(find("lost"), "");
  source.onerror = async () => {
    if (source.readyState !== EventSource.CLOSED) return tell(find("lost"), say("gone"), true);
    // It has given up, and does not say what it was answered.
    try { await ask(location.href); } catch (error) { tell(find("lost"), error.message, true); }
    setTimeout(watch, WATCH_AGAIN_MS);
  };
}
if (watched) watch();

// Corpus: one clip at a time, by keys alone.
if (find("clips")) {
  const clips = find("clips"), player = find("clip-player");
  let playing = null, ahead = 0, changes = Promise.resolve();
  const current = () => document.activeElement.closest?.(".clip") ?? document.querySelector(".clip.current") ?? document.querySelector(".clip");
  const choose = (clip, hasFocus = false) => {
    if (!clip) return;
    ahead = 0;
    document.querySelector(".clip.current")?.classList.remove("current");
    clip.classList.add("current");
    if (!hasFocus) clip.focus({ preventScroll: true });
    clip.scrollIntoView({ block: "nearest" });
  };
  const goOn = () => {
    const next = current().nextElementSibling;
    if (next?.matches(".clip")) choose(next);
    // Gone to when it has come.
    if (next?.matches(".more")) { ahead += 1; htmx.trigger(next, "more"); }
  };
  const play = clip => {
    const isSame = playing === clip && !player.paused;
    player.pause();
    playing?.classList.remove("playing");
    if (isSame) return;
    playing = clip;
    player.src = `${clip.dataset.url}/sound`;
    clip.classList.add("playing");
    player.play().catch(error => { if (error.name !== "AbortError") tell(clip.querySelector(".told"), error.message, true); });
  };
  const seek = (clip, second) => {
    if (playing !== clip || player.paused) play(clip);
    player.currentTime = Math.max(0, Math.min(second, clip.dataset.seconds));
  };
  player.onended = () => playing.classList.remove("playing");
  player.ontimeupdate = () => playing.style.setProperty("--at", `${100 * player.currentTime / playing.dataset.seconds}%`);
  // An answer may be late: it changes what it is about, and neither what is chosen nor what is being typed.
  const change = async (clip, fields) => {
    const told = clip.querySelector(".told"), area = clip.querySelector("textarea");
    try {
      const answer = await ask(clip.dataset.url, { method: "POST", body: new URLSearchParams(fields), keepalive: true });
      const fresh = document.createRange().createContextualFragment(await answer.text()), saved = fresh.querySelector("textarea").value;
      find("counts").replaceWith(fresh.querySelector("#counts"));
      clip.classList.toggle("dropped", fresh.querySelector(".clip").matches(".dropped"));
      clip.querySelector(".why").replaceWith(fresh.querySelector(".why"));
      for (const name of ["keep", "drop"]) {
        const [ours, theirs] = [clip, fresh].map(each => each.querySelector(`[data-do=${name}]`));
        ours.setAttribute("aria-pressed", theirs.getAttribute("aria-pressed"));
      }
      if (area.value === fields.text) area.value = saved;
      area.defaultValue = saved;
      fit(area);
      tell(told, say("saved"));
      setTimeout(() => { if (told.textContent === say("saved")) tell(told, ""); }, 1500);
    } catch (error) { tell(told, error.message, true); }
  };
  // One after the other, so that the last word is the last.
  const changeNext = (clip, fields) => { changes = changes.then(() => change(clip, fields)); };
  const isUnsaved = area => area.value !== area.defaultValue;
  const isFitting = CSS.supports("field-sizing", "content");
  const fit = area => {
    if (isFitting) return;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + 2}px`;
  };
  const fitAll = place => place.querySelectorAll("textarea").forEach(fit);
  fitAll(clips);
  // Comes once for each clip that has come.
  clips.addEventListener("htmx:afterSwap", event => {
    fitAll(event.target);
    for (let left = ahead; left > 0; left -= 1) goOn();
  });
  addEventListener("beforeunload", event => { if ([...clips.querySelectorAll("textarea")].some(isUnsaved)) event.preventDefault(); });
  clips.addEventListener("input", event => fit(event.target));
  clips.addEventListener("focusout", ({ target }) => {
    if (target.tagName === "TEXTAREA" && isUnsaved(target)) changeNext(target.closest(".clip"), { text: target.value });
  });
  clips.addEventListener("click", event => {
    const clip = event.target.closest(".clip"), button = event.target.closest("button");
    if (!clip) return;
    // A button that was pressed by a key is where its user still is.
    if (event.target.tagName !== "TEXTAREA") choose(clip, event.detail === 0);
    if (event.target.matches(".wave")) seek(clip, clip.dataset.seconds * event.offsetX / event.target.clientWidth);
    if (button?.matches(".play")) play(clip);
    if (button?.dataset.do) changeNext(clip, { kept: button.dataset.do === "keep" ? "yes" : "no" });
  });
  document.addEventListener("keydown", event => {
    const clip = current();
    if (!clip || hasModifier(event) || event.isComposing || isPress(event) || event.target.closest?.("nav, .actions")) return;
    if (event.target.tagName === "TEXTAREA") {
      if (event.key === "Escape") { event.target.value = event.target.defaultValue; choose(clip); }
      if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); choose(clip); }
      return;
    }
    const heard = playing === clip ? player.currentTime : 0;
    const moves = {
      j: goOn, ArrowDown: goOn, k: () => choose(clip.previousElementSibling), ArrowUp: () => choose(clip.previousElementSibling),
      " ": () => { choose(clip); play(clip); }, ArrowLeft: () => seek(clip, heard - 1), ArrowRight: () => seek(clip, heard + 1),
      e: () => { const area = clip.querySelector("textarea"); area.focus(); area.select(); },
      a: () => changeNext(clip, { kept: "yes" }), x: () => changeNext(clip, { kept: "no" }),
    };
    const move = moves[readKey(event)];
    if (move) { event.preventDefault(); move(); }
  });
}
