/** Failed attempts, grouped by delivery. */
import type { Failure } from '../client/types';

export interface FailedDelivery {
  id: string;
  /** Newest first. */
  attempts: Failure[];
}

/** A unique key of an attempt. After a redelivery, attempt numbers repeat. */
export const attemptId = (failure: Failure): string => `${failure.delivery_id} ${failure.attempted_at} ${failure.attempt}`;

/** How long to wait for a planned attempt after its time, in milliseconds. */
const PATIENCE = 300_000;

/**
 * Whether a delivery is pending: another attempt is planned, or a redelivery has no outcome yet.
 *
 * `resent` maps redelivered deliveries to their newest attempt before.
 */
export function isOnItsWay({ id, attempts }: FailedDelivery, resent: ReadonlyMap<string, string>, now: number): boolean {
  const last = attempts[0]!;
  if (last.delivered_at) return false;
  if (resent.get(id) === attemptId(last)) return true;
  return last.next_attempt_at !== null && Date.parse(last.next_attempt_at) > now - PATIENCE;
}

/** Groups attempts, newest first, by delivery, in the order of their newest attempts. */
export function byDelivery(failures: Failure[]): FailedDelivery[] {
  const deliveries = new Map<string, FailedDelivery>();
  for (const failure of failures) {
    const known = deliveries.get(failure.delivery_id);
    if (known) known.attempts.push(failure);
    else deliveries.set(failure.delivery_id, { id: failure.delivery_id, attempts: [failure] });
  }
  return [...deliveries.values()];
}
