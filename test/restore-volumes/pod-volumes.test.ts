import { describe, expect, it } from 'vitest';
import { CodedError, messageOf } from '../../src/base/index.ts';
import type {
  KubeClient,
  KubeObject,
  Pod,
  PodVolumeBackup,
  Resource,
  Restore,
} from '../../src/kube/index.ts';
import {
  FileBackups,
  type FileRestoreFact,
  fileBackupsOf,
  PodVolumeRestores,
  waitContainerAction,
} from '../../src/restore-volumes/index.ts';
import { aPod, aPodVolumeBackup, aRestore } from '../support/builders.ts';

const { signal } = new AbortController();
const restoreOf = (spec: object = {}): Restore =>
  aRestore({
    metadata: { name: 'r1', namespace: 'velero', uid: 'restore-uid' },
    spec,
  });
const podOf = (spec: object = {}, metadata: object = {}): Pod =>
  aPod({
    metadata: { name: 'p', namespace: 'copy', uid: 'pod-uid', ...metadata },
    spec: {
      containers: [{ name: 'c', image: 'i' }],
      volumes: [
        { name: 'data', persistentVolumeClaim: { claimName: 'claim' } },
        { name: 'empty', emptyDir: {} },
        { name: 'token', projected: {} },
      ],
      ...spec,
    },
  });
const backupOf = (volume: string, more: object = {}, status: object = {}): PodVolumeBackup =>
  aPodVolumeBackup({
    metadata: { name: `pvb-${volume}` },
    spec: { pod: { namespace: 'app', name: 'p' }, volume, uploaderType: 'kopia', ...more },
    status: {
      phase: 'Completed',
      snapshotID: `s-${volume}`,
      progress: { totalBytes: 9 },
      ...status,
    },
  });
const BACKUPS = [backupOf('data'), backupOf('empty'), backupOf('token')];

describe('volumes of a pod that have a backup of their files', () => {
  it.each([
    ['those of its place in the backup', BACKUPS, ['data', 'empty']],
    [
      'none of another namespace',
      [backupOf('data', { pod: { namespace: 'copy', name: 'p' } })],
      [],
    ],
    ['none of another pod', [backupOf('data', { pod: { namespace: 'app', name: 'q' } })], []],
    ['none without a snapshot', [backupOf('data', {}, { snapshotID: '' })], []],
    [
      'also of one that failed, if there is a snapshot',
      [backupOf('data', {}, { phase: 'Failed' })],
      ['data'],
    ],
    ['none', [], []],
  ])('are %s', (_about, backups, names) => {
    expect([...fileBackupsOf(podOf(), 'app', backups).keys()]).toEqual(names);
  });

  it('are those of its annotations where there are no others', () => {
    const pod = podOf({}, { annotations: { 'snapshot.velero.io/data': 'old' } });
    const old = { snapshotId: 'old', size: 0, uploaderType: 'restic' };
    expect([...fileBackupsOf(pod, 'app', [])]).toEqual([['data', old]]);
    expect(fileBackupsOf(pod, 'app', BACKUPS).get('data')?.snapshotId).toBe('s-data');
  });
});

const SAFE = {
  runAsUser: 1000,
  runAsNonRoot: true,
  allowPrivilegeEscalation: false,
  capabilities: { drop: ['ALL'] },
  seccompProfile: { type: 'RuntimeDefault' },
};

