import { describe, expect, it } from 'vitest';
import { Results } from '../../src/backup/index.ts';
import { PodVolumeBackups } from '../../src/backup-volumes/pod-volume-backups.ts';
import { CodedError } from '../../src/base/index.ts';
import type {
  Backup,
  KubeClient,
  KubeObject,
  Pod,
  PodVolumeBackup,
  Resource,
} from '../../src/kube/index.ts';

const signal = new AbortController().signal;
const BACKUP = {
  metadata: { name: 'b1', namespace: 'velero', uid: 'u1' },
  spec: { storageLocation: 'default', uploaderConfig: { parallelFilesUpload: 4 } },
} as unknown as Backup;

const pod = (spec: object = {}, more: object = {}): Pod =>
  ({
    metadata: { name: 'p', namespace: 'a', uid: 'pod-1' },
    spec: {
      nodeName: 'node-1',
      containers: [
        {
          name: 'c',
          volumeMounts: [{ name: 'data' }, { name: 'empty' }],
          volumeDevices: [{ name: 'raw' }],
        },
      ],
      volumes: [
        { name: 'data', persistentVolumeClaim: { claimName: 'claim' } },
        { name: 'empty', emptyDir: {} },
        { name: 'raw', persistentVolumeClaim: { claimName: 'claim' } },
        { name: 'unused', emptyDir: {} },
        { name: 'host', hostPath: { path: '/x' } },
      ],
      ...spec,
    },
    status: { phase: 'Running' },
    ...more,
  }) as unknown as Pod;

/** A cluster with an agent, a repository and a claim. */
class World {
  readonly made = new Map<string, KubeObject>();
  agents: string[] = ['Running'];
  repository: object = { phase: 'Ready' };
  hasClaim = true;
  refuses = false;

  readonly client = {
    get: ({ plural }: Resource<KubeObject>, { name }: { name: string }) => {
      if (plural === 'podvolumebackups') return Promise.resolve(this.made.get(name));
      if (this.hasClaim) return Promise.resolve({ metadata: { name, uid: 'claim-1' } });
      return Promise.reject(new CodedError('KUBE_NOT_FOUND', 'not found'));
    },
    list: ({ plural }: Resource<KubeObject>) => {
      if (plural === 'pods')
        return Promise.resolve(this.agents.map((phase) => ({ status: { phase } })));
      if (plural === 'backuprepositories') {
        const labels = {};
        return Promise.resolve([
          {
            metadata: { name: 'r', namespace: 'velero', labels },
            spec: {
              volumeNamespace: 'a',
              backupStorageLocation: 'default',
              repositoryType: 'kopia',
            },
            status: this.repository,
          },
        ]);
      }
      return Promise.resolve([...this.made.values()]);
    },
    create: (_resource: unknown, object: KubeObject) => {
      if (this.refuses) return Promise.reject(new CodedError('KUBE_FORBIDDEN', 'refused'));
      if (this.made.has(object.metadata.name)) {
        return Promise.reject(new CodedError('KUBE_ALREADY_EXISTS', 'exists'));
      }
      this.made.set(object.metadata.name, object);
      return Promise.resolve(object);
    },
  } as unknown as KubeClient;

  readonly log = new Results();

  open(spec: Partial<Backup['spec']> = {}): PodVolumeBackups {
    return new PodVolumeBackups({
      client: this.client,
      backup: { ...BACKUP, spec: { ...BACKUP.spec, ...spec } },
      log: this.log,
      signal,
      resourceTimeoutMs: 50,
      timeoutMs: 1000,
    });
  }
}

