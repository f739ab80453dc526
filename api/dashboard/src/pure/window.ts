/** The window of a report, and the points of its series. */
import type { Interval, Point } from '../client/types';
import { addDays, addMonths, dateOf, hasPartHours, startOfDay } from './zone';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** The most points of one series, by the API. */
const MOST_POINTS = 1000;

/** The longest window of a series in a zone with part-hour offsets, by the API. */
const LONGEST_WITH_PART_HOURS = 31 * DAY;

export const RANGES = {
  '1h': 'Last hour',
  today: 'Today',
  '24h': 'Last 24 hours',
  '7d': 'Last 7 days',
  '30d': 'Last 30 days',
  '90d': 'Last 90 days',
  month: 'Month to date',
  '12mo': 'Last 12 months',
  all: 'All time',
  custom: 'Custom range',
} as const;

export type Range = keyof typeof RANGES;

export const isRange = (text: string | null): text is Range => text !== null && Object.hasOwn(RANGES, text);

/** `[start, end)` in milliseconds; without a start, since clicks are kept; without an end, until now. */
export interface Window {
  start: number | null;
  end: number | null;
}

const DATE = /^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$/;

/** The first and last day of a custom range, in order; null if one is not a date. */
export function customDays(from: string | null, to: string | null): [string, string] | null {
  if (!from || !to || !DATE.test(from) || !DATE.test(to)) return null;
  return from <= to ? [from, to] : [to, from];
}

/**
 * The window of a range, in the zone's calendar.
 *
 * `days` are the first and last day of a custom range, by default the last 30 days. `all` begins at `since`, the
 * time before which there are no clicks; null if unknown.
 */
export function windowOf(
  range: Range,
  now: number,
  zone: string,
  days: [string, string] | null = null,
  since: number | null = null,
): Window {
  const today = dateOf(now, zone);
  const from = (date: string): Window => ({ start: startOfDay(date, zone), end: null });
  switch (range) {
    case '1h':
      return { start: Math.floor((now - HOUR) / MINUTE + 1) * MINUTE, end: null };
    case 'today':
      return from(today);
    case '24h':
      return { start: Math.floor((now - DAY) / HOUR + 1) * HOUR, end: null };
    case '7d':
      return from(addDays(today, -6));
    case '30d':
      return from(addDays(today, -29));
    case '90d':
      return from(addDays(today, -89));
    case 'month':
      return from(addMonths(today, 0));
    case '12mo':
      return from(addMonths(today, -11));
    case 'all':
      return { start: since === null ? null : Math.floor(since / MINUTE) * MINUTE, end: null };
    case 'custom':
      if (!days) return from(addDays(today, -29));
      return { start: startOfDay(days[0], zone), end: days[1] >= today ? null : startOfDay(addDays(days[1], 1), zone) };
  }
}

/** The preceding window of the same length; null if there is none. */
export function previous(window: Window, now: number): { start: number; end: number } | null {
  if (window.start === null) return null;
  const end = Math.min(window.end ?? now, now);
  if (end <= window.start) return null;
  return { start: window.start - (end - window.start), end: window.start };
}

const LENGTH: Record<Interval, number> = { minute: MINUTE, hour: HOUR, day: DAY, month: 28 * DAY };

/** The suitable intervals of a window's series, shortest first. */
export function intervalsOf(window: Window, now: number, retentionDays: number): Interval[] {
  const start = window.start ?? now - (retentionDays + 1) * DAY;
  const length = Math.max(MINUTE, (window.end ?? now) - start);
  return (Object.keys(LENGTH) as Interval[]).filter((interval) => {
    // Both ends may fall within a point.
    const points = length / LENGTH[interval] + 2;
    return points <= MOST_POINTS && (length > LENGTH[interval] || interval === 'minute');
  });
}

/** The default interval: about 20 to 100 points, if possible. */
export function defaultInterval(choices: Interval[], window: Window, now: number): Interval {
  const length = window.start === null ? Infinity : (window.end ?? now) - window.start;
  const wish: Interval = length <= 2 * HOUR ? 'minute' : length <= 2 * DAY ? 'hour' : length <= 200 * DAY ? 'day' : 'month';
  return choices.includes(wish) ? wish : (choices.at(-1) ?? 'day');
}

/** The zone for a window's series: UTC for a long window in a part-hour zone. */
export function drawnZone(window: Window, now: number, zone: string, retentionDays: number): string {
  const start = window.start ?? now - (retentionDays + 1) * DAY;
  const end = window.end ?? now;
  return end - start > LONGEST_WITH_PART_HOURS && hasPartHours(zone, start, end) ? 'UTC' : zone;
}

/** Removes the points before the first click, if there is one. */
export const withoutLead = (points: Point[]): Point[] => points.slice(Math.max(0, points.findIndex((point) => point.total_clicks > 0)));

/** Whether the plan's retention cut the requested window. */
export const isCut = (asked: number | null, given: string): boolean =>
  asked !== null && Date.parse(given) - asked > 1000;

/** The change between two numbers in percent, rounded; null from zero, or if one is unknown. */
export const change = (before: number | null, now: number | null): number | null =>
  !before || now === null ? null : Math.round(((now - before) / before) * 100);

export const iso = (at: number | null): string | undefined => (at === null ? undefined : new Date(at).toISOString());
