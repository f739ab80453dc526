/** Formats numbers, times and names in the browser's language. */
import type { Interval } from '../client/types';

/** The language; undefined is the browser's. Tests set one. */
let language: string | undefined;

/** Sets the language. */
export function speak(tag: string | undefined) {
  language = tag;
  cache.clear();
}

const cache = new Map<string, unknown>();

/** Formatters are expensive, so they are cached. */
function once<T>(name: string, make: () => T): T {
  if (!cache.has(name)) cache.set(name, make());
  return cache.get(name) as T;
}

/** A count in full; a dash if it is unknown. */
export const count = (value: number | null | undefined): string =>
  value == null ? '–' : once('count', () => new Intl.NumberFormat(language)).format(value);

/** A short count: 12,345 is 12.3K. */
export const shortCount = (value: number | null | undefined): string => {
  if (value == null) return '–';
  if (value < 10_000) return count(value);
  const make = () => new Intl.NumberFormat(language, { notation: 'compact', maximumFractionDigits: 1 });
  return once('short', make).format(value);
};

/** A rate, given in percent. */
export const percent = (value: number | null | undefined, digits = 2): string => {
  if (value == null) return '–';
  const make = () => new Intl.NumberFormat(language, { style: 'percent', maximumFractionDigits: digits });
  return once(`percent${digits}`, make).format(value / 100);
};

/** A change in percent, with its sign. */
export const signed = (value: number): string => {
  const make = () => new Intl.NumberFormat(language, { style: 'percent', signDisplay: 'exceptZero', maximumFractionDigits: 0 });
  return once('signed', make).format(value / 100);
};

/** `one` or `many` after a number. */
export const plural = (value: number, one: string, many = `${one}s`): string =>
  `${count(value)} ${value === 1 ? one : many}`;

const times = (zone: string, name: string, options: Intl.DateTimeFormatOptions) =>
  once(`${name} ${zone}`, () => new Intl.DateTimeFormat(language, { timeZone: zone, ...options }));

type Time = string | number;
const millis = (time: Time) => (typeof time === 'string' ? Date.parse(time) : time);

/** A day: Nov 21, 2026. */
export const day = (time: Time, zone: string): string =>
  times(zone, 'day', { dateStyle: 'medium' }).format(millis(time));

/** A day and the time of it: Nov 21, 2026, 9:30 AM. */
export const moment = (time: Time, zone: string): string =>
  times(zone, 'moment', { dateStyle: 'medium', timeStyle: 'short' }).format(millis(time));

/** A time of the day with its seconds. */
export const clock = (time: Time, zone: string): string =>
  times(zone, 'clock', { timeStyle: 'medium' }).format(millis(time));

/** The label of a point: as much of its time as the interval needs. */
export function pointLabel(start: Time, interval: Interval, zone: string): string {
  const options: Record<Interval, Intl.DateTimeFormatOptions> = {
    minute: { hour: 'numeric', minute: '2-digit' },
    hour: { weekday: 'short', month: 'short', day: 'numeric', hour: 'numeric', minute: '2-digit' },
    day: { weekday: 'short', month: 'short', day: 'numeric', year: 'numeric' },
    month: { month: 'long', year: 'numeric' },
  };
  return times(zone, `point ${interval}`, options[interval]).format(millis(start));
}

/** The label of an axis: shorter, without what its neighbours show. */
export function axisLabel(at: number, interval: Interval, zone: string, spansDays: boolean): string {
  if (interval === 'month') return times(zone, 'axis month', { month: 'short', year: '2-digit' }).format(at);
  if (interval === 'day') return times(zone, 'axis day', { month: 'short', day: 'numeric' }).format(at);
  if (spansDays) return times(zone, 'axis days', { weekday: 'short', hour: 'numeric' }).format(at);
  return times(zone, 'axis clock', { hour: 'numeric', minute: '2-digit' }).format(at);
}

const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ['year', 365 * 86_400],
  ['month', 30 * 86_400],
  ['day', 86_400],
  ['hour', 3_600],
  ['minute', 60],
  ['second', 1],
];

/** How long ago, or how long until: "5 minutes ago". */
export function relative(time: Time, now: number): string {
  const seconds = Math.round((millis(time) - now) / 1000);
  const [unit, length] = STEPS.find(([, length]) => Math.abs(seconds) >= length) ?? ['second', 1];
  const make = () => new Intl.RelativeTimeFormat(language, { numeric: 'auto' });
  return once('relative', make).format(Math.trunc(seconds / length), unit);
}

/** A country's name from its two letters; other text stays unchanged. */
export function country(code: string): string {
  if (!/^[A-Z]{2}$/.test(code)) return code;
  return once('country', () => new Intl.DisplayNames(language, { type: 'region' })).of(code) ?? code;
}

/** A duration. */
export const duration = (ms: number): string =>
  ms < 1000 ? `${count(Math.round(ms))} ms` : `${count(Math.round(ms / 100) / 10)} s`;

/** Days in larger units: 365 days are 12 months, 1,095 are 3 years. */
export function days(value: number): string {
  if (value % 365 === 0) return value === 365 ? '12 months' : plural(value / 365, 'year');
  return plural(value, 'day');
}

/** A destination without scheme and final slash. */
export const withoutScheme = (url: string): string => url.replace(/^https?:\/\//i, '').replace(/^([^/?#]+)\/$/, '$1');

/** The largest plan. */
export const LARGEST_PLAN = 'business';

/** A plan's display name. */
export const planName = (plan: string): string => plan.charAt(0).toUpperCase() + plan.slice(1);

/** Display names of device types and other values. */
export const DEVICES: Record<string, string> = { desktop: 'Desktop', mobile: 'Mobile', tablet: 'Tablet', other: 'Other' };
export const CLASSES: Record<string, string> = { human: 'Human', bot: 'Bot', preview: 'Preview', all: 'All' };
