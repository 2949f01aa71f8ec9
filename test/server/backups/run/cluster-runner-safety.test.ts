import * as fs from 'node:fs';
import { afterAll, describe, expect, it } from 'vitest';
import { BackupArchive, readTarball, RestoreArchive } from '../../../../src/archive/index.ts';
import { CanceledError, CodedError, silentLogger } from '../../../../src/base/index.ts';
import type { Backup, BackupAction } from '../../../../src/backup/index.ts';
import type { BackupVolumes } from '../../../../src/backup-volumes/index.ts';
import {
  archiveStore,
  type OperationAsker,
  OperationMap,
} from '../../../../src/item-operations/index.ts';
import { type KubeClient } from '../../../../src/kube/index.ts';
import { ClusterRunner } from '../../../../src/server/index.ts';
import type { VolumesContext } from '../../../../src/server/backups/run/cluster-runner.ts';
import { FakeCluster } from '../../../backup/support/cluster.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';

const scratch = tempDirectory('safety-runner');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

const BACKUP = {
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: { name: 'b1', namespace: 'velero', uid: 'u1', resourceVersion: '1' },
  spec: { includedNamespaces: ['*'], storageLocation: 'default', itemOperationTimeout: '4h0m0s' },
  status: { phase: 'InProgress' },
} as unknown as Backup;

interface Parts {
  readonly cluster: FakeCluster;
  readonly actions?: readonly BackupAction[];
  readonly cancel?: OperationAsker['cancel'];
  readonly client?: object;
  readonly volumes?: (context: VolumesContext) => Partial<BackupVolumes>;
  readonly openVolumes?: (context: VolumesContext) => Promise<BackupVolumes>;
  readonly onEnded?: () => void;
  readonly directory?: string;
  readonly spec?: object;
  readonly timeoutNsOfPlugin?: (action: string) => bigint;
}

/** A server that makes one backup. */
class Rig {
  readonly bucket = new MemoryBucket();
  readonly canceled: string[] = [];
  readonly abort = new AbortController();
  readonly leaving = new AbortController();
  isLeading = true;
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  async run() {
    const { bucket } = this;
    const { cluster, actions = [], volumes, client = {}, directory = scratch } = this.#parts;
    const archives = { backups: new BackupArchive(bucket), restores: new RestoreArchive(bucket) };
    const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };
    const runner = new ClusterRunner({
      client: {
        listPage: cluster.listPage,
        find: cluster.find,
        raw: () => Promise.resolve({}),
        collect: async (resource: never, options: never, take: (item: never) => unknown[]) =>
          (
            await (cluster.listPage(resource, options) as Promise<{ items: never[] }>)
          ).items.flatMap(take),
        ...client,
      } as unknown as KubeClient,
      discovery: await cluster.discovery(),
      buckets: { open: () => Promise.resolve({ bucket, ...nothing }) },
      archiveOf: (opened) => new BackupArchive(opened),
      sessions: {
        open: () =>
          Promise.resolve({
            loadActions: () => Promise.resolve({ actions, blockActions: [] }),
            asker: {
              ask: () => Promise.resolve({ kind: 'unasked', error: 'later', isLasting: false }),
              cancel: async (operation, signal) => {
                await this.#parts.cancel?.(operation, signal);
                this.canceled.push(operation.spec.operationID);
              },
            },
            snapshotter: () => {
              throw new Error('none');
            },
            ...nothing,
          }),
      },
      operations: new OperationMap({ store: archiveStore(() => Promise.resolve(archives)) }),
      openVolumes: (context) =>
        this.#parts.openVolumes?.(context) ??
        Promise.resolve({
          resume: () => undefined,
          nativeSnapshots: [],
          outcome: () =>
            Promise.resolve({
              ...{ nativeSnapshots: [], podVolumeBackups: [], volumeInfos: [], csiSnapshots: 0 },
            }),
          ...volumes?.(context),
        }),
      ...{ directory, logger: silentLogger, logLevel: 'info', logFormat: 'text' },
      ...{ workers: 2, patienceMs: 400 },
      ...(this.#parts.timeoutNsOfPlugin && { timeoutNsOfPlugin: this.#parts.timeoutNsOfPlugin }),
    });
    return runner.run({
      backup: { ...BACKUP, spec: { ...BACKUP.spec, ...this.#parts.spec } },
      onProgress: () => Promise.resolve(),
      ...(this.#parts.onEnded && { onEnded: this.#parts.onEnded }),
      assertLeading: () => {
        if (!this.isLeading) throw new CodedError('LEADERSHIP_LOST', 'another one may lead');
      },
      signal: this.abort.signal,
      leaving: this.leaving.signal,
    });
  }
}

const configMaps = (count: number): FakeCluster =>
  new FakeCluster()
    .namespaces('a')
    .add('configmaps', ...Array.from({ length: count }, (_, i) => `a/c${i}`));
const reasonOf = (task: Promise<unknown>): Promise<unknown> =>
  task.then(
    () => undefined,
    (error: unknown) => error,
  );

async function pathsIn({ bucket }: Rig): Promise<string[]> {
  const archive = await new BackupArchive(bucket).open('b1');
  const entries = await Array.fromAsync(readTarball(archive.read('contents'), 'contents'));
  return entries.map(({ path }) => path).sort();
}

const pods = (annotations: Record<string, string>): FakeCluster =>
  new FakeCluster().namespaces('a').add('pods', {
    metadata: { namespace: 'a', name: 'p', annotations },
    spec: { containers: [{ name: 'main' }] },
  });
const HOOKS = {
  'pre.hook.backup.velero.io/command': 'freeze',
  'post.hook.backup.velero.io/command': 'thaw',
};

describe('a run that others interfere with', () => {
  it('a pod that a server froze and that lost its lead is thawed by the next one, whose own freeze fails', async () => {
    let isFrozen = false;
    const ran: string[] = [];
    const rig: Rig = new Rig({
      cluster: pods({ ...HOOKS, 'pre.hook.backup.velero.io/on-error': 'Fail' }),
      client: {
        exec: ({ command: [word = ''] }: { command: string[] }) => {
          ran.push(word);
          if (word === 'freeze') {
            // As fsfreeze does: EBUSY.
            if (isFrozen) return Promise.reject(new CodedError('EXEC_FAILED', 'exit code 1'));
            isFrozen = true;
            // Right after it this process is killed, or leads no more.
            if (ran.length === 1) rig.isLeading = false;
          } else isFrozen = false;
          return Promise.resolve({ stdout: '', stderr: '' });
        },
      },
    });
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'LEADERSHIP_LOST' });
    expect([isFrozen, ran]).toEqual([true, ['freeze']]);
    rig.isLeading = true;
    await rig.run();
    expect([isFrozen, ran]).toEqual([false, ['freeze', 'freeze', 'thaw']]);
  });

  it('a pod whose freeze has run and whose answer never comes is thawed', async () => {
    let isFrozen = false;
    const rig: Rig = new Rig({
      cluster: pods({
        ...HOOKS,
        'pre.hook.backup.velero.io/timeout': '300ms',
        'pre.hook.backup.velero.io/on-error': 'Fail',
      }),
      client: {
        exec: ({ command: [word = ''], signal }: { command: string[]; signal: AbortSignal }) => {
          isFrozen = word === 'freeze';
          if (word !== 'freeze') return Promise.resolve({ stdout: '', stderr: '' });
          // A network that is cut says nothing.
          return new Promise((_resolve, reject) => {
            signal.addEventListener('abort', () => {
              reject(signal.reason as Error);
            });
          });
        },
      },
    });
    await rig.run();
    expect(isFrozen).toBe(false);
  });

  it('hooks after which an answer was lost thaw the pod, also where one after it fails otherwise', async () => {
    const ran: string[] = [];
    const rig: Rig = new Rig({
      cluster: pods({}),
      spec: {
        hooks: {
          resources: [
            {
              name: 'h',
              pre: [
                { exec: { command: ['freeze'], onError: 'Continue' } },
                { exec: { command: ['check'], onError: 'Fail' } },
              ],
              post: [{ exec: { command: ['thaw'] } }],
            },
          ],
        },
      },
      client: {
        exec: ({ command: [word = ''] }: { command: string[] }) => {
          ran.push(word);
          if (word === 'freeze') {
            const facts = { isSent: true };
            return Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'reset', { facts }));
          }
          if (word === 'check') return Promise.reject(new CodedError('EXEC_FAILED', 'exit code 1'));
          return Promise.resolve({ stdout: '', stderr: '' });
        },
      },
    });
    await rig.run();
    expect(ran).toEqual(['freeze', 'check', 'thaw']);
  });

