import { untrack } from 'svelte';
import { append, type Listed } from '../pure/lists';
import { asFault, type Fault } from './request';
import { later } from './retry';

/** A value from the API: loading, loaded or failed. */
export class Loaded<T> {
  value = $state.raw<T>();
  fault = $state.raw<Fault>();
  busy = $state(true);
  #turn = $state(0);

  get turn() {
    return this.#turn;
  }

  /** Loads again; the present value stays until then. */
  again() {
    this.#turn += 1;
  }
}

/**
 * Loads now, and again whenever something changes that `ask` reads before its first `await`.
 *
 * Answers to superseded requests are dropped. An unavailable server is retried.
 * Call it during component initialization.
 */
export function load<T>(ask: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const loaded = new Loaded<T>();
  let tries = 0;
  $effect(() => {
    void loaded.turn;
    const abort = new AbortController();
    let callOff = () => {};
    const answer = ask(abort.signal);
    untrack(() => (loaded.busy = true));
    answer.then(
      (value) => {
        if (abort.signal.aborted) return;
        loaded.value = value;
        loaded.fault = undefined;
        loaded.busy = false;
        tries = 0;
      },
      (error: unknown) => {
        if (abort.signal.aborted) return;
        loaded.fault = asFault(error);
        loaded.busy = false;
        if (loaded.fault.isAway) callOff = later(tries++, () => loaded.again());
      },
    );
    return () => {
      abort.abort();
      callOff();
    };
  });
  return loaded;
}

/** A list of the API that grows page by page. */
export class LoadedPages<T> {
  items = $state.raw<T[]>();
  next = $state.raw<string | null>(null);
  fault = $state.raw<Fault>();
  busy = $state(true);
  #turn = $state(0);
  #ask: (cursor: string | undefined, signal: AbortSignal) => Promise<Listed<T>>;
  #id: (item: T) => string;
  #asking = new AbortController();
  #tries = 0;
  #callOff = () => {};

  constructor(ask: (cursor: string | undefined, signal: AbortSignal) => Promise<Listed<T>>, id: (item: T) => string) {
    this.#ask = ask;
    this.#id = id;
  }

  /** Loads the first page again; the shown items stay until then. */
  again() {
    this.#turn += 1;
  }

  /** Loads the next page. */
  more() {
    if (this.next !== null && !this.busy) void this.#read(this.next);
  }

  /** Loads the first page, and again whenever something changes that the request reads. */
  follow() {
    $effect(() => {
      void this.#turn;
      void this.#read(undefined);
      return () => {
        this.#asking.abort();
        this.#callOff();
      };
    });
  }

  async #read(cursor: string | undefined) {
    this.#asking.abort();
    this.#callOff();
    const asking = new AbortController();
    this.#asking = asking;
    const answer = this.#ask(cursor, asking.signal);
    untrack(() => (this.busy = true));
    try {
      const page = await answer;
      if (asking.signal.aborted) return;
      const before = cursor === undefined ? { items: [], next: null } : { items: this.items ?? [], next: this.next };
      const all = append(before, page, this.#id);
      this.items = all.items;
      this.next = all.next;
      this.fault = undefined;
      this.#tries = 0;
    } catch (error) {
      if (asking.signal.aborted) return;
      this.fault = asFault(error);
      if (this.fault.isAway) this.#callOff = later(this.#tries++, () => void this.#read(cursor));
    }
    this.busy = false;
  }
}

/** Loads a list now, and again whenever something changes that `ask` reads before its first `await`. */
export function loadPages<T>(
  ask: (cursor: string | undefined, signal: AbortSignal) => Promise<Listed<T>>,
  id: (item: T) => string,
): LoadedPages<T> {
  const pages = new LoadedPages(ask, id);
  pages.follow();
  return pages;
}