describe('the container that waits', () => {
  async function waited(pod: Pod, data: Record<string, string> = {}, backups = BACKUPS) {
    const lines: string[] = [];
    const log = (message: string): void => void lines.push(message);
    const asked: unknown[] = [];
    const action = waitContainerAction({
      client: {
        list: (_resource: unknown, options: object) => {
          asked.push(options);
          return Promise.resolve([{ metadata: { name: 'config' }, data }]);
        },
      } as unknown as KubeClient,
      namespace: 'velero',
      image: 'registry/velero:v1',
      tag: 'v1.18.3',
      files: new FileBackups({ backups }),
      log: { info: log, warn: log, error: log },
    });
    const item = { ...pod, metadata: { ...pod.metadata, namespace: 'app' } };
    const before = structuredClone(item);
    const output = await action.execute(
      { item, itemFromBackup: item, restore: restoreOf() },
      { signal },
    );
    expect(item).toEqual(before);
    const initContainers = (output.item as Pod | undefined)?.spec.initContainers;
    return { initContainers, lines, asked, first: initContainers?.[0] };
  }

  it('comes first, with the helper and the volumes', async () => {
    const { initContainers, asked } = await waited(podOf({ initContainers: [{ name: 'own' }] }));
    expect(initContainers).toEqual([
      {
        name: 'restore-wait',
        image: 'registry/velero:v1',
        command: ['/velero-restore-helper'],
        args: ['restore-uid'],
        env: [
          { name: 'POD_NAMESPACE', valueFrom: { fieldRef: { fieldPath: 'metadata.namespace' } } },
          { name: 'POD_NAME', valueFrom: { fieldRef: { fieldPath: 'metadata.name' } } },
        ],
        volumeMounts: [
          { name: 'data', mountPath: '/restores/data' },
          { name: 'empty', mountPath: '/restores/empty' },
        ],
        resources: {
          requests: { cpu: '100m', memory: '128Mi' },
          limits: { cpu: '100m', memory: '128Mi' },
        },
        securityContext: SAFE,
      },
      { name: 'own' },
    ]);
    expect(asked).toMatchObject([
      {
        namespace: 'velero',
        labelSelector: 'velero.io/plugin-config,velero.io/pod-volume-restore=RestoreItemAction',
      },
    ]);
  });

  it('takes the place of one of an earlier restore, and goes where there is nothing to wait for', async () => {
    const pod = podOf({
      initContainers: [{ name: 'restic-wait' }, { name: 'own' }, { name: 'restore-wait' }],
    });
    const { initContainers } = await waited(pod);
    expect(initContainers?.map(({ name }) => name)).toEqual(['restore-wait', 'own']);
    const { initContainers: without, asked } = await waited(pod, {}, []);
    expect(without).toEqual([{ name: 'own' }]);
    expect(asked).toEqual([]);
    expect(
      (await waited(podOf({ initContainers: [{ name: 'own' }] }), {}, [])).initContainers,
    ).toBeUndefined();
  });

  it.each([
    ['registry/other:v2', 'registry/other:v2'],
    ['registry/other', 'registry/other:v1.18.3'],
    ['registry:5000/other', 'registry:5000/other:v1.18.3'],
    ['other', 'registry/velero:v1'],
  ])('has the image %s as %s', async (image, expected) => {
    expect((await waited(podOf(), { image })).first?.image).toBe(expected);
  });

  it.each([
    [
      { cpuRequest: '50m', memRequest: '64Mi' },
      { requests: { cpu: '50m', memory: '64Mi' }, limits: { cpu: '100m', memory: '128Mi' } },
      0,
    ],
    [
      { cpuLimit: '0', memLimit: '0' },
      { requests: { cpu: '100m', memory: '128Mi' }, limits: {} },
      0,
    ],
    [
      { cpuRequest: '200m' },
      { requests: { cpu: '100m', memory: '128Mi' }, limits: { cpu: '100m', memory: '128Mi' } },
      1,
    ],
    [
      { memLimit: 'much' },
      { requests: { cpu: '100m', memory: '128Mi' }, limits: { cpu: '100m', memory: '128Mi' } },
      1,
    ],
  ])('has the resources of %j', async (data, resources, warnings) => {
    const { first, lines } = await waited(podOf(), data);
    expect(first?.resources).toEqual(resources);
    expect(lines).toHaveLength(warnings);
  });

  const ofContainer = { containers: [{ name: 'c', securityContext: { runAsUser: 7 } }] };
  it.each([
    ['the first container', ofContainer, {}, { runAsUser: 7 }, 0],
    [
      'the pod',
      { securityContext: { runAsUser: 5, runAsGroup: 6 } },
      {},
      { ...SAFE, runAsUser: 5, runAsGroup: 6 },
      0,
    ],
    [
      'a pod of root',
      { securityContext: { runAsUser: 0, runAsNonRoot: false } },
      {},
      { ...SAFE, runAsUser: 0, runAsNonRoot: false },
      0,
    ],
    ['a pod with a group for its files only', { securityContext: { fsGroup: 6 } }, {}, SAFE, 0],
    [
      'the ConfigMap',
      ofContainer,
      { secCtxRunAsUser: '3', secCtxAllowPrivilegeEscalation: 'false' },
      { runAsUser: 3, allowPrivilegeEscalation: false },
      0,
    ],
    [
      'the YAML of the ConfigMap',
      ofContainer,
      { secCtxRunAsUser: '3', secCtx: 'runAsUser: 4\ncapabilities:\n  drop: [ALL]' },
      { runAsUser: 4, capabilities: { drop: ['ALL'] } },
      0,
    ],
    ['YAML that is none', ofContainer, { secCtx: 'runAsUsers: 4' }, { runAsUser: 7 }, 1],
    ['a number that is none', {}, { secCtxRunAsUser: 'root' }, SAFE, 1],
  ])('runs as %s says', async (_about, spec, data, expected, warnings) => {
    const { first, lines } = await waited(podOf(spec), data);
    expect(first?.securityContext).toEqual(expected);
    expect(lines).toHaveLength(warnings);
  });
});

