/**
 * The times of a cron expression, as in Velero 1.18.3: github.com/netresearch/go-cron v0.15.0,
 * ParseStandard. No library on npm matches it: both days must match, ranges wrap, and time zones
 * skip or repeat hours. Error texts match too. So the code is our own, and test/golden/cron
 * compares it with go-cron. Knows nothing of schedules or backups.
 */
export { type Cron, latestTime, parseCron } from './cron.ts';
export { localZone, Zone } from './zone.ts';
