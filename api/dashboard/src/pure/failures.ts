/** Failed attempts, put together by what they tried to deliver. */
import type { Failure } from '../client/types';

export interface FailedDelivery {
  id: string;
  /** Newest first. */
  attempts: Failure[];
}

/** What tells an attempt from every other. A delivery that was sent again has a second attempt of the same number. */
export const attemptId = (failure: Failure): string => `${failure.delivery_id} ${failure.attempted_at} ${failure.attempt}`;

/** How long after its time a planned attempt is waited for, in milliseconds. */
const PATIENCE = 300_000;

/**
 * Whether more is to come of a delivery: another attempt is planned, or it was sent again and nothing came of that yet.
 *
 * `resent` has deliveries that were sent again, with the ids of what was their newest attempt before.
 */
export function isOnItsWay({ id, attempts }: FailedDelivery, resent: ReadonlyMap<string, string>, now: number): boolean {
  const last = attempts[0]!;
  if (last.delivered_at) return false;
  if (resent.get(id) === attemptId(last)) return true;
  return last.next_attempt_at !== null && Date.parse(last.next_attempt_at) > now - PATIENCE;
}

/** The deliveries of a list of attempts that is newest first, in the order of their newest attempts. */
export function byDelivery(failures: Failure[]): FailedDelivery[] {
  const deliveries = new Map<string, FailedDelivery>();
  for (const failure of failures) {
    const known = deliveries.get(failure.delivery_id);
    if (known) known.attempts.push(failure);
    else deliveries.set(failure.delivery_id, { id: failure.delivery_id, attempts: [failure] });
  }
  return [...deliveries.values()];
}
