/** Rules of a link's fields, so that a form shows faults before it is sent. The API decides. */

import type { LinkFields } from '../client/types';
import { moment } from './format';

const RESERVED = ['api', 'app', 'healthz', 'readyz', 'metrics', 'robots.txt', 'favicon.ico', '.well-known'];

/**
 * The fault of a slug. An empty one is valid: the API generates a slug. So is the one of before, which may be older than
 * a rule.
 */
export function slugFault(slug: string, before?: string): string | null {
  if (slug === '' || slug === before) return null;
  if (slug.length > 64) return 'At most 64 characters.';
  if (RESERVED.includes(slug.toLowerCase())) return 'This slug is reserved.';
  if (!/^[A-Za-z0-9_-]+$/.test(slug)) return 'Use only letters, digits, hyphens and underscores.';
  return null;
}

/** The fault of a destination. */
export function destinationFault(text: string): string | null {
  if (text === '') return 'Enter a destination.';
  if (new TextEncoder().encode(text).length > 2048) return 'At most 2,048 bytes.';
  const whole = 'Enter a full URL, such as https://example.com/page.';
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    return whole;
  }
  if (text.includes('\\')) return 'Write %5C for a backslash.';
  if (/[\s\p{Cc}]/u.test(text)) return 'Write %20 for a space.';
  if (url.protocol !== 'https:' && url.protocol !== 'http:') return 'Only http and https URLs are supported.';
  if (url.username || url.password) return 'URLs with a user name or password aren’t supported.';
  // The browser repairs what has more or fewer slashes.
  return /^https?:\/\/[^/?#@]+([/?#]|$)/i.test(text) ? null : whole;
}

/** The fields that differ, with their new values. */
export function changes(before: LinkFields, after: LinkFields): Partial<LinkFields> {
  const differs = (name: string) =>
    JSON.stringify(before[name as keyof LinkFields]) !== JSON.stringify(after[name as keyof LinkFields]);
  return Object.fromEntries(Object.entries(after).filter(([name]) => differs(name)));
}

/** A newer version of a link with the changes that a person made to the version before. */
export const merged = (before: LinkFields, edited: LinkFields, newer: LinkFields): LinkFields => ({
  ...newer,
  ...changes(before, edited),
});

/** The value of a field as text. */
export function fieldText(name: string, value: unknown, zone: string): string {
  if (name === 'expires_at' && value) return moment(String(value), zone);
  if (name === 'forward_query') return value === 'append' ? 'on' : 'off';
  if (typeof value === 'boolean') return value ? 'on' : 'off';
  return [value ?? []].flat().join(', ') || 'none';
}

/** Whether a link has expired. */
export const hasExpired = (link: { expires_at?: string | null }, now: number): boolean =>
  Boolean(link.expires_at) && Date.parse(link.expires_at!) <= now;

/** An http or https address, which the page may link to. */
export const webAddress = (text: string): string | undefined => (/^https?:\/\//i.test(text) ? text : undefined);

/** Adds https to a host name without a scheme. */
export const completed = (text: string): string => {
  const trimmed = text.trim();
  return /^[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?([/?#]|$)/i.test(trimmed) ? `https://${trimmed}` : trimmed;
};

/** Derives a slug from a name: letters without accents, hyphens for the rest. */
export const slugOf = (name: string): string =>
  name
    .normalize('NFKD')
    .replace(/\p{M}/gu, '')
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .slice(0, 40)
    .replace(/^-+|-+$/g, '');

export const UTM = ['utm_source', 'utm_medium', 'utm_campaign', 'utm_term', 'utm_content'] as const;
export type UtmName = (typeof UTM)[number];
export type Utm = Record<UtmName, string>;

const split = (text: string): [string, string[], string] => {
  const [, head = '', query = '', fragment = ''] = /^([^?#]*)(?:\?([^#]*))?(#.*)?$/s.exec(text) ?? [];
  return [head, query === '' ? [] : query.split('&'), fragment];
};

const nameOf = (pair: string): string => {
  try {
    return decodeURIComponent((pair.split('=', 1)[0] ?? '').replaceAll('+', ' '));
  } catch {
    return pair;
  }
};

/** The UTM parameters of an address. */
export function readUtm(destination: string): Utm {
  const query = new URLSearchParams(split(destination)[1].join('&'));
  return Object.fromEntries(UTM.map((name) => [name, query.get(name) ?? ''])) as Utm;
}

/** Sets a UTM parameter of an address, or removes it when empty. The rest stays unchanged. */
export function writeUtm(destination: string, name: UtmName, value: string): string {
  const [head, pairs, fragment] = split(destination);
  const place = pairs.findIndex((pair) => nameOf(pair) === name);
  const kept = pairs.filter((pair, at) => at === place || nameOf(pair) !== name);
  const written = value === '' ? [] : [`${name}=${encodeURIComponent(value)}`];
  if (place === -1) kept.push(...written);
  else kept.splice(place, 1, ...written);
  return head + (kept.length > 0 ? `?${kept.join('&')}` : '') + fragment;
}

/** Converts an instant to the local time of a `datetime-local` input, and back. */
export const toLocalInput = (instant: string | null): string => {
  if (!instant) return '';
  const at = new Date(instant);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
};
export const fromLocalInput = (text: string): string | null => (text ? new Date(text).toISOString() : null);
