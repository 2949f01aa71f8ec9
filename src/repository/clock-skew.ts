import { MINUTE_NS, type Nanoseconds } from '../base/index.ts';

/** Kopia does not trust blob times if clocks differ by more (maintenance_run.go, maxClockSkew). */
export const CLOCK_SKEW_NS_MAX = 5n * MINUTE_NS;

/** The difference of two clocks. */
export const clockSkew = (a: Nanoseconds, b: Nanoseconds): Nanoseconds => (a > b ? a - b : b - a);