  it('a process that slept while it stored its files removes none of those that the next one has stored since', async () => {
    const rig: Rig = new Rig({ cluster: configMaps(3) });
    const next = new Rig({ cluster: configMaps(3) });
    const { bucket } = rig;
    Object.assign(next, { bucket });
    const put = bucket.put.bind(bucket);
    let hasSlept = false;
    bucket.put = async (...given: Parameters<typeof put>) => {
      if (given[0].endsWith('b1.tar.gz') && !hasSlept) {
        hasSlept = true;
        // Another server leads meanwhile, goes on with the journal, and ends the backup.
        expect(await next.run()).toMatchObject({ phase: 'Finalizing' });
        rig.isLeading = false;
        rig.abort.abort(new CanceledError('shutdown'));
        rig.leaving.abort(new CanceledError('shutdown'));
        throw rig.abort.signal.reason as Error;
      }
      await put(...given);
    };
    await reasonOf(rig.run());
    expect(hasSlept).toBe(true);
    expect(await new BackupArchive(bucket).has('b1')).toBe(true);
    // Three objects and their namespace, each in two places.
    expect(await pathsIn(rig)).toHaveLength(9);
  });

  it('hooks that thaw are run again where the connection ended without an answer', async () => {
    const ran: string[] = [];
    const rig: Rig = new Rig({
      cluster: pods(HOOKS),
      client: {
        exec: ({ command: [word = ''] }: { command: string[] }) => {
          ran.push(word);
          // As execIn has it where the kubelet closes the connection as it goes down (kube/client/exec.ts, failureOf).
          return ran.length === 2
            ? Promise.reject(new CodedError('EXEC_FAILED', 'ended', { facts: { isSent: true } }))
            : Promise.resolve({ stdout: '', stderr: '' });
        },
      },
    });
    await rig.run();
    expect(ran).toEqual(['freeze', 'thaw', 'thaw']);
  });
});
