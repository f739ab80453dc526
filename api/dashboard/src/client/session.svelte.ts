/** The session, and preferences of this browser. */
import { get, type Query } from './request';
import { route } from './router.svelte';
import type { Session, Workspace } from './types';

let session = $state.raw<Session | null>();

/** The session: undefined while loading, null when nobody is signed in. */
export const signedIn = {
  get session() {
    return session;
  },
  set session(next: Session | null | undefined) {
    session = next;
  },
};

/** Reads the session again. */
export async function refreshSession() {
  session = await get<Session>('/session');
}

/** The session, on pages that require one. */
export function mustSession(): Session {
  if (!session) throw new Error('nobody is signed in');
  return session;
}

/** The workspace that the address names. */
export function workspace(): Workspace | undefined {
  const id = route.path.split('/')[1];
  return session?.workspaces.find((one) => one.id === id);
}

/** A path of the workspace's API. */
export const inWorkspace = (path: string) => `/workspaces/${workspace()?.id}${path}`;

/** A page's path in the present workspace. */
export const page = (path: string) => `/${workspace()?.id}${path}`;

export const ofWorkspace = <T>(path: string, query?: Query, signal?: AbortSignal) =>
  get<T>(inWorkspace(path), query, signal);

/** The short URL of a slug, as visitors see it, and without its scheme as people read it. */
export const shortUrl = (slug: string) => `${session?.public_url.replace(/\/$/, '')}/${slug}`;
export const shortText = (slug: string) => shortUrl(slug).replace(/^https?:\/\//, '');

const storedText = (name: string) => {
  try {
    return localStorage.getItem(`hopline.${name}`);
  } catch {
    // Storage may be forbidden; then preferences last as long as the page.
    return null;
  }
};

const store = (name: string, value: string | null) => {
  try {
    if (value === null) localStorage.removeItem(`hopline.${name}`);
    else localStorage.setItem(`hopline.${name}`, value);
  } catch {
    // See above.
  }
};

export type Theme = 'system' | 'light' | 'dark';

const readTheme = (): Theme => {
  const text = storedText('theme');
  return text === 'light' || text === 'dark' ? text : 'system';
};

let theme = $state<Theme>(readTheme());
let zone = $state(storedText('zone') ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? 'UTC');

/** Preferences, stored in this browser only. */
export const choices = {
  get theme() {
    return theme;
  },
  set theme(next: Theme) {
    theme = next;
    store('theme', next === 'system' ? null : next);
  },
  get zone() {
    return zone;
  },
  set zone(next: string) {
    zone = next;
    store('zone', next);
  },
  get workspace() {
    return storedText('workspace');
  },
  set workspace(id: string | null) {
    store('workspace', id);
  },
};
