import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Movement } from '../../src/agent/movement.ts';
import { IN_PROCESS, STAND_IN } from '../../src/dev/index.ts';
import {
  type Pod,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type PodVolumeBackup,
  type PodVolumeRestore,
  PODS,
  PVCS,
  type Resource,
  waitFor,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { aPod } from '../support/builders.ts';

const FINALIZER = 'velero.io/pod-volume-finalizer';
const RESTORE_UID = '11111111-2222-3333-4444-555555555555';
const FINAL = ['Completed', 'Failed', 'Canceled'];

describe('file-system backup', () => {
  let cluster: TestCluster;
  beforeAll(async () => {
    cluster = await TestCluster.start();
    for (const node of ['node-1', 'node-2']) {
      cluster.startAgent(node, { takeoverMs: 2000 });
      await showAgent(node);
    }
    for (const name of ['app', 'again']) await cluster.makeNamespace(name);
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
  });

  /** The agents run in this process. Without agent pods, each would consider the other as away. */
  const showAgent = async (node: string): Promise<void> => {
    const { metadata } = await cluster.client.create(PODS, {
      metadata: {
        name: `agent-of-${node}`,
        namespace: NAMESPACE,
        labels: { role: 'node-agent' },
        annotations: { [IN_PROCESS]: 'true' },
      },
      spec: { nodeName: node, containers: [{ name: 'agent', image: 'longshore' }] },
    });
    const status = { phase: 'Running' as const };
    await cluster.client.patch(PODS, metadata, { status }, { subresource: 'status' });
  };

  const makePod = async (
    namespace: string,
    name: string,
    {
      volumes,
      node = 'node-1',
      waits = false,
    }: { volumes: object[]; node?: string; waits?: boolean },
  ): Promise<Pod> => {
    const mounts = (volumes as { name: string }[]).map((volume) => ({
      name: volume.name,
      mountPath: `/restores/${volume.name}`,
    }));
    const wait = { name: 'restore-wait', image: 'x', args: [RESTORE_UID], volumeMounts: mounts };
    const pod = await cluster.client.create(PODS, {
      metadata: {
        name,
        namespace,
        annotations: { [STAND_IN]: 'true' },
        labels: { 'velero.io/restore-name': 'r' },
      },
      spec: {
        nodeName: node,
        containers: [{ name: 'app', image: 'x', volumeMounts: mounts }],
        ...(waits && { initContainers: [wait] }),
        volumes: volumes as never,
      },
    });
    const isThere = (now: Pod | undefined): Pod | undefined =>
      now?.status?.phase === 'Running' ||
      now?.status?.initContainerStatuses?.[0]?.state?.running !== undefined
        ? now
        : undefined;
    return waitFor(cluster.client, PODS, pod.metadata, isThere, { timeoutMs: 20_000 });
  };
  const refOf = ({
    metadata: { namespace = '', name, uid },
  }: Pod): PodVolumeBackup['spec']['pod'] => ({ kind: 'Pod', namespace, name, uid });
  const backUp = (
    name: string,
    pod: Pod,
    volume: string,
    more: { spec?: object; metadata?: object } = {},
  ): Promise<PodVolumeBackup> =>
    cluster.client.create(POD_VOLUME_BACKUPS, {
      metadata: { name, namespace: NAMESPACE, labels: { kept: 'yes' }, ...more.metadata },
      spec: {
        backupStorageLocation: 'default',
        repoIdentifier: '',
        uploaderType: 'kopia',
        volume,
        node: pod.spec.nodeName ?? '',
        pod: refOf(pod),
        ...more.spec,
      },
    });
  const restore = (
    name: string,
    pod: Pod,
    volume: string,
    snapshotID: string,
    more: object = {},
  ): Promise<PodVolumeRestore> =>
    cluster.client.create(POD_VOLUME_RESTORES, {
      metadata: {
        name,
        namespace: NAMESPACE,
        ownerReferences: [
          {
            apiVersion: 'velero.io/v1',
            kind: 'Restore',
            name: 'r',
            uid: RESTORE_UID,
            controller: true,
          },
        ],
      },
      spec: {
        backupStorageLocation: 'default',
        repoIdentifier: '',
        uploaderType: 'kopia',
        volume,
        snapshotID,
        sourceNamespace: 'app',
        pod: refOf(pod),
        ...more,
      },
    });
  /** Once it is over, and nothing is left to be done for it. */
  const ended = async <M extends Movement>(resource: Resource<M>, name: string): Promise<M> =>
    waitFor(
      cluster.client,
      resource,
      { namespace: NAMESPACE, name },
      (now) => {
        const isOver = FINAL.includes(now?.status?.phase ?? '');
        return isOver && !now?.metadata.finalizers?.includes(FINALIZER) ? now : undefined;
      },
      { timeoutMs: 60_000 },
    );
  const nothingIsLeft = async (): Promise<void> => {
    const pods = await cluster.client.list(PODS, { namespace: NAMESPACE });
    const left = pods.filter(({ metadata }) => metadata.annotations?.[IN_PROCESS] === undefined);
    expect(left.map(({ metadata }) => metadata.name)).toEqual([]);
  };

  it('a volume goes, and comes back into a pod that waits for it', async () => {
    const path = await cluster.makeVolume('app', 'data');
    await fs.mkdir(join(path, 'a/b'), { recursive: true });
    await fs.writeFile(join(path, 'a/b/file'), 'content', { mode: 0o640 });
    await fs.symlink('b/file', join(path, 'a/link'));
    await fs.utimes(join(path, 'a/b/file'), 1000, 2000);
    await fs.chmod(path, 0o2775);
    const claimed = { name: 'data', persistentVolumeClaim: { claimName: 'data' } };
    const pod = await makePod('app', 'web-0', {
      volumes: [claimed, { name: 'tmp', emptyDir: {} }],
    });
    const annotations = { 'velero.io/pvc-name': 'data' };
    await backUp('web-0-data', pod, 'data', { metadata: { annotations } });
    const { status, metadata } = await ended(POD_VOLUME_BACKUPS, 'web-0-data');
    expect(status).toMatchObject({ phase: 'Completed', progress: { totalBytes: 7, bytesDone: 7 } });
    expect(status?.snapshotID).toMatch(/^[0-9a-f]{32}$/);
    expect(status?.message).toBeUndefined();
    expect(metadata.labels).toEqual({ kept: 'yes' });
    expect(metadata.annotations).toMatchObject(annotations);
    await nothingIsLeft();
    expect(await fs.readdir(path)).toEqual(['a']);

    const target = await cluster.makeVolume('again', 'data');
    await fs.writeFile(join(target, 'own'), 'stays');
    const waiting = await makePod('again', 'web-0', {
      volumes: [claimed],
      node: 'node-2',
      waits: true,
    });
    await restore('back', waiting, 'data', status?.snapshotID ?? '');
    const done = await ended(POD_VOLUME_RESTORES, 'back');
    expect(done.status).toMatchObject({
      phase: 'Completed',
      node: 'node-2',
      progress: { totalBytes: 7, bytesDone: 7 },
    });
    await waitFor(
      cluster.client,
      PODS,
      waiting.metadata,
      (now) => (now?.status?.phase === 'Running' ? now : undefined),
      { timeoutMs: 20_000 },
    );
    expect((await fs.readdir(target)).toSorted()).toEqual(['a', 'own']);
    expect(await fs.readFile(join(target, 'a/link'), 'utf8')).toBe('content');
    const file = await fs.stat(join(target, 'a/b/file'));
    expect([file.mode & 0o7777, file.mtimeMs]).toEqual([0o640, 2_000_000]);
    expect((await fs.stat(target)).mode & 0o7777).toBe(0o2775);
    await nothingIsLeft();
  });

  it('a claim that a pod has twice is restored once, and both restores end well', async () => {
    const path = await cluster.makeVolume('app', 'twice');
    await fs.writeFile(join(path, 'file'), 'content');
    const volumes = ['left', 'right'].map((name) => ({
      name,
      persistentVolumeClaim: { claimName: 'twice' },
    }));
    const pod = await makePod('app', 'twice', { volumes });
    const ids: string[] = [];
    for (const { name } of volumes) {
      await backUp(`twice-${name}`, pod, name);
      const { status } = await ended(POD_VOLUME_BACKUPS, `twice-${name}`);
      ids.push(status?.snapshotID ?? '');
    }
    const target = await cluster.makeVolume('again', 'twice');
    const waiting = await makePod('again', 'twice', { volumes, waits: true });
    // Created first, and later in the order of names: neither decides.
    await restore('twice-z', waiting, 'right', ids[1] ?? '');
    await restore('twice-a', waiting, 'left', ids[0] ?? '');
    const ends = await Promise.all(
      ['twice-z', 'twice-a'].map((name) => ended(POD_VOLUME_RESTORES, name)),
    );
    for (const { status } of ends) {
      expect(status).toMatchObject({
        phase: 'Completed',
        progress: { totalBytes: 7, bytesDone: 7 },
      });
    }
    const messages = ends.map(({ status }) => status?.message ?? '').toSorted();
    expect(messages).toEqual([
      '',
      expect.stringMatching(
        /^volume (left|right) is the same PersistentVolumeClaim twice, which PodVolumeRestore twice-[az] has restored$/,
      ),
    ]);
    expect(await fs.readFile(join(target, 'file'), 'utf8')).toBe('content');
    await nothingIsLeft();
  });

  it('an empty directory of a pod is backed up too, and its own files only', async () => {
    const volumes = [
      { name: 'one', emptyDir: {} },
      { name: 'two', emptyDir: {} },
    ];
    const pod = await makePod('app', 'two-volumes', { volumes });
    const below = join(cluster.directory, 'kubelet/pods', pod.metadata.uid, 'volumes');
    for (const name of ['one', 'two']) {
      await fs.writeFile(join(below, 'kubernetes.io~empty-dir', name, name), name);
    }
    await backUp('one', pod, 'one');
    await backUp('two', pod, 'two');
    for (const name of ['one', 'two']) {
      const { status } = await ended(POD_VOLUME_BACKUPS, name);
      expect(status).toMatchObject({ phase: 'Completed', progress: { totalBytes: 3 } });
    }
    await nothingIsLeft();
  });

  it('paths that annotations of the pod and of its PVC exclude stay out, and the status says so', async () => {
    const path = await cluster.makeVolume('app', 'excluding');
    for (const name of ['app.log', 'keep', 'cache/a']) {
      await fs.mkdir(join(path, name, '..'), { recursive: true });
      await fs.writeFile(join(path, name), name);
    }
    const annotate = (text: string): object => ({
      metadata: { annotations: { 'longshore.io/exclude-paths': text } },
    });
    await cluster.client.patch(PVCS, { namespace: 'app', name: 'excluding' }, annotate('/cache/'));
    const claimed = { name: 'data', persistentVolumeClaim: { claimName: 'excluding' } };
    const pod = await makePod('app', 'excluding-0', { volumes: [claimed] });
    await cluster.client.patch(PODS, pod.metadata, {
      metadata: {
        annotations: { 'exclude-paths.longshore.io/data': '*.log\n$(LONGSHORE_POD_UID)' },
      },
    });
    await backUp('excluding', pod, 'data');
    const { status } = await ended(POD_VOLUME_BACKUPS, 'excluding');
    expect(status).toMatchObject({
      phase: 'Completed',
      progress: { totalBytes: 4 },
      message: 'left out by rules: "/cache/", "*.log", "$(LONGSHORE_POD_UID)"',
    });
    await nothingIsLeft();
  });

  it('what cannot be served fails at once, with the reason, and the finalizer goes', async () => {
    const pod = await makePod('app', 'odd', {
      volumes: [{ name: 'etc', hostPath: { path: '/etc' } }],
    });
    const gone = { ...pod, metadata: { ...pod.metadata, uid: 'another' } };
    await backUp('host-path', pod, 'etc');
    await backUp('no-volume', pod, 'nowhere');
    await backUp('replaced', gone, 'etc');
    await backUp('restic', pod, 'etc', { spec: { uploaderType: 'restic' } });
    await restore('restic', pod, 'etc', 'a', { uploaderType: 'restic' });
    await restore('too-late', pod, 'etc', 'a');
    await restore('for-another', gone, 'etc', 'a');
    const told = async (resource: Resource<Movement>, name: string): Promise<string> => {
      const { status } = await ended(resource, name);
      expect(status?.phase).toBe('Failed');
      return status?.message as string;
    };
    const backups = POD_VOLUME_BACKUPS as Resource<Movement>;
    const restores = POD_VOLUME_RESTORES as Resource<Movement>;
    expect(await told(backups, 'host-path')).toBe(
      'error to expose PVB: volume etc of pod app/odd is a directory of the node (hostPath), which file-system backup does not support',
    );
    expect(await told(backups, 'no-volume')).toContain('volume not found in pod');
    expect(await told(backups, 'replaced')).toContain('was replaced by another pod');
    expect(await told(backups, 'restic')).toContain('restic snapshots are restored by Velero');
    expect(await told(restores, 'restic')).toContain('restic snapshots are restored by Velero');
    expect(await told(restores, 'too-late')).toContain('does not wait for its data any more');
    expect(await told(restores, 'for-another')).toContain('was replaced by another pod');
    await nothingIsLeft();
  });

  it('one whose pod is gone, and one whose node has no agent, end; what is over loses its finalizer', async () => {
    const spec = { nodeName: 'nowhere', containers: [] };
    const metadata = { name: 'lost', namespace: 'app', uid: 'lost' };
    await backUp('node-gone', aPod({ metadata, spec }), 'data');
    await restore('pod-gone', aPod({ metadata, spec }), 'data', 'a');
    await cluster.client.create(POD_VOLUME_BACKUPS, {
      metadata: { name: 'synced', namespace: NAMESPACE, finalizers: ['example.com/x', FINALIZER] },
      spec: {
        backupStorageLocation: 'default',
        repoIdentifier: '',
        volume: 'v',
        node: 'nowhere',
        pod: { namespace: 'app', name: 'p' },
      },
      status: { phase: 'Completed', message: 'as it was' },
    });
    const { status } = await ended(POD_VOLUME_BACKUPS, 'node-gone');
    expect(status).toMatchObject({ phase: 'Failed' });
    expect(status?.message).toContain('node nowhere has no node-agent');
    const restored = await ended(POD_VOLUME_RESTORES, 'pod-gone');
    expect(restored.status).toMatchObject({ phase: 'Failed' });
    expect(restored.status?.message).toContain('pod app/lost does not exist any more');
    const synced = await ended(POD_VOLUME_BACKUPS, 'synced');
    expect(synced.metadata.finalizers).toEqual(['example.com/x']);
    expect(synced.status).toEqual({ phase: 'Completed', message: 'as it was' });
  });

  it('one that is canceled before anybody took it ends as Canceled, whatever node it is for', async () => {
    const spec = { nodeName: 'nowhere', containers: [] };
    const metadata = { name: 'lost', namespace: 'app', uid: 'lost' };
    await backUp('cancel-me', aPod({ metadata, spec }), 'data', {
      spec: { cancel: true },
    });
    expect((await ended(POD_VOLUME_BACKUPS, 'cancel-me')).status?.phase).toBe('Canceled');
  });
});
