// The iterations of one engine, as far as the page keeps them, and the slot of each request.
//
// An item is an iteration, or a gap between two iterations. Its cells are packed into three 32-bit words each:
// the request's uid, slot << 20 | kind << 17 | tokens, and the number of the output token that was sampled last.

export const KINDS = ["i", "c", "t", "r"];
export const [INITIATION, CHUNK, INCREMENT, RECOMPUTATION] = [0, 1, 2, 3];
export const WORDS = 3;

const MAX_ITEMS = 30_000; // five minutes at 100 iterations a second
const MAX_CELLS = 1_500_000; // 18 MB
const MIN_GAP = 250; // ms between two iterations that are drawn as a gap
const FORGOTTEN = 400; // iterations without a request after which its slot is free: its end was in a lost batch
const COLOURS = 24;

export class Timeline {
  constructor({ gaps = true } = {}) {
    this.items = [];
    this.first = 0; // the sequence number of items[0]
    this.requests = new Map(); // by uid
    this.slots = []; // the uid in each slot, 0 if the slot is free
    this.rows = 0; // the highest number of slots that were in use
    this.seconds = []; // sequence numbers of the first iteration of each second
    this.dirty = Infinity; // items from here on have changed since they were drawn
    this._unseen = false; // whether iterations may have run since the last one that are not known
    this._gaps = gaps;
    this._cells = 0;
    this._uids = new Map(); // by "epoch/n"
    this._colours = new Map(); // by the server's id of the request: a request that is taken over keeps its colour
    this._next = 1;
    this._used = new Array(COLOURS).fill(0);
    this._epoch = null;
  }

  get end() {
    return this.first + this.items.length;
  }

  get last() {
    return this.items[this.items.length - 1];
  }

  item(sequence) {
    return this.items[sequence - this.first];
  }

  /** Nobody watched for a while. */
  interrupt() {
    this._unseen = true;
  }

  /** Add an `iterations` event of the feed. */
  add({ epoch, iterations, requests }) {
    const taken = this._epoch !== null && epoch !== this._epoch;
    if (taken) this._release();
    this._epoch = epoch;
    for (const [n, facts] of Object.entries(requests ?? {})) {
      const { prompt, class: rank, cached, resumed, id } = facts;
      Object.assign(this._request(epoch, n), { prompt, class: rank, cached, resumed, ...(id && { id }) });
    }
    iterations.forEach((iteration, index) => this._iteration(epoch, iteration, taken && index === 0));
    this._prune();
  }

  /** The cell at a slot of an item, as { request, slot, kind, tokens, number }, or null. */
  cell(item, slot) {
    for (let i = 0; i < (item.cells?.length ?? 0); i += WORDS) {
      if (item.cells[i + 1] >>> 20 === slot) return this.unpack(item.cells, i);
    }
    return null;
  }

  unpack(cells, i) {
    const word = cells[i + 1];
    return {
      request: this.requests.get(cells[i]),
      slot: word >>> 20,
      kind: (word >>> 17) & 7,
      tokens: word & 0x1ffff,
      number: cells[i + 2],
    };
  }

  _iteration(epoch, { step, at, ms, requests, blocks, ended, preempted, drafts = [] }, taken) {
    const last = this.last;
    const pause = last ? at - (last.at + last.ms) : 0;
    const unseen = this._unseen || (!taken && last !== undefined && step > last.step + 1);
    this._unseen = false;
    if (unseen) this._keep(new Set(requests.map(([n]) => this._request(epoch, n).uid)));
    if (last && this._gaps && (pause > MIN_GAP || taken || unseen)) this._gap(last, pause, epoch, taken, unseen);
    const sequence = this.end;
    const runs = new Map(requests.map(([n, , kind]) => [n, kind]));
    const leave = (n, reason) => this._leave(this._request(epoch, n), reason);
    // what has left before this iteration gives its slot to those that join it
    for (const n of preempted) if (!runs.has(n) || runs.get(n) === "r") leave(n, "preempted");
    for (const [n, reason] of ended) if (!runs.has(n)) leave(n, reason);
    const cells = new Uint32Array(requests.length * WORDS);
    let tokens = 0;
    let prompts = 0;
    requests.forEach(([n, count, kind], index) => {
      const request = this._request(epoch, n);
      this._seat(request);
      const code = KINDS.indexOf(kind);
      this._advance(request, code, count);
      request.lastSequence = sequence;
      tokens += count;
      if (code !== INCREMENT) prompts += count;
      cells[index * WORDS] = request.uid;
      cells[index * WORDS + 1] = ((request.slot << 20) | (code << 17) | Math.min(count, 0x1ffff)) >>> 0;
      cells[index * WORDS + 2] = request.number;
    });
    const drafted = new Map(drafts.map(([n, guesses, right]) => [this._request(epoch, n).uid, { guesses, right }]));
    const decoded = requests.filter(([, , kind]) => kind === "t").length;
    this._push({ step, at, ms, epoch, cells, tokens, prompts, blocks, drafted, decoded, gap: false });
    const second = Math.floor(at / 1000);
    if (!last || Math.floor(last.at / 1000) !== second) this.seconds.push(this.end - 1);
    for (const n of preempted) if (runs.has(n) && runs.get(n) !== "r") leave(n, "preempted");
    for (const [n, reason] of ended) if (runs.has(n)) leave(n, reason);
    if (sequence % 100 === 0) this._forget(sequence);
  }

