/** Clicks as they happen, by server-sent events. */
import { address } from './request';
import type { Click } from './types';

/** The longest wait before a stream that was refused is asked for again. */
const LONGEST_WAIT = 60_000;

export class Live {
  /** Whether clicks arrive now. */
  connected = $state(false);
}

/**
 * Hears clicks of an address while the component lives, and again whenever what `path` reads changes.
 *
 * The browser resumes a broken stream where it broke (`Last-Event-ID`). A refused one, such as one stream too many, is
 * asked for again after a while. A page that nobody sees hears nothing: each stream takes one of the few connections that
 * a browser keeps to a server, and all tabs share them.
 */
export function listen(path: () => string, heard: (click: Click) => void): Live {
  const live = new Live();
  $effect(() => {
    const url = address(path());
    let source: EventSource | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let wait = 2_000;
    const open = () => {
      const opened = new EventSource(url);
      source = opened;
      opened.onopen = () => {
        live.connected = true;
        wait = 2_000;
      };
      opened.addEventListener('click', (event) => heard(JSON.parse(event.data) as Click));
      opened.onerror = () => {
        live.connected = false;
        if (opened.readyState !== EventSource.CLOSED) return;
        timer = setTimeout(open, wait);
        wait = Math.min(wait * 2, LONGEST_WAIT);
      };
    };
    const shut = () => {
      clearTimeout(timer);
      source?.close();
      live.connected = false;
    };
    const seen = () => {
      shut();
      if (!document.hidden) open();
    };
    seen();
    document.addEventListener('visibilitychange', seen);
    return () => {
      document.removeEventListener('visibilitychange', seen);
      shut();
    };
  });
  return live;
}