/** A cluster with an agent, a repository and a claim. */
class World {
  readonly made = new Map<string, KubeObject>();
  agents = 1;
  repository: object = { phase: 'Ready' };
  hasClaim = true;
  asked = 0;
  readonly client = {
    get: ({ plural }: Resource<KubeObject>, { name }: { name: string }) => {
      if (plural === 'podvolumerestores') return Promise.resolve(this.made.get(name));
      if (this.hasClaim) return Promise.resolve({ metadata: { name, uid: 'claim-1' } });
      return Promise.reject(
        new CodedError('KUBE_NOT_FOUND', `persistentvolumeclaims "${name}" not found`),
      );
    },
    listPage: () => {
      this.asked++;
      return Promise.resolve({ items: Array.from({ length: this.agents }) });
    },
    list: ({ plural }: Resource<KubeObject>, { labelSelector }: { labelSelector: string }) => {
      if (plural === 'podvolumerestores') return Promise.resolve([...this.made.values()]);
      expect(labelSelector).toContain('volume-namespace=app');
      return Promise.resolve([{ metadata: { name: 'repo' }, status: this.repository }]);
    },
    create: (_resource: unknown, object: KubeObject) => {
      if (this.made.has(object.metadata.name)) {
        return Promise.reject(new CodedError('KUBE_ALREADY_EXISTS', 'exists'));
      }
      this.made.set(object.metadata.name, object);
      return Promise.resolve(object);
    },
  } as unknown as KubeClient;

  readonly warnings: string[] = [];

  restores(spec: object = {}, backups = BACKUPS) {
    const log = (): void => undefined;
    const warn = (text: string): void => void this.warnings.push(text);
    return new PodVolumeRestores({
      client: this.client,
      restore: restoreOf(spec),
      storageLocation: 'default',
      files: new FileBackups({ backups }),
      log: { info: log, warn, error: log },
      signal,
      resourceTimeoutMs: 20,
    });
  }
}

