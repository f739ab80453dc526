/** Live clicks by server-sent events. */
import { address } from './request';
import type { Click } from './types';

/** The longest wait before a rejected stream is tried again. */
const LONGEST_WAIT = 60_000;

export class Live {
  /** Whether the stream is open. */
  connected = $state(false);
}

/**
 * Streams clicks while the component lives, and restarts when what `path` reads changes.
 *
 * The browser resumes a broken stream with `Last-Event-ID`. A rejected one, such as one stream too many, is
 * tried again later. A hidden page holds no stream: each one takes one of the few connections that
 * a browser keeps to a server for all tabs.
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
