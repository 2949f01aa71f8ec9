import { silentLogger } from '../../../../src/base/index.ts';
import {
  BackupArchive,
  type signingBy,
  signWith,
  type BackupVolumeInfo,
  RestoreArchive,
  TarballWriter,
} from '../../../../src/archive/index.ts';
import type { BackupAction } from '../../../../src/backup/index.ts';
import {
  archiveStore,
  type BegunOperation,
  newOperation,
  OperationMap,
  orderedRecord,
} from '../../../../src/item-operations/index.ts';
import type { Backup, KubeClient, KubeObject, Resource } from '../../../../src/kube/index.ts';
import { statusOf } from '../../../../src/server/backups/backup-kind.ts';
import { finalize } from '../../../../src/server/backups/finalize/finalize.ts';
import { operationsStep } from '../../../../src/server/backups/operations/operations-step.ts';
import { FileWriters } from '../../../../src/server/runs/file-writers.ts';
import { FakeCluster } from '../../../backup/support/cluster.ts';
import {
  AfterRunWorld,
  calm,
  type Outside,
  type Place,
} from '../../operations/support/after-run.ts';

export const SUBJECT = { kind: 'Backup', name: 'b1', uid: 'u1' } as const;
export const ITEM = { group: '', resource: 'configmaps', namespace: 'app', name: 'a' };
const REF = { namespace: 'velero', name: 'b1' };

/** A Backup after its run, its bucket, and its operations' results. Servers can be restarted. */
export class World extends AfterRunWorld {
  readonly cluster = new FakeCluster().namespaces('app').add('configmaps', {
    metadata: { name: 'a', namespace: 'app', uid: 'item-a' },
    data: { now: 'new' },
  });
  /** Sizes of rewritten tarballs. */
  readonly tarballs: number[] = [];
  readonly labelled: KubeObject[] = [];
  /** The signing keys of servers. */
  signing: Awaited<ReturnType<typeof signingBy>>;
  readonly actions: BackupAction[] = [];
  backup: Backup = {
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: {
      ...REF,
      uid: 'u1',
      resourceVersion: '1',
      creationTimestamp: '2026-11-21T01:00:00Z',
    },
    spec: { storageLocation: 'default' },
  };

  constructor(phase = 'WaitingForPluginOperations', place: Place = {}) {
    super(place);
    this.say({ phase, errors: 0, warnings: 0 });
  }

  say(status: object): void {
    this.backup = { ...this.backup, status: { ...this.backup.status, ...status } };
  }

  get status() {
    return statusOf(this.backup);
  }

  /** Leaves the state of a finished run. */
  async begin(
    scratch: string,
    operations: readonly BegunOperation[],
    volumeInfos: readonly BackupVolumeInfo[] = [],
  ): Promise<void> {
    await using writer = await TarballWriter.begin(scratch, this.clock);
    for (const [path, text] of [
      ['resources/configmaps/namespaces/app/a.json', '{"data":{"now":"old"}}'],
      ['resources/configmaps/namespaces/app/b.json', '{"b":1}'],
    ] as const) {
      await writer.add(path, Buffer.from(text));
    }
    await using contents = await writer.finish();
    await new BackupArchive(this.files).put('b1', {
      contents,
      volumeInfos,
      results: {},
      resourceList: {},
      podVolumeBackups: [],
      volumeSnapshots: [],
      itemOperations: operations.map((begun) =>
        orderedRecord(newOperation(SUBJECT, begun, this.clock.nowNs())),
      ),
      metadata: this.backup,
    });
    this.say({ backupItemOperationsAttempted: operations.length });
  }

  server(scratch: string, outside: Outside = calm) {
    const bucket = this.bucketOf(outside);
    if (this.signing) signWith(bucket, { signing: this.signing, isRequired: false });
    const asker = this.askerOf(outside);
    const archives = { backups: new BackupArchive(bucket), restores: new RestoreArchive(bucket) };
    const map = new OperationMap({
      store: archiveStore(() => Promise.resolve(archives)),
      clock: this.clock,
    });
    const { signal } = new AbortController();
    const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };
    const common = {
      map,
      scratch,
      signal,
      logger: silentLogger,
      writers: new FileWriters(),
      client: this.#clientOf(outside),
      buckets: { open: () => Promise.resolve({ bucket, ...nothing }) },
      assertLeading: () => undefined,
    };
    return {
      map,
      asker,
      signal,
      step: () =>
        operationsStep(this.backup, { ...common, asker, timeoutNsOf: () => 3600_000_000_000n }),
      finalize: () =>
        finalize(REF, {
          ...common,
          onTarball: (_, sizeBytes) => this.tarballs.push(sizeBytes),
          sessions: {
            open: () =>
              Promise.resolve({
                loadActions: () => Promise.resolve({ actions: this.actions, blockActions: [] }),
                snapshotter: () => {
                  throw new Error('no snapshots here');
                },
                asker,
                ...nothing,
              }),
          },
          discovery: () => this.cluster.discovery(),
        }),
    };
  }

  #clientOf(outside: Outside) {
    const { clock, requests } = this;
    const find = async (
      resource: Resource<KubeObject>,
      ref: { name: string; namespace?: string },
    ) =>
      outside(async () => {
        if (resource.plural !== 'backups') return this.cluster.find(resource, ref);
        requests.push('GET backup');
        return structuredClone(this.backup);
      });
    const patch = (_: unknown, __: unknown, change: { metadata: object; status: object }) =>
      outside(() => {
        requests.push('PATCH backup');
        const { resourceVersion } = change.metadata as { resourceVersion: string };
        if (resourceVersion !== this.backup.metadata.resourceVersion) throw new Error('conflict');
        this.say(change.status);
        const next = `${Number(resourceVersion) + 1}`;
        this.backup = {
          ...this.backup,
          metadata: { ...this.backup.metadata, resourceVersion: next },
        };
        return this.backup;
      });
    const list = (resource: Resource<KubeObject>) =>
      outside(() => this.labelled.filter(({ kind }) => kind === resource.kind));
    const exec = (): Promise<never> => {
      requests.push('EXEC');
      return Promise.reject(new Error('no hooks run here'));
    };
    return { find, patch, list, exec, clock } as unknown as Pick<
      KubeClient,
      'find' | 'patch' | 'list' | 'clock'
    >;
  }
}
