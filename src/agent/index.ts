/** Program of the DaemonSet: the agent that drives CRs, and the data mover of hosting pods. */
export { Agent, type AgentOptions } from './agent.ts';
export { FENCE_VARIABLE } from './named-mover.ts';
export { FENCE_MARGIN_MS } from './fence.ts';
export { type DataMoverOptions, runDataMover } from './data-mover.ts';
export type { MovedKind } from './moved.ts';
export type { EndedMoverLog, MoverLogStore } from './mover-logs.ts';
export {
  cacheLimitBytes,
  concurrencyOf,
  moverSettingsIn,
  excludeConfigIn,
  type NodeAgentConfig,
  type NodeSelector,
  parseNodeAgentConfig,
} from './node-agent-config.ts';
export {
  assertVerified,
  describeDamage,
  type VerifiedRepository,
  verifyBackupRepositories,
} from './verified-repositories.ts';
export {
  loadSnapshotHolders,
  type SnapshotHolder,
  type SnapshotHolders,
} from './snapshot-holders.ts';
export {
  describeMovements,
  type MovementDescription,
  nodesOfAgents,
  type StatusWorld,
} from './status.ts';
export { assertReadable, readStatus, StatusFollower, type StatusQuery } from './status-source.ts';
export { inPlaceReportOf, inPlaceState } from './in-place-report.ts';
export { dataMoversOf, isMoverServed } from './serving.ts';
export { type Unserved, whyUnserved } from './unserved.ts';
