const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const YEAR = 365 * DAY;

/** `5s`, `3m12s`, `2d4h`: the API server's ages (k8s.io/apimachinery, HumanDuration). */
export function humanDuration(ms: number): string {
  const seconds = Math.trunc(ms / 1000);
  if (seconds < -1) return '<invalid>';
  if (seconds < 0) return '0s';
  if (seconds < 2 * MINUTE) return `${seconds}s`;
  if (seconds < 10 * MINUTE) return inTwo(seconds, [MINUTE, 'm'], [1, 's']);
  if (seconds < 3 * HOUR) return `${Math.floor(seconds / MINUTE)}m`;
  if (seconds < 8 * HOUR) return inTwo(seconds, [HOUR, 'h'], [MINUTE, 'm']);
  if (seconds < 2 * DAY) return `${Math.floor(seconds / HOUR)}h`;
  if (seconds < 8 * DAY) return inTwo(seconds, [DAY, 'd'], [HOUR, 'h']);
  if (seconds < 2 * YEAR) return `${Math.floor(seconds / DAY)}d`;
  if (seconds < 8 * YEAR) return inTwo(seconds, [YEAR, 'y'], [DAY, 'd']);
  return `${Math.floor(seconds / YEAR)}y`;
}

type Unit = readonly [seconds: number, name: string];

/** Omits the smaller unit if it is 0. */
function inTwo(seconds: number, [large, largeName]: Unit, [small, smallName]: Unit): string {
  const rest = Math.floor((seconds % large) / small);
  const first = `${Math.floor(seconds / large)}${largeName}`;
  return rest === 0 ? first : `${first}${rest}${smallName}`;
}
