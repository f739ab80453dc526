/** The clicks of the last five minutes, each once, even if a stream repeats them. */

export const RECENT = 5 * 60_000;

/** Click ids with their times, in milliseconds. */
export type Recent = ReadonlyMap<string, number>;

/** Adds a click, and removes those older than five minutes. */
export function seen(recent: Recent, id: string, at: number, now: number): Recent {
  return new Map([...recent, [id, at] as const].filter(([, time]) => now - time < RECENT));
}

/** Removes clicks older than five minutes. */
export const faded = (recent: Recent, now: number): Recent =>
  new Map([...recent].filter(([, time]) => now - time < RECENT));
