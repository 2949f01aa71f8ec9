import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { RunningAgent } from '../../src/cli/demo/dev-environment.ts';
import { SIMULATED_DRIVER, STORAGE_CLASS } from '../../src/dev/index.ts';
import {
  type KubeObject,
  PODS,
  PVCS,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  waitFor,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';

const WAIT = { timeoutMs: 20_000 };

describe('what others own is left alone, whatever it is called and whatever it says', () => {
  let cluster: TestCluster;
  let agent: RunningAgent;
  beforeAll(async () => {
    cluster = await TestCluster.start({ nodes: ['node-1'] });
    for (const name of ['app', 'victim']) await cluster.makeNamespace(name);
    agent = cluster.startAgent('node-1');
  });
  afterAll(async () => {
    await agent.stop();
    await cluster[Symbol.asyncDispose]();
  });
  const made: [Resource<KubeObject>, string | undefined, string][] = [];
  afterEach(async () => {
    for (const [resource, namespace, name] of made.splice(0)) {
      await cluster.client.delete(resource, { namespace, name });
    }
  });

  /** A volume with a file, and a snapshot of it that is ready. */
  async function snapshotOf(
    namespace: string,
    name: string,
  ): Promise<{ snapshot: string; content: string; handle: string }> {
    const path = await cluster.makeVolume(namespace, name);
    fs.writeFileSync(join(path, 'data'), name);
    const snapshot = await cluster.makeSnapshot(namespace, name);
    const content = await waitFor(
      cluster.client,
      VOLUME_SNAPSHOTS,
      { namespace, name: snapshot },
      (found) => found?.status?.boundVolumeSnapshotContentName,
      WAIT,
    );
    const { status } = await cluster.client.get(VOLUME_SNAPSHOT_CONTENTS, { name: content });
    return { snapshot, content, handle: status?.snapshotHandle ?? '' };
  }

  const messageOf = async (name: string): Promise<string> =>
    (await cluster.waitUpload(name, 'Failed')).status?.message ?? '';

  it('a VolumeSnapshotContent with the name of the DataUpload', async () => {
    const { handle } = await snapshotOf('victim', 'content');
    const { snapshot } = await snapshotOf('app', 'content');
    await cluster.client.create(VOLUME_SNAPSHOT_CONTENTS, {
      metadata: { name: 'content' },
      spec: {
        deletionPolicy: 'Delete',
        driver: 'some.other.driver',
        source: { snapshotHandle: handle },
        volumeSnapshotRef: { namespace: 'victim', name: 'theirs' },
      },
    });
    made.push([VOLUME_SNAPSHOT_CONTENTS, undefined, 'content']);
    await cluster.createUpload('content', { namespace: 'app', pvc: 'content', snapshot });
    expect(await messageOf('content')).toContain(
      'there is a VolumeSnapshotContent content already, and it was not made for this operation',
    );
    const kept = await cluster.client.get(VOLUME_SNAPSHOT_CONTENTS, { name: 'content' });
    expect(kept.metadata.deletionTimestamp).toBeUndefined();
    expect(fs.existsSync(cluster.cluster.csi.snapshotPath(handle))).toBe(true);
  });

  it('a VolumeSnapshot, a claim and a pod of such a name in our own namespace', async () => {
    const owned = { namespace: NAMESPACE };
    const spec = { accessModes: ['ReadWriteOnce'], storageClassName: 'none' };
    const objects: [Resource<KubeObject>, string, object][] = [
      [VOLUME_SNAPSHOTS, 'snapshot', { source: { volumeSnapshotContentName: 'nothing' } }],
      [PVCS, 'claim', { ...spec, resources: { requests: { storage: '1Gi' } } }],
      [PODS, 'pod', { containers: [{ name: 'any', image: 'any' }], nodeName: 'elsewhere' }],
    ];
    for (const [resource, name, body] of objects) {
      const { snapshot } = await snapshotOf('app', name);
      await cluster.client.create(resource, {
        metadata: { ...owned, name },
        spec: body,
      });
      made.push([resource, NAMESPACE, name]);
      await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot });
      const message = await messageOf(name);
      expect(message).toContain(`there is a ${resource.kind} ${NAMESPACE}/${name} already`);
      const kept = await cluster.client.get(resource, { ...owned, name });
      expect(kept.metadata.deletionTimestamp).toBeUndefined();
    }
  });

  it("a VolumeSnapshot whose status names another namespace's content", async () => {
    const victim = await snapshotOf('victim', 'lie');
    await cluster.makeVolume('app', 'lie');
    // The claim is missing: the controllers wait, so only the user of the snapshot writes its
    // status.
    const { metadata } = await cluster.client.create(VOLUME_SNAPSHOTS, {
      metadata: { name: 'lying', namespace: 'app' },
      spec: { source: { persistentVolumeClaimName: 'not-there' } },
    });
    const status = { readyToUse: true, boundVolumeSnapshotContentName: victim.content };
    await cluster.client.patch(VOLUME_SNAPSHOTS, metadata, { status }, { subresource: 'status' });
    await cluster.createUpload('lie', { namespace: 'app', pvc: 'lie', snapshot: 'lying' });
    expect(await messageOf('lie')).toContain('which is bound to another one: nothing was changed');
    const kept = await cluster.client.get(VOLUME_SNAPSHOT_CONTENTS, { name: victim.content });
    expect(kept.metadata.deletionTimestamp).toBeUndefined();
    expect(kept.spec.deletionPolicy).toBe('Delete');
    expect(fs.existsSync(cluster.cluster.csi.snapshotPath(victim.handle))).toBe(true);
    expect(await cluster.client.find(VOLUME_SNAPSHOT_CONTENTS, { name: 'lie' })).toBeUndefined();
  });

  it("labels and annotations of a namespace's users stay in their namespace, but for the driver's", async () => {
    await cluster.client.create(PVCS, {
      metadata: {
        name: 'marked',
        namespace: 'app',
        labels: { 'velero.io/exclude-from-backup': 'true' },
        annotations: {
          'cdi.kubevirt.io/storage.import.endpoint': 'http://inside',
          [`${SIMULATED_DRIVER}/tier`]: 'fast',
        },
      },
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: STORAGE_CLASS,
        selector: { matchLabels: { any: 'one' } },
        resources: { requests: { storage: '1Gi' } },
      },
    });
    await cluster.createDownload('marked', {
      namespace: 'app',
      pvc: 'marked',
      sourceNamespace: 'app',
      snapshotID: 'none',
    });
    const copy = await waitFor(
      cluster.client,
      PVCS,
      { namespace: NAMESPACE, name: 'marked' },
      (claim) => claim,
      WAIT,
    );
    expect(copy.metadata.labels).toEqual({ 'velero.io/exclude-from-backup': 'true' });
    expect(copy.metadata.annotations).toMatchObject({ [`${SIMULATED_DRIVER}/tier`]: 'fast' });
    expect(copy.metadata.annotations).not.toHaveProperty('cdi.kubevirt.io/storage.import.endpoint');
    await cluster.waitDownload('marked', 'Failed');
  });
});