describe("backups of a pod's volumes", () => {
  it('are made as Velero makes them, and are operations', async () => {
    const world = new World();
    const { operations, made, errors, skipped } = await world
      .open()
      .begin(pod(), ['data', 'empty']);
    expect({ made, errors, skipped: skipped.size }).toEqual({
      made: ['data', 'empty'],
      errors: [],
      skipped: 0,
    });
    expect(operations.map(({ action, item }) => [action, item.name])).toEqual([
      ['longshore.io/pod-volume-backup', 'p'],
      ['longshore.io/pod-volume-backup', 'p'],
    ]);
    const [first] = [...world.made.values()];
    expect(first).toMatchObject({
      metadata: {
        namespace: 'velero',
        labels: {
          'velero.io/backup-name': 'b1',
          'velero.io/backup-uid': 'u1',
          'velero.io/pvc-uid': 'claim-1',
        },
        annotations: { 'velero.io/pvc-name': 'claim' },
        ownerReferences: [{ kind: 'Backup', name: 'b1', uid: 'u1', controller: true }],
      },
      spec: {
        node: 'node-1',
        pod: { kind: 'Pod', namespace: 'a', name: 'p', uid: 'pod-1' },
        volume: 'data',
        tags: {
          backup: 'b1',
          'backup-uid': 'u1',
          pod: 'p',
          'pod-uid': 'pod-1',
          ns: 'a',
          volume: 'data',
          'pvc-uid': 'claim-1',
        },
        backupStorageLocation: 'default',
        uploaderType: 'kopia',
        uploaderSettings: { ParallelFilesUpload: '4' },
      },
    });
  });
  it.each([
    ['Full', 'none'],
    ['Incremental', undefined],
  ] as const)('read all files again where the backup is %s', async (backupType, parent) => {
    const world = new World();
    await world.open({ backupType }).begin(pod(), ['data']);
    const [made] = [...world.made.values()] as PodVolumeBackup[];
    expect(made?.spec.parentSnapshot).toBe(parent);
  });

  it('are the same when they are asked for again, as by a server that goes on', async () => {
    const world = new World();
    const first = await world.open().begin(pod(), ['data']);
    const again = await world.open().begin(pod(), ['data']);
    expect(again.operations).toEqual(first.operations);
    expect(world.made.size).toBe(1);
    const other = await world
      .open()
      .begin(pod({}, { metadata: { name: 'p', namespace: 'a', uid: 'pod-2' } }), ['data']);
    expect(other.operations[0]?.operationId).not.toBe(first.operations[0]?.operationId);
  });
  it('take a volume that only a native sidecar has mounted', async () => {
    const init = (name: string, more: object = {}) => ({
      name,
      volumeMounts: [{ name: 'unused' }],
      ...more,
    });
    const taken = async (container: object): Promise<number> => {
      const given = pod({ initContainers: [container] });
      return (await new World().open().begin(given, ['unused'])).operations.length;
    };
    expect(await taken(init('sidecar', { restartPolicy: 'Always' }))).toBe(1);
    // As Velero: what init containers alone have mounted is left out.
    expect(await taken(init('setup'))).toBe(0);
  });
  it.each([
    ['raw', /is a block volume/],
    ['unused', /not mounted by any container/],
    ['host', /is a hostPath volume/],
    ['nowhere', /No volume named nowhere/],
  ])('leave %s out, and say why', async (volume, reason) => {
    const world = new World();
    const { skipped, errors, operations } = await world.open().begin(pod(), [volume]);
    expect(skipped.get(volume)).toMatch(reason);
    expect([errors, operations]).toEqual([[], []]);
    expect(world.log.warningCount).toBe(1);
  });
  it.each([
    [pod({ nodeName: '' }), /pod is not scheduled, name=p, namespace=a, phase=Running/],
    [
      pod({}, { status: { phase: 'Pending' } }),
      /pod is not in the expected status.*pod is not running/,
    ],
    [
      pod({}, { metadata: { name: 'p', namespace: 'a', uid: 'x', deletionTimestamp: 'now' } }),
      /pod is being terminated/,
    ],
  ])('of a pod that does not run are skipped, without an error', async (given, reason) => {
    const world = new World();
    const { skipped, errors } = await world.open().begin(given, ['data']);
    expect(skipped.get('data')).toMatch(reason);
    expect(errors).toEqual([]);
  });
  it('need an agent on the node, and a repository', async () => {
    const world = new World();
    world.agents = ['Pending'];
    const { skipped, errors } = await world.open().begin(pod(), ['data']);
    expect(skipped.get('data')).toContain(
      'daemonset pod not found in running state in node node-1',
    );
    expect(errors).toMatchObject([{ code: 'NO_AGENT' }]);
    world.agents = ['Running'];
    world.repository = { phase: 'NotReady', message: 'bucket away' };
    const other = await world.open().begin(pod(), ['data']);
    expect(other.errors).toMatchObject([
      { message: expect.stringContaining('bucket away') as string },
    ]);
  });
  it('a claim that does not exist is no error of a pod that does not run', async () => {
    const world = new World();
    world.hasClaim = false;
    const waiting = { ...pod(), status: { phase: 'Pending' as const } };
    const { errors, skipped } = await world.open().begin(waiting, ['data']);
    expect(errors).toEqual([]);
    expect(skipped.get('data')).toContain('pod is not running');
  });
  it('a claim that is not there, or an API server that refuses one, is an error of the pod', async () => {
    const world = new World();
    world.hasClaim = false;
    const { errors, operations } = await world.open().begin(
      pod({
        volumes: [
          { name: 'data', persistentVolumeClaim: { claimName: 'claim' } },
          { name: 'empty', emptyDir: {} },
        ],
      }),
      ['data', 'empty'],
    );
    expect(errors).toMatchObject([{ code: 'NO_PVC' }]);
    expect(operations.length).toBe(1);
    world.hasClaim = true;
    world.refuses = true;
    const refused = await world.open().begin(pod(), ['data']);
    expect(refused.errors).toMatchObject([{ code: 'KUBE_FORBIDDEN' }]);
  });
});
