/** Addresses of the page: `/app/…`, kept by the browser's history. */

const BASE = '/app';

const read = () => ({
  path: location.pathname.slice(BASE.length).replace(/\/+$/, '') || '/',
  query: new URLSearchParams(location.search),
});

let current = $state.raw(read());
let moves = 0;

export const route = {
  get path() {
    return current.path;
  },
  /** How often the page has changed since it was opened. */
  get moves() {
    return moves;
  },
  get query() {
    return current.query;
  },
};

/** The address of a path of the page. */
export const href = (path: string) => BASE + path;

/** Goes to a path. */
export function go(path: string, { replace = false } = {}) {
  if (replace) history.replaceState(null, '', BASE + path);
  else history.pushState(null, '', BASE + path);
  const before = current.path;
  current = read();
  if (current.path === before) return;
  moves += 1;
  scrollTo(0, 0);
}

/** Sets parameters of the present address, so that a reload or a shared address shows the same. */
export function setQuery(changes: Record<string, string | null>) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === '') query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(current.path + (text ? `?${text}` : ''), { replace: true });
}

/** Takes clicks on the page's own links; new tabs and downloads stay the browser's. */
export function listen() {
  addEventListener('popstate', () => {
    moves += 1;
    current = read();
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
