import { describe, expect, it } from 'vitest';
import { addDays, addMonths, dateOf, hasPartHours, isZone, offset, startOfDay, versusUtc, zones } from '../../src/pure/zone';

const iso = (at: number) => new Date(at).toISOString().slice(0, 19);

describe('zones', () => {
  it('a day begins at the zone’s midnight, in summer and in winter', () => {
    expect(iso(startOfDay('2026-07-01', 'Europe/Berlin'))).toBe('2026-06-30T22:00:00');
    expect(iso(startOfDay('2026-11-21', 'Europe/Berlin'))).toBe('2026-11-20T23:00:00');
    expect(iso(startOfDay('2026-11-21', 'America/Los_Angeles'))).toBe('2026-11-21T08:00:00');
    expect(iso(startOfDay('2026-11-21', 'Pacific/Kiritimati'))).toBe('2026-11-20T10:00:00');
    expect(iso(startOfDay('2026-11-21', 'Asia/Kathmandu'))).toBe('2026-11-20T18:15:00');
  });

  it('the days around a change of the clocks have 23 and 25 hours', () => {
    const hours = (date: string) =>
      (startOfDay(addDays(date, 1), 'Europe/Berlin') - startOfDay(date, 'Europe/Berlin')) / 3_600_000;
    expect([hours('2026-03-28'), hours('2026-03-29'), hours('2026-10-25')]).toEqual([24, 23, 25]);
  });

  it('a day without a midnight begins when the clocks have gone on, one with two at the first', () => {
    expect(iso(startOfDay('2026-04-24', 'Africa/Cairo'))).toBe('2026-04-23T22:00:00');
    expect(iso(startOfDay('2026-11-01', 'America/Havana'))).toBe('2026-11-01T04:00:00');
    expect(iso(startOfDay('2011-12-31', 'Pacific/Apia'))).toBe('2011-12-30T10:00:00');
  });

  it('the date is the one of the zone’s calendar', () => {
    const at = Date.parse('2026-11-21T23:30:00Z');
    expect([dateOf(at, 'UTC'), dateOf(at, 'Asia/Tokyo'), dateOf(at, 'America/New_York')]).toEqual([
      '2026-11-21',
      '2026-11-22',
      '2026-11-21',
    ]);
  });

  it('dates are added up over months, years and leap days', () => {
    expect(addDays('2028-02-28', 1)).toBe('2028-02-29');
    expect(addDays('2026-01-01', -1)).toBe('2025-12-31');
    expect(addMonths('2026-01-31', -1)).toBe('2025-12-01');
    expect(addMonths('2026-11-21', 0)).toBe('2026-11-01');
  });

  it('tells zones with parts of an hour, also where only summer has them', () => {
    const [winter, summer] = [Date.parse('2026-01-01T00:00:00Z'), Date.parse('2026-07-01T00:00:00Z')];
    expect(hasPartHours('Asia/Kolkata', winter, winter)).toBe(true);
    expect(hasPartHours('Europe/Berlin', winter, summer)).toBe(false);
    expect(hasPartHours('Australia/Lord_Howe', summer, summer)).toBe(true);
    expect(hasPartHours('Australia/Lord_Howe', winter, summer)).toBe(true);
    expect(offset(winter, 'Asia/Kolkata')).toBe(19_800_000);
  });

  it('say how far they are from UTC', () => {
    const winter = Date.parse('2026-01-01T00:00:00Z');
    expect(versusUtc(winter, 'Asia/Kolkata')).toBe('5:30 hours ahead of UTC');
    expect(versusUtc(winter, 'America/St_Johns')).toBe('3:30 hours behind UTC');
    expect(versusUtc(winter, 'Asia/Kathmandu')).toBe('5:45 hours ahead of UTC');
  });

  it('are listed once each, by names that are known', () => {
    const all = zones();
    expect(all).toContain('Asia/Kolkata');
    expect(all).not.toContain('Asia/Calcutta');
    expect(new Set(all).size).toBe(all.length);
    expect(all.every(isZone)).toBe(true);
  });

  it('rejects invalid zones', () => {
    expect(isZone('Europe/Berlin')).toBe(true);
    expect(isZone('Europe/Atlantis')).toBe(false);
  });
});
