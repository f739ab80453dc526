/** The time, updated every five seconds, for texts like "5 minutes ago". */
let time = $state(Date.now());
setInterval(() => {
  if (!document.hidden) time = Date.now();
}, 5_000);

export const now = () => time;
