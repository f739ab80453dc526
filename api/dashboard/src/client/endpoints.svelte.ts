/** Endpoints of the workspace that need attention, for the navigation. */
import { inTrouble } from '../pure/endpoint';
import { get } from './request';
import type { Endpoint } from './types';

let asked = '';
let count = $state(0);

export const troubled = {
  /** How many are disabled or failing; 0 if unknown. */
  get count() {
    return count;
  },
};

/** Counts them. Silent on errors, which the page of endpoints shows. */
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

/** Resets the count, on plans without webhooks and for viewers. */
export function forgetTroubled() {
  asked = '';
  count = 0;
}
