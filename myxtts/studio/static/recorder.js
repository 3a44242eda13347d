"use strict";
// Hands what the microphone gives to the page, as it comes.
registerProcessor("recorder", class extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
});