  _gap(last, pause, epoch, taken, unseen) {
    const busy = !unseen && (this.slots.some((uid) => uid !== 0) || taken);
    const { step } = last;
    this._push({ step, at: last.at + last.ms, ms: Math.max(pause, 0), epoch, taken, busy, unseen, gap: true });
  }

  _push(item) {
    const last = this.last;
    // how many iterations and gaps come before it: its place on the axis, in O(1)
    item.columns = last ? last.columns + (last.gap ? 0 : 1) : 0;
    item.breaks = last ? last.breaks + (last.gap ? 1 : 0) : 0;
    this.items.push(item);
    this._cells += item.cells?.length ?? 0;
  }

  _request(epoch, n) {
    const name = `${epoch}/${n}`;
    let uid = this._uids.get(name);
    if (!uid) {
      uid = this._next++;
      this._uids.set(name, uid);
      const lastSequence = this.end;
      this.requests.set(uid, { uid, name, n: Number(n), slot: -1, number: 0, fed: 0, colour: -1, lastSequence });
    }
    return this.requests.get(uid);
  }

  _advance(request, kind, count) {
    if (kind === INCREMENT) {
      if (request.number || request.fed) request.number = Math.max(request.number + count, 2);
      else if (request.resumed) request.number = request.resumed + count;
      return; // of a request that is seen for the first time now, it is not known
    }
    request.number = Math.max(request.number, request.resumed ?? 0);
    request.fed += count;
    const missing = (request.prompt ?? Infinity) - (request.cached ?? 0) + request.number;
    if (kind === INITIATION || request.fed >= missing) request.number += 1;
  }

  _seat(request) {
    if (request.colour < 0) request.colour = this._colour(request);
    if (request.slot >= 0) return;
    let slot = this.slots.indexOf(0);
    if (slot < 0) slot = this.slots.length;
    this.slots[slot] = request.uid;
    request.slot = slot;
    this.rows = Math.max(this.rows, slot + 1);
  }

  /** The colour that was taken longest ago. */
  _colour(request) {
    const known = request.id && this._colours.get(request.id);
    const colour = known ?? this._used.indexOf(Math.min(...this._used));
    this._used[colour] = request.uid;
    if (request.id) this._colours.set(request.id, colour);
    return colour;
  }

  _leave(request, reason) {
    if (request.slot >= 0) this._free(request.slot);
    const at = Math.min(request.lastSequence, this.end - 1);
    (request.ends ??= []).push([at, reason]);
    this.dirty = Math.min(this.dirty, at);
    request.fed = 0;
    request.slot = -1;
  }

  /** Free the slots of all other requests: they may have ended unseen. */
  _keep(uids) {
    this.slots.forEach((uid, slot) => {
      if (uid === 0 || uids.has(uid)) return;
      this.requests.get(uid).slot = -1;
      this.slots[slot] = 0;
    });
  }

  _free(slot) {
    this.slots[slot] = 0;
    while (this.slots.at(-1) === 0) this.slots.pop();
  }

  /** The engine or its scheduler was replaced: its requests come again under other numbers. */
  _release() {
    for (const uid of this.slots) if (uid) this.requests.get(uid).slot = -1;
    this.slots = [];
  }

  _forget(sequence) {
    this.slots.forEach((uid, slot) => {
      const request = this.requests.get(uid);
      if (!request || sequence - request.lastSequence < FORGOTTEN) return;
      request.slot = -1;
      this._free(slot);
    });
  }

  _prune() {
    if (this.items.length <= MAX_ITEMS && this._cells <= MAX_CELLS * WORDS) return;
    const count = Math.max(Math.ceil(this.items.length / 10), 1);
    for (const item of this.items.splice(0, count)) this._cells -= item.cells?.length ?? 0;
    this.first += count;
    this.rows = this.slots.length;
    for (const { cells } of this.items) {
      for (let i = 1; i < (cells?.length ?? 0); i += WORDS) this.rows = Math.max(this.rows, (cells[i] >>> 20) + 1);
    }
    this.seconds = this.seconds.filter((sequence) => sequence >= this.first);
    for (const [uid, request] of this.requests) {
      if (request.slot >= 0 || request.lastSequence >= this.first) continue;
      this.requests.delete(uid);
      this._uids.delete(request.name);
      if (request.id) this._colours.delete(request.id);
    }
  }
}
