/**
 * Item actions as Velero's server calls them: `protocol/` is the plugin process (handshake, gRPC services), `actions/` what ours do.
 * Knows nothing of repositories and of how volumes are moved.
 */
export { openActions, type OpenActions } from './actions/index.ts';
export type { Backup, Plugin, PluginKind, ResourceSelector, Restore } from './contract.ts';
export { createHostLogger } from './protocol/host-log.ts';
export type { HostEnvironment } from './protocol/handshake.ts';
export { pluginsFor, type PluginSettings } from './plugins.ts';
export { PluginServer, type ServeOptions } from './protocol/serve.ts';
