/** The time, for texts like "5 minutes ago": it moves on every five seconds. */
let time = $state(Date.now());
setInterval(() => {
  if (!document.hidden) time = Date.now();
}, 5_000);

export const now = () => time;
