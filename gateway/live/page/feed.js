// The live feed: connected while somebody looks, and again after each break.

import { Refused, call, events, sleep } from "./api.js";

const SILENCE = 20_000; // ms; a server that is alive sends a state each second
const [FIRST_PAUSE, LONGEST_PAUSE] = [200, 3000]; // ms

export class Feed {
  /** `told(event, data)` for each event, `status("live" | "connecting" | "busy" | "off" | "key" | "missing")` for changes. */
  constructor(told, status) {
    this._told = told;
    this._status = status;
    this._run = null;
  }

  start() {
    if (this._run) return;
    this._run = new AbortController();
    this._keep(this._run.signal);
  }

  stop() {
    this._run?.abort();
    this._run = null;
    this._status("off");
  }

  async _keep(signal) {
    let pause = FIRST_PAUSE;
    this._status("connecting");
    while (!signal.aborted) {
      let status = "connecting";
      try {
        const response = await call("ui/feed", { signal });
        for await (const { event, data } of events(response, SILENCE)) {
          if (signal.aborted) return;
          if (pause) this._status("live");
          pause = 0;
          this._told(event, JSON.parse(data));
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 429) status = "busy";
        else if (error instanceof Refused && error.status < 500) {
          this._run = null;
          return this._status(error.status === 401 ? "key" : "missing");
        }
      }
      if (signal.aborted) return;
      pause = Math.min(Math.max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE);
      this._status(status);
      await sleep(pause, signal);
    }
  }
}
