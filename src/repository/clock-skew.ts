import { MINUTE_NS, type Nanoseconds } from '../base/index.ts';

/** Kopia refuses to go by blob times when clocks differ more (maintenance_run.go, maxClockSkew). */
export const CLOCK_SKEW_NS_MAX = 5n * MINUTE_NS;

/** How far two clocks are apart. */
export const clockSkew = (a: Nanoseconds, b: Nanoseconds): Nanoseconds => (a > b ? a - b : b - a);
