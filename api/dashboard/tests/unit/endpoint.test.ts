import { describe, expect, it } from 'vitest';
import type { Failure } from '../../src/client/types';
import { failedHow, resultOf, stateOf } from '../../src/pure/endpoint';
import { attemptId, byDelivery, isOnItsWay } from '../../src/pure/failures';

describe('an endpoint', () => {
  it('whose newest attempt failed is failing, whatever the answer was', () => {
    expect(stateOf({ status: 'enabled', is_failing: false })).toBe('enabled');
    expect(stateOf({ status: 'enabled', is_failing: true })).toBe('failing');
    expect(stateOf({ status: 'disabled', is_failing: false })).toBe('disabled');
  });

  it('shows the outcome of an attempt', () => {
    expect(resultOf({ status_code: 400, error_class: null })).toBe('Status 400');
    expect(failedHow({ status_code: 500, error_class: null })).toBe('failed with status 500');
    expect(failedHow({ status_code: null, error_class: 'timeout' })).toBe('failed: timed out');
    expect(failedHow({ status_code: null, error_class: 'what is new' })).toBe('failed: no response');
  });
});

describe('a failed delivery', () => {
  const NOW = Date.parse('2026-11-21T09:30:00Z');
  const attempt = (more: Partial<Failure>): Failure => ({
    delivery_id: 'd', event: 'click.created', attempt: 1, max_attempts: 5, status_code: 500, error_class: null, response_body: '',
    duration_ms: 5, attempted_at: '2026-11-21T09:29:00Z', next_attempt_at: null, delivered_at: null, ...more,
  });
  const isOn = (one: Failure, resent = new Map<string, string>()) => isOnItsWay(byDelivery([one])[0]!, resent, NOW);

  it('is on its way while another attempt is planned, and no longer than that', () => {
    expect(isOn(attempt({}))).toBe(false);
    expect(isOn(attempt({ next_attempt_at: '2026-11-21T09:30:10Z' }))).toBe(true);
    expect(isOn(attempt({ next_attempt_at: '2026-11-21T09:29:58Z' }))).toBe(true);
    expect(isOn(attempt({ next_attempt_at: '2026-11-21T09:20:00Z' }))).toBe(false);
    expect(isOn(attempt({ next_attempt_at: '2026-11-21T09:30:10Z', delivered_at: '2026-11-21T09:29:59Z' }))).toBe(false);
  });

  it('that was sent again is on its way until something came of that', () => {
    const before = attempt({});
    const resent = new Map([['d', attemptId(before)]]);
    expect(isOn(before, resent)).toBe(true);
    expect(isOn(attempt({ attempted_at: '2026-11-21T09:30:00Z' }), resent)).toBe(false);
    expect(isOn({ ...before, delivered_at: '2026-11-21T09:30:00Z' }, resent)).toBe(false);
  });
});
