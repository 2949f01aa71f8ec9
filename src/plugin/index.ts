/**
 * Velero's plugin system. `protocol/` is the plugin process (handshake, gRPC services). `actions/`
 * are our item actions. `host/` is the server side, which starts any plugins and calls them. Knows
 * nothing of repositories and data movement.
 */
export { openActions, type OpenActions } from './actions/index.ts';
export { inPlacePolicyOf, isInPlaceOperation } from './actions/pvc-in-place.ts';
export { isWaitNote } from './actions/movements/unclaimed-movements.ts';
export { removeLostSnapshots } from './actions/snapshots/lost-snapshots.ts';
export { CANCEL_ANNOTATION, MADE_BY_ANNOTATION, MOVED } from './actions/velero-names.ts';
export { snapshotHindrances } from './actions/snapshots/snapshot-class.ts';
export {
  choicesOf,
  globalPoliciesOf,
  namespacesOf,
  ownPoliciesOf,
  PinnedPolicies,
  policiesOfBackup,
  readsOf,
  VolumeHelpers,
} from './backup-policies.ts';
export type {
  ObjectStore,
  OperationProgress,
  Plugin,
  ResourceIdentifier,
  RestoreItemAction,
  VolumeSnapshotter,
} from './contract.ts';
export { type HostOptions, PluginHost, type PluginManager } from './host/plugin-host.ts';
export type { HostedAction } from './host/remote-plugin.ts';
export { createHostLogger } from './protocol/host-log.ts';
export { pluginsFor, podVolumeRestorePlugin } from './plugins.ts';
export { PluginServer } from './protocol/serve.ts';
