import { join } from 'node:path';
import type { PolicySummary } from '../../backup/index.ts';
import { loadSnapshotLocations, operationTimeoutNs } from '../../backup-volumes/index.ts';
import { CodedError } from '../../base/index.ts';
import { OperationMap } from '../../item-operations/index.ts';
import { type Backup, Discovery } from '../../kube/index.ts';
import { PinnedPolicies } from '../../plugin/index.ts';
import { movingRules, type VolumePolicies } from '../../volume-policy/index.ts';
import {
  BackupMetrics,
  backupOperationStore,
  DeletionMetrics,
  HostSessions,
  type LocationBuckets,
  type TimeoutOf,
} from '../index.ts';
import { type Common, hasAllVersions, lazily, locationBuckets, serverClock } from './common.ts';
import { serverPoliciesOf } from './policies.ts';
import type { BackupSettings } from './settings.ts';

export type SnapshotLocations = (
  names: readonly string[],
  signal: AbortSignal,
) => ReturnType<typeof loadSnapshotLocations>;

/** Dependencies that the controllers of backups share. */
export interface BackupParts {
  readonly common: Common;
  readonly settings: BackupSettings;
  readonly directory: string;
  readonly buckets: LocationBuckets;
  readonly metrics: BackupMetrics;
  readonly deletionMetrics: DeletionMetrics;
  readonly operations: OperationMap;
  readonly sessions: HostSessions;
  readonly discovery: () => Promise<Discovery>;
  readonly snapshotLocations: SnapshotLocations;
  readonly policies: BackupPolicies;
  readonly timeoutNsOf: TimeoutOf<Backup>;
}

export function backupParts(
  common: Common,
  features: string | undefined,
  settings: BackupSettings,
): BackupParts {
  const { client, logger, namespace, registry, plugins, backups, reads } = common;
  const directory = join(common.directory, 'backups');
  const buckets = locationBuckets(common, directory);
  const store = backupOperationStore(client, namespace, buckets);
  const timeouts = {
    ofActions: settings.timeoutsOfActions,
    podVolumeMs: settings.podVolumeTimeoutMs,
  };
  return {
    common,
    settings,
    directory,
    buckets,
    metrics: new BackupMetrics(registry, {
      backups: () => backups.list(),
      hasCsi: settings.hasCsi,
    }),
    deletionMetrics: new DeletionMetrics(registry),
    operations: new OperationMap({ store, logger, clock: serverClock(client) }),
    sessions: new HostSessions(
      reads.client,
      () => {
        if (!plugins) throw new CodedError('PLUGIN_FOLDER', 'no plugins were opened');
        return plugins.host();
      },
      logger,
    ),
    discovery: lazily(() =>
      Discovery.open(client, { hasAllVersions: hasAllVersions(features), logger }),
    ),
    snapshotLocations: (names, signal) =>
      loadSnapshotLocations(names, {
        client,
        namespace,
        signal,
        directory: join(directory, 'snapshot-credentials'),
      }),
    policies: new BackupPolicies(common, settings.globalPolicies),
    timeoutNsOf: (action, backup, askedNs) => operationTimeoutNs(action, backup, askedNs, timeouts),
  };
}

/** The policies of each running backup, which stay the same until its end. */
class BackupPolicies {
  readonly #common: Common;
  readonly #global: string | undefined;
  readonly #pinned: PinnedPolicies;

  constructor(common: Common, global: string | undefined) {
    this.#common = common;
    this.#global = global;
    this.#pinned = common.plugins?.policies ?? new PinnedPolicies();
  }

  /** Throws if the policies for all backups are unreadable. */
  async check(): Promise<void> {
    const { client, namespace } = this.#common;
    if (this.#global === undefined) return;
    const probe = { metadata: { namespace, name: '' }, spec: {} } as Backup;
    await serverPoliciesOf(client, probe, this.#global, { isPatient: false });
  }

  of(backup: Backup): Promise<VolumePolicies | undefined> {
    return this.#pinned.of(backup.metadata.uid, () => this.#read(backup));
  }

  async renew(backup: Backup): Promise<PolicySummary | undefined> {
    const policies = await this.#pinned.renew(backup.metadata.uid, () => this.#read(backup));
    if (!policies) return undefined;
    const hasFineFilters =
      policies.namespacedFilterPolicies !== undefined ||
      policies.clusterScopedFilterPolicy !== undefined;
    return {
      hasFineFilters,
      movingRules: movingRules(policies),
      hasIncludeExclude: policies.includeExcludePolicy !== undefined,
    };
  }

  #read(backup: Backup): Promise<VolumePolicies | undefined> {
    return serverPoliciesOf(this.#common.client, backup, this.#global);
  }
}
