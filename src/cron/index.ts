/**
 * The times of a cron expression, as Velero 1.18.3 reads them: with github.com/netresearch/go-cron
 * v0.15.0, ParseStandard. No library on npm has its corners (both days must match, ranges that
 * wrap, what happens in hours that a time zone skips or doubles, its error texts), so this is our
 * own, held to the real one by test/golden/cron. Knows nothing of schedules or backups.
 */
export { type Cron, latestTime, parseCron } from './cron.ts';
export { localZone, Zone } from './zone.ts';
