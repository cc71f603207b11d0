// Calls of the server that serves this page, with the API key of this tab.

const KEY = "orca.key";
const ROOT = new URL("..", import.meta.url); // this file is at /ui/api.js

/** The server answered with something else than 200. */
export class Refused extends Error {
  constructor(status, message, code, retryAfter) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter; // seconds, or null
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Fetch a path of the server. Throws Refused for an answer other than 200, and TypeError without an answer. */
export async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(new URL(path, ROOT), { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const error = (await response.json().catch(() => null))?.error;
  const wait = Number(response.headers.get("Retry-After"));
  const retryAfter = response.headers.has("Retry-After") ? wait || 1 : null;
  throw new Refused(response.status, error?.message ?? `status ${response.status}`, error?.code, retryAfter);
}

/** The events of a `text/event-stream`: { event, data, id }. Throws if the connection is silent for `silence` ms. */
export async function* events(response, silence) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let [event, data, id] = ["message", [], ""];
  try {
    for (;;) {
      const { done, value } = await within(reader.read(), silence);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((text) => text.replace(/\r$/, ""))) {
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n"), id };
          [event, data, id] = ["message", [], ""];
          continue;
        }
        const [, name, text] = /^([^:]*):? ?(.*)$/.exec(line);
        if (name === "event") event = text;
        else if (name === "data") data.push(text);
        else if (name === "id") id = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function within(promise, ms) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new TypeError("the connection is silent")), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

export function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