describe('PodVolumeRestores', () => {
  it('are made for the volumes of a pod, in the words of agents, and are operations', async () => {
    const world = new World();
    const spec = { uploaderConfig: { writeSparseFiles: true, parallelFilesDownload: 3 } };
    const { operations, errors } = await world.restores(spec).begin(podOf(), 'app');
    expect(errors).toEqual([]);
    const [data, empty] = [...world.made.values()];
    expect(data).toEqual({
      metadata: {
        namespace: 'velero',
        name: data?.metadata.name,
        ownerReferences: [
          {
            apiVersion: 'velero.io/v1',
            kind: 'Restore',
            name: 'r1',
            uid: 'restore-uid',
            controller: true,
          },
        ],
        labels: {
          'velero.io/restore-name': 'r1',
          'velero.io/restore-uid': 'restore-uid',
          'velero.io/pod-uid': 'pod-uid',
          'velero.io/pvc-uid': 'claim-1',
          'velero.io/exclude-from-backup': 'true',
        },
      },
      spec: {
        pod: { kind: 'Pod', namespace: 'copy', name: 'p', uid: 'pod-uid' },
        volume: 'data',
        backupStorageLocation: 'default',
        repoIdentifier: '',
        restoreType: '',
        uploaderType: 'kopia',
        snapshotID: 's-data',
        sourceNamespace: 'app',
        snapshotSize: 9,
        uploaderSettings: { WriteSparseFiles: 'true', ParallelFilesDownload: '3' },
      },
    });
    expect(data?.metadata.name).toMatch(/^r1-[0-9a-f]{16}$/);
    expect(empty?.metadata.labels).not.toHaveProperty('velero.io/pvc-uid');
    expect(operations).toEqual(
      [data, empty].map((each) => ({
        action: 'longshore.io/pod-volume-restore',
        item: { group: '', resource: 'pods', namespace: 'copy', name: 'p' },
        operationId: each?.metadata.name,
        // The other volume does not belong to a claim.
        ...(each === data && { claim: 'claim' }),
      })),
    );
  });

  it('are found when they are asked for again', async () => {
    const world = new World();
    const first = await world.restores().begin(podOf(), 'app');
    const second = await world.restores().begin(podOf(), 'app');
    expect(second).toEqual(first);
    expect(world.made.size).toBe(2);
  });

  it('write over what is there where volumes are to be brought back, and say what stays', async () => {
    const world = new World();
    const spec = { existingVolumeDataPolicy: 'full', uploaderConfig: { deleteExtraFiles: true } };
    await world.restores(spec).begin(podOf(), 'app');
    const [data] = [...world.made.values()];
    const { restoreType, uploaderSettings } =
      (data as { spec?: Record<string, unknown> }).spec ?? {};
    expect(restoreType).toBe('full');
    // Agents refuse it for volumes of pods.
    expect(uploaderSettings).not.toHaveProperty('DeleteExtraFiles');
    expect(world.warnings).toHaveLength(1);
    expect(world.warnings[0]).toContain('files that the backup does not have stay');
  });

  it('are not made for a pod that has none, which asks for nothing', async () => {
    const world = new World();
    expect(await world.restores({}, []).begin(podOf(), 'app')).toEqual({
      operations: [],
      errors: [],
    });
    expect(world.asked).toBe(0);
  });

  it('are made for the other volumes where a claim is not there', async () => {
    const world = new World();
    world.hasClaim = false;
    const { operations, errors } = await world.restores().begin(podOf(), 'app');
    expect(operations).toHaveLength(1);
    expect(errors.map(messageOf)).toEqual([
      'unable to restore the volumes of pod copy/p: error getting persistent volume claim for volume: persistentvolumeclaims "claim" not found',
    ]);
  });

  it('ask for agents once, and again while there are none', async () => {
    const world = new World();
    const restores = world.restores();
    world.agents = 0;
    const { operations, errors } = await restores.begin(podOf(), 'app');
    expect(operations).toEqual([]);
    expect(errors.map(messageOf)[0]).toContain(
      'error to check node agent status: daemonset not found',
    );
    world.agents = 1;
    for (let i = 0; i < 3; i++) expect((await restores.begin(podOf(), 'app')).errors).toEqual([]);
    expect(world.asked).toBe(2);
  });

  it('are an error in words where the repository does not become ready', async () => {
    const world = new World();
    world.repository = { phase: 'NotReady', message: 'no password' };
    const { operations, errors } = await world.restores().begin(podOf(), 'app');
    expect(operations).toEqual([]);
    expect(errors.map(messageOf)[0]).toContain('backup repository is not ready: no password');
  });

  it('are not made of what restic has written, which nobody here reads', async () => {
    const world = new World();
    const old = [backupOf('data', { uploaderType: 'restic' })];
    const { operations, errors } = await world.restores({}, old).begin(podOf(), 'app');
    expect(operations).toEqual([]);
    expect(errors.map(messageOf)[0]).toContain('the volumes data were backed up by restic');
    expect(world.made.size).toBe(0);
  });
});

