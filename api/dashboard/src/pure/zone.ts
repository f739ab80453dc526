/** Calendars and clocks of time zones, from the browser's data. */

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

const formats = new Map<string, Intl.DateTimeFormat>();

function format(zone: string): Intl.DateTimeFormat {
  let known = formats.get(zone);
  if (!known) {
    known = new Intl.DateTimeFormat('en-US-u-ca-gregory-nu-latn', {
      timeZone: zone,
      hourCycle: 'h23',
      year: 'numeric',
      month: '2-digit',
      day: '2-digit',
      hour: '2-digit',
      minute: '2-digit',
      second: '2-digit',
    });
    formats.set(zone, known);
  }
  return known;
}

/** The zone's local time as if it were UTC, in milliseconds. */
function clock(at: number, zone: string): number {
  const part: Record<string, number> = {};
  for (const { type, value } of format(zone).formatToParts(at)) part[type] = Number(value);
  return Date.UTC(part.year!, part.month! - 1, part.day!, part.hour!, part.minute!, part.second!) + (((at % 1000) + 1000) % 1000);
}

/** The zone's offset from UTC, in milliseconds. */
export const offset = (at: number, zone: string): number => clock(at, zone) - at;

/** A date as `YYYY-MM-DD`. */
export const dateOf = (at: number, zone: string): string => new Date(clock(at, zone)).toISOString().slice(0, 10);

/** The date that many days later. */
export const addDays = (date: string, days: number): string =>
  new Date(Date.parse(`${date}T00:00:00Z`) + days * DAY).toISOString().slice(0, 10);

/** The first of the month that many months later. */
export function addMonths(date: string, months: number): string {
  const [year, month] = date.split('-').map(Number) as [number, number];
  return new Date(Date.UTC(year, month - 1 + months, 1)).toISOString().slice(0, 10);
}

/**
 * The first instant of a date, in milliseconds.
 *
 * There may be no midnight, or two, where the clock changes.
 */
export function startOfDay(date: string, zone: string): number {
  const midnight = Date.parse(`${date}T00:00:00Z`);
  const offsets = [offset(midnight - DAY, zone), offset(midnight + DAY, zone)];
  const found = offsets.map((ahead) => midnight - ahead).filter((at) => clock(at, zone) === midnight);
  if (found.length > 0) return Math.min(...found);
  // The first second whose date is this one or later.
  let [before, after] = [midnight - 2 * DAY, midnight + 2 * DAY];
  while (after - before > 1000) {
    const middle = Math.floor((before + after) / 2000) * 1000;
    if (dateOf(middle, zone) >= date) after = middle;
    else before = middle;
  }
  return after;
}

/** Whether the zone has a part-hour offset anywhere in a window. */
export const hasPartHours = (zone: string, start: number, end: number): boolean =>
  [start, (start + end) / 2, end].some((at) => offset(at, zone) % HOUR !== 0);

/** A zone's offset in words: "5:30 hours ahead of UTC". */
export function versusUtc(at: number, zone: string): string {
  const minutes = Math.round(offset(at, zone) / 60_000);
  const [whole, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `${whole}:${String(rest).padStart(2, '0')} hours ${minutes < 0 ? 'behind' : 'ahead of'} UTC`;
}

/** Whether the browser knows the zone. */
export function isZone(zone: string): boolean {
  try {
    format(zone);
    return true;
  } catch {
    return false;
  }
}

/** Present names of zones that some browsers list by former names. */
const RENAMED: Record<string, string> = {
  'America/Godthab': 'America/Nuuk',
  'Asia/Calcutta': 'Asia/Kolkata',
  'Asia/Katmandu': 'Asia/Kathmandu',
  'Asia/Rangoon': 'Asia/Yangon',
  'Asia/Saigon': 'Asia/Ho_Chi_Minh',
  'Atlantic/Faeroe': 'Atlantic/Faroe',
  'Europe/Kiev': 'Europe/Kyiv',
};

/** The zones to choose from, by their present names. */
export const zones = (): string[] => ['UTC', ...Intl.supportedValuesOf('timeZone').map((zone) => RENAMED[zone] ?? zone).sort()];
