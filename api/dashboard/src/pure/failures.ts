/** Failed attempts, put together by what they tried to deliver. */
import type { Failure } from '../client/types';

export interface FailedDelivery {
  id: string;
  /** Newest first. */
  attempts: Failure[];
}

/** What tells an attempt from every other. A delivery that was sent again has a second attempt of the same number. */
export const attemptId = (failure: Failure): string => `${failure.delivery_id} ${failure.attempted_at} ${failure.attempt}`;

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