describe('files of a claim of several pods', () => {
  const claim = { annotations: { 'velero.io/pvc-name': 'claim' } };
  const shared = aPodVolumeBackup({
    ...backupOf('data'),
    metadata: { name: 'pvb', ...claim },
  });
  const other = podOf(
    { volumes: [{ name: 'theirs', persistentVolumeClaim: { claimName: 'claim' } }] },
    { name: 'other' },
  );
  const namesOf = async (files: FileBackups, pod: Pod): Promise<string[]> => [
    ...fileBackupsOf(pod, 'app', await files.of(pod, 'app')).keys(),
  ];

  it('are restored through the pod that they were backed up through, where it is made', async () => {
    const files = new FileBackups({ backups: [shared], isMade: () => Promise.resolve(true) });
    expect(await namesOf(files, other)).toEqual([]);
    expect(await namesOf(files, podOf())).toEqual(['data']);
  });

  it('are restored through another pod where it is not made, through one only', async () => {
    const facts: FileRestoreFact[] = [];
    const options = {
      backups: [shared],
      isMade: () => Promise.resolve(false),
      onFact: (fact: FileRestoreFact) => Promise.resolve(void facts.push(fact)),
    };
    const files = new FileBackups(options);
    expect(await namesOf(files, other)).toEqual(['theirs']);
    // The action that makes it wait has asked before.
    expect(await namesOf(files, other)).toEqual(['theirs']);
    const third = { ...other, metadata: { ...other.metadata, name: 'third' } };
    expect(await namesOf(files, third)).toEqual([]);
    expect(facts).toEqual([{ kind: 'files', claim: 'app/claim', pod: 'app/other' }]);
    // The pod has its files restored all the same, as when another item needs the pod.
    expect(await namesOf(files, podOf())).toEqual([]);
    const next = new FileBackups({ ...options, isMade: () => Promise.resolve(true) });
    next.resume(facts);
    expect(await namesOf(next, third)).toEqual([]);
    expect(await namesOf(next, other)).toEqual(['theirs']);
  });

  it('are restored through another pod also where their own was asked for first, and then not made', async () => {
    let isMade = true;
    const files = new FileBackups({
      backups: [shared],
      isMade: () => Promise.resolve(isMade),
    });
    expect(await namesOf(files, podOf())).toEqual(['data']);
    expect(await namesOf(files, other)).toEqual([]);
    isMade = false;
    expect(await namesOf(files, other)).toEqual(['theirs']);
    expect(await namesOf(files, podOf())).toEqual([]);
  });

  it('are not restored through another pod over a claim that was there before', async () => {
    const left: string[] = [];
    const files = new FileBackups({
      backups: [shared],
      isMade: () => Promise.resolve(false),
      isClaimMade: () => false,
      onLeft: (claimed, pod) => left.push(`${claimed.namespace}/${claimed.name} ${pod.name}`),
    });
    expect(await namesOf(files, other)).toEqual([]);
    expect(await namesOf(files, other)).toEqual([]);
    expect(left).toEqual(['app/claim other']);
    // Its own pod brings them all the same, as with Velero.
    expect(await namesOf(files, podOf())).toEqual(['data']);
  });
});
