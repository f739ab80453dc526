/** Asking again, later: what a server that is away for a moment needs, without a person who reloads. */

const FIRST = 1_000;
const LONGEST = 15_000;

/**
 * Runs something once, after a wait that doubles with `tries`, and not before the page is visible.
 *
 * Returns what calls it off.
 */
export function later(tries: number, run: () => void): () => void {
  const timer = setTimeout(
    () => {
      if (document.hidden) document.addEventListener('visibilitychange', run, { once: true });
      else run();
    },
    Math.min(FIRST * 2 ** tries, LONGEST),
  );
  return () => {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', run);
  };
}
