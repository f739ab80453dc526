/** Routing of `/app/…` with the browser's history. */

const BASE = '/app';

const read = () => ({
  path: location.pathname.slice(BASE.length).replace(/\/+$/, '') || '/',
  query: new URLSearchParams(location.search),
});

let current = $state.raw(read());
let moves = 0;

/** The index of the present history entry, stored in the entry. */
let place = Number(history.state?.place ?? 0);

/** Returns whether there are unsaved changes. */
let isUnsaved: (() => boolean) | undefined;
/** The decision about leaving: true leaves. */
let decide = $state.raw<(leave: boolean) => void>();

export const route = {
  get path() {
    return current.path;
  },
  /** Navigations since the page was opened. */
  get moves() {
    return moves;
  },
  get query() {
    return current.query;
  },
};

/** The address of a path of the page. */
export const href = (path: string) => BASE + path;

export const leaving = {
  /** Set while the question about unsaved changes is open. */
  get decide() {
    return decide;
  },
};

/**
 * Asks before unsaved changes are left, while the component lives: by links, the browser's buttons,
 * or closing the tab. Call it during component initialization.
 */
export function guard(unsaved: () => boolean) {
  $effect(() => {
    isUnsaved = unsaved;
    return () => {
      if (isUnsaved === unsaved) isUnsaved = undefined;
    };
  });
}

/** Asks about unsaved changes; true at once without any. */
export function mayLeave(): Promise<boolean> {
  if (!isUnsaved?.()) return Promise.resolve(true);
  return new Promise((done) => {
    decide = (leave) => {
      decide = undefined;
      if (leave) isUnsaved = undefined;
      done(leave);
    };
  });
}

/** Removes a value from the address's fragment, which is never sent to a server, and returns it. */
export function takeFragment(name: string): string {
  const value = new URLSearchParams(location.hash.slice(1)).get(name) ?? '';
  if (value) history.replaceState(history.state, '', location.pathname + location.search);
  return value;
}

/** Goes to a path. */
export function go(path: string, { replace = false } = {}) {
  if (path.split('?', 1)[0] !== current.path && isUnsaved?.()) {
    void mayLeave().then((leave) => leave && go(path, { replace }));
    return;
  }
  if (replace) history.replaceState({ place }, '', BASE + path);
  else history.pushState({ place: ++place }, '', BASE + path);
  const before = current.path;
  current = read();
  if (current.path === before) return;
  moves += 1;
  scrollTo(0, 0);
}

/** Sets parameters of the address, so that a reload or a shared address shows the same. */
export function setQuery(changes: Record<string, string | null>) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === '') query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(current.path + (text ? `?${text}` : ''), { replace: true });
}

/** Handles clicks on the page's links, except new tabs and downloads. */
export function listen() {
  addEventListener('popstate', (event) => {
    const to = Number(event.state?.place ?? 0);
    // The address has changed already: it is restored while the question is open.
    if (to !== place && isUnsaved?.()) {
      history.go(place - to);
      void mayLeave().then((leave) => leave && history.go(to - place));
      return;
    }
    if (to === place && current.path === read().path) return;
    place = to;
    moves += 1;
    current = read();
  });
  addEventListener('beforeunload', (event) => {
    if (isUnsaved?.()) event.preventDefault();
  });
  document.addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const anchor = (event.target as Element).closest?.('a');
    if (!anchor || anchor.target || anchor.hasAttribute('download') || anchor.origin !== location.origin) return;
    const path = anchor.pathname;
    if ((path !== BASE && !path.startsWith(`${BASE}/`)) || path.startsWith(`${BASE}/api/`)) return;
    if (anchor.hash && path === location.pathname) return;
    event.preventDefault();
    go(path.slice(BASE.length) + anchor.search);
  });
}
