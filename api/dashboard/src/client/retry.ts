/** Retries while a server is unavailable. */

const FIRST = 1_000;
const LONGEST = 15_000;

/**
 * Runs a function once, after a wait that doubles with `tries`, when the page is visible.
 *
 * Returns a function that cancels it.
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
