import { untrack } from 'svelte';
import { append, type Listed } from '../pure/lists';
import { asFault, type Fault } from './request';
import { later } from './retry';

/** A value that comes from the API: not there yet, there, or failed. */
export class Loaded<T> {
  value = $state.raw<T>();
  fault = $state.raw<Fault>();
  busy = $state(true);
  #turn = $state(0);

  get turn() {
    return this.#turn;
  }

  /** Asks again; the present value stays until the next is there. */
  again() {
    this.#turn += 1;
  }
}

/**
 * Asks now, and again whenever something changes that `ask` reads before its first `await`.
 *
 * An answer that was overtaken by a later question is dropped. A server that is away is asked again until it answers.
 * To be called while a component is made.
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

  /** Asks for the first page again; what is shown stays until it is there. */
  again() {
    this.#turn += 1;
  }

  /** Asks for the next page. */
  more() {
    if (this.next !== null && !this.busy) void this.#read(this.next);
  }

  /** Reads the first page, and again whenever something changes that the question reads. */
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

/** A list that is read now, and again whenever something changes that `ask` reads before its first `await`. */
export function loadPages<T>(
  ask: (cursor: string | undefined, signal: AbortSignal) => Promise<Listed<T>>,
  id: (item: T) => string,
): LoadedPages<T> {
  const pages = new LoadedPages(ask, id);
  pages.follow();
  return pages;
}
