/**
 * The wiring of the server: makes the controllers, with the dependencies that they share. Knows no
 * flags and no terminal. The command line turns flags into settings, and opens repositories.
 */
export { openBackups, type OpenedBackups } from './backups.ts';
export { type Common, locationBuckets, type OpenRepository, serverClock } from './common.ts';
export { openControllers } from './controllers.ts';
export { openStatusPage, type PageSources, type StatusPageOptions } from './page.ts';
export { ServerPlugins } from './plugins.ts';
export { GLOBAL_POLICIES, notedPolicies, serverPoliciesOf } from './policies.ts';
export { openRestores, restorePoliciesOf } from './restores.ts';
export type { BackupSettings, RestoreSettings, ServerSettings } from './settings.ts';
