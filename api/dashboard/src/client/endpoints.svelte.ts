/** Endpoints of the present workspace that need somebody, for the navigation. */
import { inTrouble } from '../pure/endpoint';
import { get } from './request';
import type { Endpoint } from './types';

let asked = '';
let count = $state(0);

export const troubled = {
  /** How many are disabled or failing; 0 where that is not known. */
  get count() {
    return count;
  },
};

/** Counts them anew. Quiet where it cannot: the page of the endpoints says what is wrong. */
export async function countTroubled(workspace = asked) {
  if (asked !== workspace) count = 0;
  asked = workspace;
  if (!workspace) return;
  try {
    const { webhooks } = await get<{ webhooks: Endpoint[] }>(`/workspaces/${workspace}/webhooks`, { limit: 100 });
    if (asked === workspace) count = webhooks.filter(inTrouble).length;
  } catch {
    // See above.
  }
}

/** Forgets them, where the plan has no webhooks. */
export function forgetTroubled() {
  asked = '';
  count = 0;
}
