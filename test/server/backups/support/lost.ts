import { silentLogger, systemClock } from '../../../../src/base/index.ts';
import { OperationMap } from '../../../../src/item-operations/index.ts';
import { Discovery, type KubeClient } from '../../../../src/kube/index.ts';
import type { VolumeSnapshotter } from '../../../../src/plugin/index.ts';
import { BACKUP_RUNS } from '../../../../src/server/backups/backup-kind.ts';
import { SharedBackups } from '../../../../src/server/index.ts';
import type { FileWriters } from '../../../../src/server/runs/file-writers.ts';
import { RunsView } from '../../../../src/server/runs/watched-runs.ts';
import type { ActionSessions, Buckets } from '../../../../src/server/backups/contract.ts';
import { LostBackups, type RemoveSnapshots } from '../../../../src/server/backups/lost-backups.ts';
import { backupOperationStore } from '../../../../src/server/operations/operation-stores.ts';
import { UnderWayNotes } from '../../../../src/server/backups/running-backups.ts';

export interface LostOptions {
  readonly namespace: string;
  /** The API server, and the client of the tested process. */
  readonly client: KubeClient;
  readonly seen: KubeClient;
  readonly buckets: Buckets;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
  /** Called with the requests to plugins. */
  readonly say: (text: string) => Promise<void>;
  readonly removeSnapshots: RemoveSnapshots;
  readonly writers?: FileWriters;
}

/** The handler of lost backups in a leading process, after its first look. */
export async function openLost(options: LostOptions) {
  const { namespace, client, seen, buckets, assertLeading, signal, say, removeSnapshots } = options;
  const sessions: ActionSessions = {
    open: () =>
      Promise.resolve({
        loadActions: () => Promise.resolve({ actions: [], blockActions: [] }),
        asker: {
          ask: () => Promise.resolve({ kind: 'unasked', error: 'later', isLasting: false }),
          cancel: ({ spec }) => say(`cancel ${spec.operationID}`),
        },
        snapshotter: () =>
          ({ deleteSnapshot: (id: string) => say(`delete ${id}`) }) as unknown as VolumeSnapshotter,
        [Symbol.asyncDispose]: () => Promise.resolve(),
      }),
  };
  const clock = systemClock;
  const lead = { client: seen, logger: silentLogger, namespace, clock, signal, assertLeading };
  const shared = new SharedBackups({ client, logger: silentLogger, namespace });
  const backups = new RunsView({ kind: BACKUP_RUNS, lead, shared });
  const watched = await backups.open();
  const lost = new LostBackups({
    lead,
    backups,
    notes: new UnderWayNotes(lead),
    buckets,
    sessions,
    removeSnapshots,
    writers: options.writers ?? shared.writers,
    operations: new OperationMap({ store: backupOperationStore(seen, namespace, buckets) }),
    discovery: () => Discovery.open(client),
    snapshotLocations: () =>
      Promise.resolve([{ metadata: { name: 'l' }, spec: { provider: 'x' } } as never]),
    onRemoved: () => undefined,
  });
  await lost.look();
  const running = lost.run();
  return {
    lost,
    /** Resolves after the abort of the signal. */
    ended: async (): Promise<void> => {
      await running;
      await watched[Symbol.asyncDispose]();
    },
  };
}
