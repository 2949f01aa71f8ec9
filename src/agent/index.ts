/** Program of the DaemonSet: the agent that drives CRs, and the data mover of hosting pods. */
export { Agent, type AgentOptions } from './agent.ts';
export { FENCE_VARIABLE } from './mover/named-mover.ts';
export { FENCE_MARGIN_MS } from './mover/fence.ts';
export { type DataMoverOptions, runDataMover } from './mover/data-mover.ts';
export type { MovedKind } from './mover/moved-kinds.ts';
export type { EndedMoverLog, MoverLogStore } from './mover/mover-logs.ts';
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
} from './status/verified-repositories.ts';
export {
  loadSnapshotHolders,
  type SnapshotHolder,
  type SnapshotHolders,
} from './status/snapshot-holders.ts';
export {
  describeMovements,
  type MovementDescription,
  nodesOfAgents,
  type StatusWorld,
} from './status/status.ts';
export {
  assertReadable,
  readStatus,
  StatusFollower,
  type StatusQuery,
} from './status/status-source.ts';
export { inPlaceReportOf, inPlaceState } from './mover/in-place-report.ts';
export { dataMoversOf, isMoverServed } from './status/serving-agents.ts';
export { type Unserved, whyUnserved } from './status/unserved-movements.ts';
export { averageRate, type RateOf, RecentRates, secondsLeft } from './status/rates.ts';
