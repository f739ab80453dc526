/** The state of a webhook endpoint, and the outcomes of its attempts. */
import type { Endpoint } from '../client/types';

export type EndpointState = 'enabled' | 'failing' | 'disabled';

export const stateOf = (endpoint: Pick<Endpoint, 'status' | 'is_failing'>): EndpointState =>
  endpoint.status === 'disabled' ? 'disabled' : endpoint.is_failing ? 'failing' : 'enabled';

export const inTrouble = (endpoint: Pick<Endpoint, 'status' | 'is_failing'>): boolean => stateOf(endpoint) !== 'enabled';

const WHY: Record<string, string> = {
  blocked: 'Address not allowed',
  dns: 'Host not found',
  connect: 'Connection or TLS failed',
  timeout: 'Timed out',
  response: 'Incomplete response',
};

type Attempt = { status_code: number | null; error_class: string | null };

/** The reason of a failed attempt: "Status 500", "Timed out". */
export const resultOf = ({ status_code, error_class }: Attempt): string =>
  status_code !== null ? `Status ${status_code}` : (WHY[error_class ?? ''] ?? 'No response');

/** The same after a subject: "failed with status 500", "failed: timed out". */
export const failedHow = (attempt: Attempt): string => {
  const result = resultOf(attempt);
  const lower = result.charAt(0).toLowerCase() + result.slice(1);
  return attempt.status_code !== null ? `failed with ${lower}` : `failed: ${lower}`;
};
